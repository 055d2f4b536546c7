#include "dtensor/nn/segmented_module.h"

#include <algorithm>
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

std::vector<Parameter*> SegmentedModule::ParametersOfSegments(int begin, int end) {
  std::vector<Parameter*> parameters;
  const auto add = [&](Parameter* parameter) {
    const bool is_new = std::find(parameters.begin(), parameters.end(), parameter) == parameters.end();
    if (is_new && parameter->is_here()) parameters.push_back(parameter);
  };
  for (int i = begin; i < end; ++i) {
    for (Module* module : segments()[i].modules) {
      for (Parameter* parameter : module->AllParameters()) add(parameter);
    }
    for (Parameter* parameter : segments()[i].parameters) add(parameter);
  }
  return parameters;
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
