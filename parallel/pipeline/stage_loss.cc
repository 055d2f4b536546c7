#include "parallel/pipeline/stage_loss.h"

#include <utility>

#include "dtensor/functions.h"
#include "mesh/layout.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {

LossSum LossOfMicrobatch(SegmentedModule& model, const DTensors& outputs, const DTensor& targets) {
  RankState& state = model.context()->state();
  RandomSnapshot here = state.random_snapshot();
  here.path_id = 0;
  here.module_training = true;
  here.draws_outside = 0;
  here.in_root_call = false;
  const RandomScope outside(state, std::move(here));
  return model.LossOf(outputs, targets);
}

void StageLoss::Add(const DTensor& sum, const DTensor& count) {
  const NoGradGuard no_grad(part_->state());
  const MemoryKindGuard kind(*part_->allocator(), MemoryKind::kOther);  // backward reads none of it
  const PurposeGuard purpose(part_->state(), Purpose::kLoss);
  const auto add = [](DTensor& so_far, const DTensor& term) {
    DTensor wide = Cast(term.Detach(), DType::kF64);
    if (!AddsUp(wide.layout())) wide = wide.Redistribute(WithoutPartial(wide.layout()));
    so_far = so_far.defined() ? weft::Add(so_far, wide) : Scale(wide, 1);  // of its own memory
  };
  add(sum_, sum);
  if (count.defined()) add(count_, count);
}

void StageLoss::RequireTotal(const DTensor& total) const {
  constexpr char kExpected[] = "PipelineExecutor::Run: expected a total, a scalar";
  WEFT_REQUIRE(total.defined(), kExpected, ", got an undefined tensor");
  const DeviceMesh &mesh = part_->mesh(), &given = total.context()->mesh();
  WEFT_REQUIRE(given == mesh && total.ndim() == 0, kExpected, " on mesh (", mesh.ToString(),
               "), as the model's part, got ", total.ToString(), " on mesh (", given.ToString(), ")");
}

void StageLoss::AddOver(const LossSum& loss, const DTensor& total) {
  const NoGradGuard no_grad(part_->state());
  const MemoryKindGuard kind(*part_->allocator(), MemoryKind::kOther);
  const LossSum wide = {.sum = Cast(loss.sum.Detach(), DType::kF64), .count = loss.count};
  Add(wide.Over(total));
}

LossSum StageLoss::Take() {
  return {.sum = TermOfAll(std::exchange(sum_, DTensor())),
          .count = TermOfAll(std::exchange(count_, DTensor()))};
}

DTensor StageLoss::TermOfAll(const DTensor& scalar) const {
  const DeviceMesh& mesh = whole_->mesh();
  Layout terms(/*ndim=*/0, mesh.num_axes());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!mesh.IsFixed(axis)) terms = terms.WithPartial(axis);
  }
  bool is_addend = scalar.defined();
  for (int axis = 0; scalar.defined() && axis < mesh.num_axes(); ++axis) {
    // Of replicas one is an addend.
    is_addend = is_addend && (scalar.layout().IsPartial(axis) || part_->coordinate()[axis] == 0);
  }
  Tensor term = Tensor::Empty(part_->allocator(), DType::kF64, Shape());
  if (is_addend) {
    term = scalar.ToLocal();
  } else {
    FillTensor(term, 0);
  }
  return DTensor::FromLocal(whole_, term, terms, Shape());
}

}  // namespace weft
