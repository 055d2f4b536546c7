// Modules on the stages of a pipeline.

#ifndef WEFT_PARALLEL_STYLES_PIPELINE_H_
#define WEFT_PARALLEL_STYLES_PIPELINE_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "parallel/pipeline/stages.h"
#include "parallel/style.h"

namespace weft {

struct PipelineOptions {
  int64_t chunks = 1;                    // stages of each rank
  StageOrder order = StageOrder::kLoop;  // how stages lie on the ranks
  // What the model's segments cost, each of them, where that was measured; what the model says if empty.
  std::vector<double> costs = {};
  // How many of the segments that the entry names each stage has; balanced by cost if empty. Not with `costs`.
  std::vector<int64_t> sizes = {};
};

// Cuts the model, a SegmentedModule, along an axis: each coordinate has a part of its chain of segments, and of the
// parameters what these need. The entry names modules; segments that run one of them are divided among the stages,
// those before them join the first, those after them the last. Inside a stage the other entries of the plan hold, on
// the slice of the mesh at its coordinate.
//
//   {"blocks.*", Pipeline("pp")}        the embedding with the first blocks, the head with the last
//
// A plan has one such entry at most.
// Source: Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", 2019.
Style Pipeline(absl::string_view axis, const PipelineOptions& options = {});

// What the fields of such a style say.
// Errors: InvalidArgument for costs or sizes that are no lists of numbers, and for both.
PipelineOptions PipelineOptionsOf(const Style& style);

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_PIPELINE_H_
