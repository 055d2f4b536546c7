#include "ops/creation/random.h"

#include <string>
#include <vector>

#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

TensorTypes InferCreation(const char* name, const CreationAttributes& attributes, bool floating) {
  const TensorType type = {attributes.dtype, attributes.shape};
  for (int64_t extent : attributes.shape) {
    WEFT_REQUIRE(extent >= 0, name, ": negative extent in ", type.ToString());
  }
  WEFT_REQUIRE(!floating || IsFloating(type.dtype), name, ": expected a floating dtype, got ",
               type.ToString());
  return {type};
}

TensorTypes InferUniform(Operands, const CreationAttributes& attributes) {
  return InferCreation("random_uniform", attributes, /*floating=*/true);
}

TensorTypes InferNormal(Operands, const CreationAttributes& attributes) {
  return InferCreation("random_normal", attributes, /*floating=*/true);
}

TensorTypes InferBernoulli(Operands, const CreationAttributes& attributes) {
  return InferCreation("bernoulli", attributes, /*floating=*/false);
}

TensorTypes InferBernoulliOf(Operands operands, const NoAttributes&) {
  WEFT_REQUIRE(IsFloating(operands[0].dtype), "bernoulli_of: expected floating probabilities, got ",
               operands[0].ToString());
  return {operands[0]};
}

TensorTypes InferFill(Operands, const CreationAttributes& attributes) {
  return InferCreation("fill", attributes, /*floating=*/false);
}

TensorTypes InferArange(Operands, const CreationAttributes& attributes) {
  WEFT_REQUIRE(attributes.shape.ndim() == 1, "arange: expected one dim, got shape ",
               attributes.shape.ToString());
  return InferCreation("arange", attributes, /*floating=*/false);
}

// "-> f0 f1".
std::string RuleCreation(Operands, const CreationAttributes& attributes) {
  return ElementwiseRule(/*num_operands=*/0, /*num_outputs=*/1, attributes.shape.ndim());
}

TensorTypes InferDropout(Operands operands, const NoAttributes&) {
  WEFT_REQUIRE(IsFloating(operands[0].dtype), "dropout: expected a floating dtype, got ",
               operands[0].ToString());
  return {operands[0]};
}

// Of one operand.
std::string RuleSame(Operands operands, const NoAttributes&) {
  return ElementwiseRule(/*num_operands=*/1, /*num_outputs=*/1, operands[0].ndim());
}

void BackwardDropout(GradContext<NoAttributes, DropoutScalars>& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kDropout, {context.grad()}, {}, context.scalars()));
}

// Shapes whose pieces start inside a block of four words, too.
template <class R>
std::vector<Sample<CreationAttributes, R>> CreationSamples() {
  std::vector<Sample<CreationAttributes, R>> samples;
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 7}, Shape{1, 9}, Shape{}}) {
    samples.push_back({.operands = {}, .attributes = {.shape = shape}});
    if constexpr (requires(R scalars) { scalars.batch_offset; }) samples.back().scalars.batch_offset = 5;
  }
  return samples;
}

std::vector<Sample<CreationAttributes, ArangeScalars>> ArangeSamples() {
  return {{.operands = {}, .attributes = {.shape = {7}}, .scalars = {.start = 2, .step = 0.5}},
          {.operands = {}, .attributes = {.shape = {1}}}};
}

std::vector<Sample<NoAttributes, KeyScalars>> BernoulliOfSamples() {
  std::vector<Sample<NoAttributes, KeyScalars>> samples;
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 7}, Shape{}}) {
    samples.push_back(
        {.operands = {{{DType::kF32, shape}, 0, 1}}, .scalars = {.key = {.seed = 3}, .batch_offset = 5}});
  }
  return samples;
}

std::vector<Sample<NoAttributes, DropoutScalars>> DropoutSamples() {
  std::vector<Sample<NoAttributes, DropoutScalars>> samples;
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 7}, Shape{1, 9}}) {
    samples.push_back({.operands = {{.type = {DType::kF32, shape}}},
                       .scalars = {.key = {.seed = 3}, .rate = 0.4, .batch_offset = 5}});
  }
  return samples;
}

}  // namespace

int64_t FirstRandomIndex(const Shape& global, int64_t batch_offset) {
  return global.ndim() == 0 ? 0 : batch_offset * ContiguousStrides(global)[0];
}

constinit const Op<CreationAttributes, UniformScalars> kRandomUniform = {
    {.name = "random_uniform",
     .operands = "",
     .infer = InferUniform,
     .rule = RuleCreation,
     .samples = CreationSamples<UniformScalars>}};
constinit const Op<CreationAttributes, NormalScalars> kRandomNormal = {
    {.name = "random_normal",
     .operands = "",
     .infer = InferNormal,
     .rule = RuleCreation,
     .samples = CreationSamples<NormalScalars>}};
constinit const Op<CreationAttributes, BernoulliScalars> kBernoulli = {
    {.name = "bernoulli",
     .operands = "",
     .infer = InferBernoulli,
     .rule = RuleCreation,
     .samples = CreationSamples<BernoulliScalars>}};
constinit const Op<NoAttributes, KeyScalars> kBernoulliOf = {{
    .name = "bernoulli_of",
    .operands = "p",
    .infer = InferBernoulliOf,
    .rule = RuleSame,
    .samples = BernoulliOfSamples,
}};
constinit const Op<CreationAttributes, FillScalars> kFill = {{
    .name = "fill",
    .operands = "",
    .infer = InferFill,
    .rule = RuleCreation,
    .samples = CreationSamples<FillScalars>,
}};
constinit const Op<CreationAttributes, ArangeScalars> kArange = {
    {.name = "arange", .operands = "", .infer = InferArange, .rule = RuleCreation, .samples = ArangeSamples}};
constinit const Op<NoAttributes, DropoutScalars> kDropout = {{
    .name = "dropout",
    .operands = "x",
    .infer = InferDropout,
    .rule = RuleSame,
    .linear = "{x}",
    .backward = BackwardDropout,
    .samples = DropoutSamples,
}};

}  // namespace weft
