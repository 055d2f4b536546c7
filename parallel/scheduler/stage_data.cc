#include "parallel/scheduler/stage_data.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "dtensor/functions/creation.h"
#include "dtensor/host_memory.h"
#include "dtensor/redistribution/implicit.h"
#include "parallel/stage_replicas.h"
#include "runtime/comm/communicator.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

bool Has(const std::vector<int>& stages, int stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

class PartsOfStages final : public StageData {
 public:
  PartsOfStages(const ModelStages& stages, StageParts parts)
      : context_(stages.context), parts_(std::move(parts)), num_holders_(parts_.units.size()) {
    for (const auto& [indices, terms] : parts_.terms) {
      groups_.push_back(indices.size() == 1 ? nullptr
                                            : &context_->state().Group("shared by stages",
                                                                       RanksAlongPipeline(stages, indices)));
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

  void Begin() override { DropTerms(); }

  void ReduceGradients(int stage) override {
    for (const auto& [of, buckets] : parts_.buckets) {
      if (of.size() == 1 && of[0] == stage) buckets->Reduce();
    }
  }

  void FinishGradients() override {
    for (const auto& [of, buckets] : parts_.buckets) {
      if (of.size() > 1) buckets->Reduce();
    }
    const PurposeGuard purpose(context_->state(), Purpose::kGrad);
    const MemoryKindGuard kind(*context_->allocator(), MemoryKind::kGrad);
    const NoImplicitChecksGuard planned(context_->state());
    size_t group = 0;
    for (const auto& [indices, terms] : parts_.terms) BringToRest(groups_[group++], terms);
  }

  void Abandon() noexcept override {
    for (size_t unit = 0; unit < parts_.units.size(); ++unit) {
      if (std::exchange(num_holders_[unit], 0) > 0) parts_.copies->Release(static_cast<int>(unit));
    }
    for (const auto& [of, buckets] : parts_.buckets) buckets->DropHeld();
    DropTerms();
  }

 private:
  void DropTerms() noexcept {
    for (const auto& [indices, terms] : parts_.terms) {
      for (const StageTerm& term : terms) term.leaf->ClearGradient();
    }
  }

  // Adds whole gradients to what the parameters have, and so has their hooks run. `group`: null where one rank has all the
  // stages.
  void BringToRest(Communicator* group, const std::vector<StageTerm>& terms) {
    std::vector<StageTerm> trained = terms;
    std::erase_if(trained, [](const StageTerm& term) { return !term.parameter->trainable(); });
    if (trained.empty()) return;
    std::vector<DTensor> sums = group != nullptr ? SumOverStages(*group, trained) : TakeTerms(trained);
    for (size_t i = 0; i < trained.size(); ++i) {
      if (!sums[i].defined()) continue;  // no microbatch has reached it
      LeafNode& leaf = trained[i].parameter->leaf();
      const PathGuard path(context_->state(), leaf.path_id());
      leaf.AddGradient(std::exchange(sums[i], DTensor()));
    }
  }

  std::vector<DTensor> TakeTerms(const std::vector<StageTerm>& terms) {
    std::vector<DTensor> taken;
    for (const StageTerm& term : terms) {
      taken.push_back(term.leaf->gradient());
      term.leaf->ClearGradient();
    }
    return taken;
  }

  // Of each term whether any of the stages has one, which no rank knows alone.
  std::vector<int64_t> AnyHas(Communicator& group, const std::vector<DTensor>& terms) {
    std::vector<int64_t> has;
    for (const DTensor& term : terms) has.push_back(term.defined() ? 1 : 0);
    const Tensor any = Tensor::FromValues<int64_t>({std::ssize(has)}, has, context_->allocator());
    const PurposeGuard purpose(context_->state(), Purpose::kMetric);
    group.AllReduce(any, any, ReduceOp::kMax, {.tag = context_->state().tag()}).Wait();
    return any.ToVector<int64_t>();
  }

  // In memory of its own: a term may be seen by whoever asked for it in backward. Undefined where no stage has a term.
  std::vector<DTensor> SumOverStages(Communicator& group, const std::vector<StageTerm>& of) {
    std::vector<CollectivePart> parts;
    std::vector<DTensor> terms = TakeTerms(of), sums(of.size());
    const std::vector<int64_t> has = AnyHas(group, terms);
    for (size_t i = 0; i < of.size(); ++i) {
      if (has[i] == 0) continue;
      const DTensor& value = of[i].parameter->at_rest();
      const IntrusivePtr<MeshContext> context = value.context()->DeviceSide();
      const Layout& layout = of[i].leaf->layout();
      // No microbatch may have reached it here.
      terms[i] =
          terms[i].defined() ? ToDevice(terms[i]) : Full(context, value.dtype(), value.shape(), 0, layout);
      // A view, where the parameter is read by another name that turns it and one microbatch alone has reached it.
      const Tensor& piece = terms[i].ToLocal();
      const Tensor term = piece.IsContiguous() ? piece : CloneTensor(piece, context_->allocator());
      const Tensor sum = Tensor::Empty(context_->allocator(), term.dtype(), term.shape());
      parts.push_back({.input = term, .output = sum});
      sums[i] = DTensor::FromLocal(context, sum, layout, value.shape());
    }
    if (!parts.empty()) {
      group.AllReduceEach(parts, ReduceOp::kSum, {.tag = context_->state().tag()}).Wait();
    }
    return sums;
  }

  const IntrusivePtr<MeshContext> context_;
  const StageParts parts_;
  std::vector<int> num_holders_;       // of each unit: stages that are between Unshard and Reshard
  std::vector<Communicator*> groups_;  // of the entries of `terms`; null: of one rank
};

}  // namespace

std::shared_ptr<StageData> MakeStageData(const ModelStages& stages, StageParts parts) {
  return std::make_shared<PartsOfStages>(stages, std::move(parts));
}

}  // namespace weft
