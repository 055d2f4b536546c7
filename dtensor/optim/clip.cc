#include "dtensor/optim/clip.h"

#include <algorithm>

#include "dtensor/functions.h"
#include "dtensor/host_memory.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/tied_names.h"
#include "ops/optimizer/optimizer_update.h"
#include "ops/reduce/reduce.h"

namespace weft {

namespace {

// Of sums of squares, which are f64 of f64 gradients and f32 of others.
DTensor AddSums(const DTensor& a, const DTensor& b) {
  return a.dtype() == b.dtype() ? Add(a, b) : Add(Cast(a, DType::kF64), Cast(b, DType::kF64));
}

// The sum of scalars: those that lie alike in one call, in their order.
DTensor SumOf(const std::vector<DTensors>& terms) {
  std::vector<std::vector<DTensor>> groups;
  for (const DTensors& term : terms) {
    const auto lies_alike = [&](const std::vector<DTensor>& group) {
      return group[0].type() == term[0].type() && group[0].layout() == term[0].layout();
    };
    const auto found = std::find_if(groups.begin(), groups.end(), lies_alike);
    (found == groups.end() ? groups.emplace_back() : *found).push_back(term[0]);
  }
  DTensor total;
  for (const std::vector<DTensor>& group : groups) {
    const DTensor sum = group.size() == 1 ? group[0] : CallAll(kAddAll, group)[0];
    total = total.defined() ? AddSums(total, sum) : sum;
  }
  return total;
}

// A scalar that every rank has alike, on another mesh of the model.
DTensor OnMesh(const IntrusivePtr<MeshContext>& context, const DTensor& scalar) {
  if (scalar.context()->mesh() == context->mesh()) return scalar;
  const Layout replicated(/*ndim=*/0, context->mesh().num_axes());
  return DTensor::FromLocal(context, scalar.ToLocal(), replicated, Shape());
}

// Of what every stage or part has of it: a scalar that is replicated over the mesh of the one that has `parameter`. One
// rank of each adds it, along the axis that they lie along.
DTensor SumOverModel(const DTensor& of_part, const Parameter& parameter) {
  const IntrusivePtr<MeshContext>& model = parameter.model_context();
  const DTensor term = parameter.adds_to_model() ? of_part : ZerosLike(of_part);
  const Layout replicated(/*ndim=*/0, model->mesh().num_axes());
  const Layout terms = replicated.WithPartial(parameter.model_axis());
  const DTensor sum = DTensor::FromLocal(model, term.ToLocal(), terms, Shape()).Redistribute(replicated);
  return OnMesh(of_part.context(), sum);
}

// A parameter of the model, trained or not, one that is here if any is: what it says of the model's ranks holds for all. Null,
// if there is none.
const Parameter* OneOf(const std::vector<Parameter*>& parameters, Module* model) {
  if (!parameters.empty()) return parameters[0];
  if (model == nullptr) return nullptr;
  const std::vector<Parameter*> here = model->AllParameters();
  if (!here.empty()) return here[0];
  const std::vector<Parameter*> all = model->RegisteredParameters();
  return all.empty() ? nullptr : all[0];
}

// The ranks and the dtype of the sum on this rank. Of a stage or part without any parameter, the ranks of the whole model.
struct SumPlace {
  IntrusivePtr<MeshContext> context;
  DType dtype = DType::kF32;
};
SumPlace SumPlaceOf(const Parameter& parameter) {
  const bool is_here = parameter.is_here();
  // Parallelize says the dtype of what is elsewhere as that.
  const DType at_rest =
      is_here ? parameter.at_rest().dtype() : parameter.reduce_dtype().value_or(DType::kF32);
  const IntrusivePtr<MeshContext>& context =
      is_here ? parameter.at_rest().context() : parameter.model_context();
  return {context->DeviceSide(), at_rest == DType::kF64 ? DType::kF64 : DType::kF32};
}

}  // namespace

GlobalNorm ComputeGlobalNorm(const std::vector<Parameter*>& parameters, double max_norm,
                             const DTensor& loss_scale, Module* model) {
  WEFT_REQUIRE(max_norm >= 0, "ComputeGlobalNorm: expected a max_norm of at least 0, got ", max_norm);
  const std::vector<Parameter*> own = WithoutTiedNames(parameters);
  std::vector<EachCall<>> calls, host_calls;
  for (const Parameter* parameter : own) {
    if (!parameter->counts_here() || !parameter->grad().defined()) continue;
    // In one order where one processor computes on both memories: the same bits, wherever they lie.
    MeshContext& memory = *parameter->grad().context();
    const bool on_host = memory.is_host_side() && !ComputesOnHost(memory);
    (on_host ? host_calls : calls).push_back({.operands = {parameter->grad()}});
  }
  // Other ranks of the model wait for this one's term, whatever it has to train.
  const Parameter* const one = OneOf(own, model);
  const bool is_part = one != nullptr && one->model_context();
  if (calls.empty() && host_calls.empty() && !is_part)
    Throw(absl::StatusCode::kFailedPrecondition, "ComputeGlobalNorm: no parameter has a gradient");
  const auto [context, dtype] = SumPlaceOf(*one);
  RankState& state = context->state();
  NoGradGuard no_grad(state);
  // Split gradients give Partial sums; replicated ones join them on a single coordinate, so they count once.
  // A stage or part may have none that count.
  DTensor total;
  if (!host_calls.empty()) total = ToDevice(SumOf(CallEach(kSumSquares, host_calls)));
  if (!calls.empty()) {
    const DTensor sum = SumOf(CallEach(kSumSquares, calls));
    total = total.defined() ? AddSums(sum, total) : sum;
  }
  if (!total.defined()) total = Full(context, dtype, Shape(), 0);
  PurposeGuard purpose(state, Purpose::kNorm);
  GlobalNorm result;
  result.norm_squared = total.Redistribute(Layout(/*ndim=*/0, total.layout().num_axes()));
  if (is_part) result.norm_squared = SumOverModel(result.norm_squared, *one);
  DTensor inverse;
  if (loss_scale.defined()) {
    inverse = Cast(Div(1, OnMesh(context, loss_scale)), result.norm_squared.dtype());
    // One after the other: the square of a small one would be 0.
    result.norm_squared = Mul(Mul(result.norm_squared, inverse), inverse);
  }
  if (max_norm > 0) result.scale = Call(kClipFactor, {result.norm_squared}, {}, {.max_norm = max_norm});
  if (inverse.defined()) {
    // Without a bound the scale is the inverse: of a norm that is not finite, nan.
    result.scale = max_norm > 0 ? Mul(result.scale, inverse) : Add(inverse, Scale(result.norm_squared, 0));
  }
  return result;
}

}  // namespace weft
