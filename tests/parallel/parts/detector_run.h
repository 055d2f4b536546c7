// The detector of examples/perception/perception.h as a run of tests.

#ifndef WEFT_TESTS_PARALLEL_PARTS_DETECTOR_RUN_H_
#define WEFT_TESTS_PARALLEL_PARTS_DETECTOR_RUN_H_

#include "examples/perception/perception_plan.h"
#include "tests/parallel/parts/parts_run.h"

namespace weft {

// A small one, with dropout, on scenes of random numbers.
PartsRun DetectorRun(const PerceptionMeshes& meshes);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PARTS_DETECTOR_RUN_H_
