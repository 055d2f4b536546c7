#include "ops/optimizer/optimizer_update.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

void RequireFactor(const char* name, const TensorType& s) {
  WEFT_REQUIRE(s.ndim() == 0 && (s.dtype == DType::kF32 || s.dtype == DType::kF64), name,
               ": expected s a scalar of f32 or f64, got ", s.ToString());
}

void RequireCount(const char* name, const TensorType& t) {
  WEFT_REQUIRE(t.ndim() == 0 && t.dtype == DType::kI64, name, ": expected t a scalar of i64, got ",
               t.ToString());
}

// Operands: p, `num_state` of state, g, s. The outputs are p and the state.
TensorTypes InferUpdate(const char* name, Operands operands, int num_state) {
  const TensorType& p = operands[0];
  const TensorType& g = operands[num_state + 1];
  const TensorType& s = operands[num_state + 2];
  WEFT_REQUIRE(IsFloating(p.dtype), name, ": expected p of a floating dtype, got ", p.ToString());
  TensorTypes outputs = {p};
  for (int i = 1; i <= num_state; ++i) {
    WEFT_REQUIRE(operands[i] == p, name, ": expected state of p's type ", p.ToString(), ", got ",
                 operands[i].ToString());
    outputs.push_back(p);
  }
  WEFT_REQUIRE(g.shape == p.shape && IsFloating(g.dtype), name,
               ": expected g of a floating dtype and p's shape ", p.shape.ToString(), ", got ", g.ToString());
  RequireFactor(name, s);
  return outputs;
}

template <int kNumState>
std::string RuleUpdate(Operands operands, const NoAttributes&) {
  const int ndim = operands[0].ndim();
  const std::string rule = ElementwiseRule(kNumState + 2, kNumState + 1, ndim);
  const size_t arrow = rule.find(" ->");
  return absl::StrCat(rule.substr(0, arrow), ", ()", rule.substr(arrow));
}

constexpr int64_t kNumRates = 2;

TensorTypes InferAdamW(Operands operands, const NoAttributes&) {
  const TensorType& r = operands[5];
  TensorTypes outputs = InferUpdate("adamw_update", operands, 2);
  WEFT_REQUIRE(r.dtype == DType::kF64 && r.shape == Shape{kNumRates},
               "adamw_update: expected r as adamw_rates makes it, f64[2], got ", r.ToString());
  return outputs;
}

std::string RuleAdamW(Operands operands, const NoAttributes& attributes) {
  const std::string rule = RuleUpdate<2>(operands, attributes);
  const size_t arrow = rule.find(" ->");
  return absl::StrCat(rule.substr(0, arrow), ", r!", rule.substr(arrow));
}

TensorTypes InferCountUpdate(Operands operands, const NoAttributes&) {
  RequireCount("count_update", operands[0]);
  RequireFactor("count_update", operands[1]);
  return {operands[0]};
}

std::string RuleCountUpdate(Operands, const NoAttributes&) { return "(), () -> ()"; }

TensorTypes InferAdamWRates(Operands operands, const NoAttributes&) {
  RequireCount("adamw_rates", operands[0]);
  return {{DType::kF64, {kNumRates}}};
}

std::string RuleAdamWRates(Operands, const NoAttributes&) { return "() -> r!"; }

TensorTypes InferSgd(Operands operands, const NoAttributes&) {
  return InferUpdate("sgd_update", operands, 0);
}
TensorTypes InferMomentum(Operands operands, const NoAttributes&) {
  return InferUpdate("momentum_update", operands, 1);
}

TensorTypes InferNesterov(Operands operands, const NoAttributes&) {
  return InferUpdate("nesterov_update", operands, 1);
}
TensorTypes InferLion(Operands operands, const NoAttributes&) {
  return InferUpdate("lion_update", operands, 1);
}
TensorTypes InferLerp(Operands operands, const NoAttributes&) {
  return InferUpdate("lerp_update", operands, 0);
}

TensorTypes InferClipFactor(Operands operands, const NoAttributes&) {
  const TensorType& x = operands[0];
  WEFT_REQUIRE(x.ndim() == 0 && (x.dtype == DType::kF32 || x.dtype == DType::kF64),
               "clip_factor: expected a scalar of f32 or f64, got ", x.ToString());
  return {x};
}

