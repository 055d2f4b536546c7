#include "parallel/pipeline/weight_stash.h"

#include <algorithm>
#include <utility>

namespace weft {

WeightStash::WeightStash(WeightVersions versions, int microbatches_per_update,
                         std::vector<std::vector<Parameter*>> parameters)
    : versions_(versions),
      microbatches_per_update_(std::max(1, microbatches_per_update)),
      parameters_(std::move(parameters)) {
  Restart();
}

void WeightStash::Restart() {
  num_updates_.assign(parameters_.size(), 0);
  previous_.assign(parameters_.size(), {});
}

StageWeights WeightStash::For(int stage, int microbatch) const {
  // The checker has seen to it that the update before the last has been made, and no more than one since.
  const int version = std::max(0, microbatch / microbatches_per_update_ - 1);
  if (versions_ == WeightVersions::kPrevious && version < num_updates_[stage]) return previous_[stage];
  StageWeights weights;
  for (const Parameter* parameter : parameters_[stage]) weights.push_back(parameter->at_rest());
  return weights;
}

void WeightStash::BeginUpdate(int stage, bool is_read) {
  const bool keeps = versions_ == WeightVersions::kPrevious;
  if (keeps) {
    previous_[stage].clear();
    for (const Parameter* parameter : parameters_[stage]) previous_[stage].push_back(parameter->at_rest());
  }
  if (!is_read && !keeps) return;
  for (Parameter* parameter : parameters_[stage]) parameter->Fork();
}

WeightStash::Reading::Reading(const WeightStash& stash, int stage, const StageWeights& weights)
    : parameters_(stash.parameters_[stage]) {
  for (size_t i = 0; i < weights.size(); ++i) before_.push_back(parameters_[i]->ExchangeValue(weights[i]));
}

WeightStash::Reading::~Reading() {
  for (size_t i = 0; i < before_.size(); ++i) parameters_[i]->ExchangeValue(std::move(before_[i]));
}

}  // namespace weft
