#include "dtensor/optim/weight_average.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/host_memory.h"
#include "dtensor/optim/tied_names.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/tensor/copy.h"

namespace weft {

WeightAverage::WeightAverage(std::vector<Parameter*> parameters, const WeightAverageOptions& options)
    : parameters_(WithoutTiedNames(parameters)), options_(options) {
  WEFT_REQUIRE(!options.decay || (*options.decay >= 0 && *options.decay <= 1),
               "WeightAverage: expected a decay between 0 and 1, got ", options.decay.value_or(0));
  for (const Parameter* parameter : parameters_) {
    const DTensor& value = parameter->at_rest();
    const IntrusivePtr<MeshContext> context = parameter->state_context();
    const MemoryKindGuard kind(*context->allocator(), MemoryKind::kState);
    const PathGuard path(context->state(), parameter->leaf().path_id());
    averages_.push_back(Full(context, value.dtype(), value.shape(), 0, parameter->layouts().of_state()));
  }
  if (parameters_.empty()) return;
  const IntrusivePtr<MeshContext> context = parameters_[0]->at_rest().context()->DeviceSide();
  const MemoryKindGuard kind(*context->allocator(), MemoryKind::kState);
  count_ = Full(context, DType::kI64, Shape(), 0);
}

void WeightAverage::RequireNotSwapped(const char* what) const {
  if (!is_swapped_) return;
  Throw(absl::StatusCode::kFailedPrecondition, "WeightAverage::", what,
        ": the model has the averages; call SwapWithModel again first");
}

void WeightAverage::Update() {
  RequireNotSwapped("Update");
  if (parameters_.empty()) return;
  const NoGradGuard no_grad(count_.context()->state());
  // Made on the device, where the count is: it is part of the state that is loaded.
  const DTensor count = Cast(count_, DType::kF64);
  const DTensor weight = options_.decay ? Where(Equal(count, 0), 1, FullLike(count, 1 - *options_.decay))
                                        : Div(1, Add(count, 1));
  std::vector<DTensor> values;
  values.reserve(parameters_.size());
  for (const bool on_host : {false, true}) {
    const auto lies_there = [&](const DTensor& average) {
      return average.context()->is_host_side() == on_host;
    };
    // A second memory that nothing is offloaded to is not made.
    if (std::none_of(averages_.begin(), averages_.end(), lies_there)) continue;
    std::vector<EachCall<>> calls;
    const DTensor weight_there = on_host ? ToHost(weight) : weight;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!lies_there(averages_[i])) continue;
      values.push_back(parameters_[i]->UpdatedPiece());
      calls.push_back({.operands = {averages_[i], values.back(), weight_there}});
    }
    CallEach(kLerpUpdate, calls);
  }
  Call(kCountUpdate, {count_, weight});
}

void WeightAverage::SwapWithModel() {
  if (parameters_.empty()) {
    is_swapped_ = !is_swapped_;
    return;
  }
  if (!is_swapped_ && count_.Item() == 0) {
    Throw(absl::StatusCode::kFailedPrecondition, "WeightAverage::SwapWithModel: no Update was made yet");
  }
  const NoGradGuard no_grad(count_.context()->state());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const DTensor& average = averages_[i];
    const Tensor own = CloneTensor(parameters_[i]->UpdatedPiece().ToLocal(), average.context()->allocator());
    parameters_[i]->Load(average);
    CopyTensor(own, average.ToLocal());
    average.impl()->MarkWritten("swap");
  }
  is_swapped_ = !is_swapped_;
}

std::vector<std::pair<std::string, DTensor>> WeightAverage::State() const {
  RequireNotSwapped("State");
  std::vector<std::pair<std::string, DTensor>> state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    state.push_back({absl::StrCat("average.", parameters_[i]->path()), averages_[i]});
  }
  if (count_.defined()) state.push_back({"average.count", count_});
  return state;
}

}  // namespace weft