std::string RuleClipFactor(Operands, const NoAttributes&) { return "() -> ()"; }

TensorTypes InferAccumulate(Operands operands, const NoAttributes&) {
  const TensorType& acc = operands[0];
  const TensorType& x = operands[1];
  WEFT_REQUIRE(IsFloating(acc.dtype) && IsFloating(x.dtype) && acc.shape == x.shape,
               "accumulate: expected floating operands of one shape, got ", acc.ToString(), " and ",
               x.ToString());
  return {acc};
}

std::string RuleAccumulate(Operands operands, const NoAttributes&) {
  return ElementwiseRule(/*num_operands=*/2, /*num_outputs=*/1, operands[0].ndim());
}

TensorTypes InferAddAll(Operands operands, const NoAttributes&) {
  WEFT_REQUIRE(!operands.empty(), "add_all: expected at least one operand");
  const TensorType& first = operands[0];
  WEFT_REQUIRE(IsFloating(first.dtype), "add_all: expected floating operands, got ", first.ToString());
  for (const TensorType& operand : operands) {
    WEFT_REQUIRE(operand == first, "add_all: expected operands of one type, got ", first.ToString(), " and ",
                 operand.ToString());
  }
  return {first};
}

std::string RuleAddAll(Operands operands, const NoAttributes&) {
  return ElementwiseRule(static_cast<int>(operands.size()), /*num_outputs=*/1, operands[0].ndim());
}

void BackwardAddAll(GradContext<NoAttributes, NoScalars>& context) {
  for (int i = 0; i < context.num_operands(); ++i) {
    if (context.Wants(i)) context.SetGrad(i, context.grad());
  }
}

SampleOperand F32(const Shape& shape, double low = -1, double high = 1) {
  return {.type = {DType::kF32, shape}, .low = low, .high = high};
}

const Shape kSampleShapes[] = {{3, 5}, {1, 7}, {}};

SampleOperand Count(double low, double high) { return {.type = {DType::kI64, {}}, .low = low, .high = high}; }

std::vector<Sample<NoAttributes, AdamWScalars>> AdamWSamples() {
  const SampleOperand rates = {.type = {DType::kF64, {kNumRates}}, .low = 0.1, .high = 1};
  std::vector<Sample<NoAttributes, AdamWScalars>> samples;
  for (const Shape& shape : kSampleShapes) {
    samples.push_back(
        {.operands = {F32(shape), F32(shape), F32(shape, 0.1, 1), F32(shape), F32({}, 0.5, 1), rates},
         .scalars = {.lr = 0.1, .weight_decay = 0.01}});
  }
  return samples;
}

std::vector<Sample<>> CountUpdateSamples() { return {{.operands = {Count(0, 9), F32({}, 0.5, 1)}}}; }

std::vector<Sample<NoAttributes, AdamWRatesScalars>> AdamWRatesSamples() {
  return {{.operands = {Count(1, 3)}},
          {.operands = {Count(10, 1000)}, .scalars = {.lr = 0.1, .beta2 = 0.99}}};
}

std::vector<Sample<NoAttributes, SgdScalars>> SgdSamples() {
  std::vector<Sample<NoAttributes, SgdScalars>> samples;
  for (const Shape& shape : kSampleShapes) {
    samples.push_back({.operands = {F32(shape), F32(shape), F32({}, 0.5, 1)},
                       .scalars = {.lr = 0.1, .weight_decay = 0.01}});
  }
  return samples;
}

// Of updates with one tensor of state: MomentumScalars or LionScalars.
template <class Scalars>
std::vector<Sample<NoAttributes, Scalars>> StateSamples() {
  std::vector<Sample<NoAttributes, Scalars>> samples;
  for (const Shape& shape : kSampleShapes) {
    samples.push_back({.operands = {F32(shape), F32(shape), F32(shape), F32({}, 0.5, 1)},
                       .scalars = {.lr = 0.1, .weight_decay = 0.01}});
  }
  return samples;
}

