#include "dtensor/nn/segmented_module.h"

#include <cstdint>
#include <utility>

namespace weft {

const std::vector<Segment>& SegmentedModule::segments() {
  if (segments_.empty()) {
    segments_ = MakeSegments();
    WEFT_REQUIRE(!segments_.empty(), "module '", path(), "': expected at least one segment, got none");
  }
  return segments_;
}

DTensors SegmentedModule::RunSegments(int begin, int end, DTensors inputs, DTensors* first_made) {
  // More draws than any segment makes.
  constexpr int kDrawBits = 32;
  RankState& state = context()->state();
  const uint64_t first = state.call_number();  // not 0 where a model calls this one again
  for (int i = begin; i < end; ++i) {
    state.set_call_number(first + (static_cast<uint64_t>(i) << kDrawBits));
    inputs = segments()[i].run(inputs);
    if (i == begin && first_made != nullptr) *first_made = inputs;
  }
  return inputs;
}

DTensor SegmentedModule::Forward(const DTensor& x) {
  if (stages_ && stages_->num_stages() > 1) {
    Throw(absl::StatusCode::kFailedPrecondition, "module '", path(), "' is cut into ", stages_->num_stages(),
          " stages: a PipelineExecutor runs it");
  }
  const int end = static_cast<int>(segments().size());
  return RunSegments(0, end, {x})[0];
}

}  // namespace weft
