#ifndef WEFT_TESTS_PARALLEL_DATA_PARALLEL_DATA_PARALLEL_CASES_H_
#define WEFT_TESTS_PARALLEL_DATA_PARALLEL_DATA_PARALLEL_CASES_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "parallel/plan.h"
#include "tests/parallel/training_run.h"

namespace weft {

// The plans of docs/data_parallel.md, by name ("ddp", "zero1", "zero2", "fsdp", "fsdp_never", "fsdp_rest", "hsdp"), over
// the axes that the mesh has.
Plan DataPlanNamed(const std::string& name, const DeviceMesh& mesh);

// A training of the small GPT under one of them.
struct DataCase {
  std::string plan;
  std::string mesh;
  int64_t microbatches = 1;
  TrainingRun::Optimizer optimizer = TrainingRun::Optimizer::kSgd;
  int64_t batch = 4;
  int64_t steps = 2;
};
std::ostream& operator<<(std::ostream& out, const DataCase& c);

// The case on a mesh; on one rank if that is empty.
TrainingRun RunOf(const DataCase& c, const std::string& mesh);

// What is different from the whole batch at once on one rank: microbatches are held to it too. Empty if all is equal
// within kF64Tolerance.
std::vector<std::string> DifferencesFromOneRank(const DataCase& c);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_DATA_PARALLEL_DATA_PARALLEL_CASES_H_