std::vector<Sample<>> LerpSamples() {
  std::vector<Sample<>> samples;
  for (const Shape& shape : kSampleShapes) {
    samples.push_back({.operands = {F32(shape), F32(shape), F32({}, 0.25, 1)}});
  }
  return samples;
}

std::vector<Sample<NoAttributes, ClipScalars>> ClipSamples() {
  return {{.operands = {F32({}, 2, 9)}}, {.operands = {F32({}, 0, 0.5)}}};
}

std::vector<Sample<>> AccumulateSamples() {
  return {{.operands = {F32({3, 5}), F32({3, 5})}}, {.operands = {F32({}), F32({})}}};
}

std::vector<Sample<>> AddAllSamples() {
  return {{.operands = {F32({3, 5}), F32({3, 5}), F32({3, 5})}},
          {.operands = {F32({}), F32({})}},
          {.operands = {F32({4})}}};
}

}  // namespace

constinit const Op<> kCountUpdate = {{
    .name = "count_update",
    .operands = "t s",
    .outputs = "t",
    .infer = InferCountUpdate,
    .rule = RuleCountUpdate,
    .in_place = "t",
    .samples = CountUpdateSamples,
}};
constinit const Op<NoAttributes, AdamWRatesScalars> kAdamWRates = {{
    .name = "adamw_rates",
    .operands = "t",
    .outputs = "r",
    .infer = InferAdamWRates,
    .rule = RuleAdamWRates,
    .samples = AdamWRatesSamples,
}};
constinit const Op<NoAttributes, AdamWScalars> kAdamWUpdate = {{
    .name = "adamw_update",
    .operands = "p m v g s r",
    .outputs = "p m v",
    .infer = InferAdamW,
    .rule = RuleAdamW,
    .in_place = "p m v",
    .samples = AdamWSamples,
}};
constinit const Op<NoAttributes, SgdScalars> kSgdUpdate = {{
    .name = "sgd_update",
    .operands = "p g s",
    .outputs = "p",
    .infer = InferSgd,
    .rule = RuleUpdate<0>,
    .in_place = "p",
    .samples = SgdSamples,
}};
constinit const Op<NoAttributes, MomentumScalars> kMomentumUpdate = {{
    .name = "momentum_update",
    .operands = "p b g s",
    .outputs = "p b",
    .infer = InferMomentum,
    .rule = RuleUpdate<1>,
    .in_place = "p b",
    .samples = StateSamples<MomentumScalars>,
}};
constinit const Op<NoAttributes, MomentumScalars> kNesterovUpdate = {{
    .name = "nesterov_update",
    .operands = "p b g s",
    .outputs = "p b",
    .infer = InferNesterov,
    .rule = RuleUpdate<1>,
    .in_place = "p b",
    .samples = StateSamples<MomentumScalars>,
}};
constinit const Op<NoAttributes, LionScalars> kLionUpdate = {{
    .name = "lion_update",
    .operands = "p m g s",
    .outputs = "p m",
    .infer = InferLion,
    .rule = RuleUpdate<1>,
    .in_place = "p m",
    .samples = StateSamples<LionScalars>,
}};
constinit const Op<> kLerpUpdate = {{
    .name = "lerp_update",
    .operands = "m x w",
    .outputs = "m",
    .infer = InferLerp,
    .rule = RuleUpdate<0>,
    .in_place = "m",
    .samples = LerpSamples,
}};
constinit const Op<NoAttributes, ClipScalars> kClipFactor = {{
    .name = "clip_factor",
    .operands = "x",
    .outputs = "s",
    .infer = InferClipFactor,
    .rule = RuleClipFactor,
    .samples = ClipSamples,
}};
constinit const Op<> kAccumulate = {{
    .name = "accumulate",
    .operands = "acc x",
    .outputs = "acc",
    .infer = InferAccumulate,
    .rule = RuleAccumulate,
    .linear = "{acc x}",
    .in_place = "acc",
    .samples = AccumulateSamples,
}};

constinit const Op<> kAddAll = {{
    .name = "add_all",
    .operands = "x...",
    .infer = InferAddAll,
    .rule = RuleAddAll,
    .linear = "{x...}",
    .backward = BackwardAddAll,
    .samples = AddAllSamples,
}};

}  // namespace weft
