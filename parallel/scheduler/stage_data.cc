#include "parallel/scheduler/stage_data.h"

#include <algorithm>

#include "dtensor/functions/creation.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/host_memory.h"
#include "parallel/stage_replicas.h"
#include "runtime/comm/communicator.h"

namespace weft {
namespace {

bool Has(const std::vector<int>& stages, int stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

class PartsOfStages final : public StageData {
 public:
  PartsOfStages(const ModelStages& stages, StageParts parts)
      : context_(stages.context), parts_(std::move(parts)), num_holders_(parts_.units.size()) {
    for (const auto& [indices, parameters] : parts_.shared) {
      groups_.push_back(&context_->state().Group("shared by stages", RanksAlongPipeline(stages, indices)));
    }
  }

  void Unshard(int stage) override {
    for (size_t unit = 0; unit < parts_.units.size(); ++unit) {
      if (Has(parts_.units[unit], stage) && num_holders_[unit]++ == 0) {
        parts_.copies->Hold(static_cast<int>(unit));
      }
    }
  }

  void Reshard(int stage) noexcept override {
    for (size_t unit = 0; unit < parts_.units.size(); ++unit) {
      if (Has(parts_.units[unit], stage) && --num_holders_[unit] == 0) {
        parts_.copies->Release(static_cast<int>(unit));
      }
    }
  }

  void Begin() override {
    before_.clear();
    for (const auto& [indices, parameters] : parts_.shared) {
      for (Parameter* parameter : parameters) {
        if (!parameter->grad().defined()) continue;
        before_.push_back({parameter, parameter->grad()});
        parameter->ClearGrad();
      }
    }
  }

  void ReduceGradients(int stage) override {
    for (const auto& [of, buckets] : parts_.buckets) {
      if (of.size() == 1 && of[0] == stage) buckets->Reduce();
    }
  }

  void FinishGradients() override {
    for (const auto& [of, buckets] : parts_.buckets) {
      if (of.size() > 1) buckets->Reduce();
    }
    size_t group = 0;
    for (const auto& [indices, parameters] : parts_.shared) SumOverStages(*groups_[group++], parameters);
    for (auto& [parameter, gradient] : std::exchange(before_, {})) {
      DTensor sum = ToDevice(gradient);
      if (parameter->grad().defined()) sum = Add(sum, ToDevice(parameter->grad()));
      parameter->SetGrad(sum);
    }
  }

  void Abandon() noexcept override {
    for (size_t unit = 0; unit < parts_.units.size(); ++unit) {
      if (std::exchange(num_holders_[unit], 0) > 0) parts_.copies->Release(static_cast<int>(unit));
    }
    for (const auto& [of, buckets] : parts_.buckets) buckets->DropHeld();
    try {
      for (auto& [parameter, gradient] : std::exchange(before_, {})) parameter->SetGrad(gradient);
    } catch (...) {
      // Without memory for copies on the host: the step is lost, and its gradients with it.
    }
  }

 private:
  // In memory of its own: a gradient may be seen by whoever asked for it.
  void SumOverStages(Communicator& group, const std::vector<Parameter*>& parameters) {
    RankState& state = context_->state();
    const PurposeGuard purpose(state, Purpose::kGrad);
    const MemoryKindGuard kind(*context_->allocator(), MemoryKind::kGrad);
    std::vector<CollectivePart> parts;
    std::vector<DTensor> terms, sums;
    std::vector<Parameter*> trained = parameters;
    std::erase_if(trained, [](const Parameter* parameter) { return !parameter->trainable(); });
    if (trained.empty()) return;
    for (const Parameter* parameter : trained) {
      const DTensor& value = parameter->at_rest();
      const IntrusivePtr<MeshContext> context = value.context()->DeviceSide();
      const Layout& layout = parameter->layouts().of_gradient();
      // No microbatch may have reached it here.
      terms.push_back(parameter->grad().defined() ? ToDevice(parameter->grad())
                                                  : Full(context, value.dtype(), value.shape(), 0, layout));
      const Tensor& term = terms.back().ToLocal();
      const Tensor sum = Tensor::Empty(context_->allocator(), term.dtype(), term.shape());
      parts.push_back({.input = term, .output = sum});
      sums.push_back(DTensor::FromLocal(context, sum, layout, value.shape()));
    }
    group.AllReduceEach(parts, ReduceOp::kSum, {.tag = state.tag()}).Wait();
    for (size_t i = 0; i < trained.size(); ++i) trained[i]->SetGrad(sums[i]);
  }

  const IntrusivePtr<MeshContext> context_;
  const StageParts parts_;
  std::vector<int> num_holders_;       // of each unit: stages that are between Unshard and Reshard
  std::vector<Communicator*> groups_;  // of the entries of `shared`
  // Of these, in a step: the gradients that were there before it.
  std::vector<std::pair<Parameter*, DTensor>> before_;
};

}  // namespace

std::shared_ptr<StageData> MakeStageData(const ModelStages& stages, StageParts parts) {
  return std::make_shared<PartsOfStages>(stages, std::move(parts));
}

}  // namespace weft
