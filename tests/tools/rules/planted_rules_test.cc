// The validator must catch planted wrong rules: kernels and rules that do not fit, each in another way. The
// kernels are right on one rank; what is wrong is what they, or their rules, promise about pieces.

#include "tests/tools/rules/planted_rules.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using Types = absl::Span<const TensorType>;
using Call = KernelCall<NoAttributes, NoScalars>;
using Context = GradContext<NoAttributes, NoScalars>;

std::vector<double> In(const Call& call, int operand) { return call.inputs[operand].ToVector<double>(); }
void Out(const Call& call, const std::vector<double>& values) {
  CopyTensor(Tensor::FromValues<double>(call.outputs[0].shape(), values), call.outputs[0]);
}
std::vector<Sample<>> Rows() { return {{.operands = {{{DType::kF32, {3, 5}}}}}}; }
std::vector<Sample<>> Vectors() { return {{.operands = {{{DType::kF32, {5}}}}}}; }

// 1. The bias of a product that is split where it sums, added once a rank.
constinit const Op<> kBiasReplicated = {{
    .name = "bias_replicated",
    .operands = "x w b",
    .infer = InferOf<kToyLinear>,
    .rule = RuleOf<kToyLinear>,
    .samples = SamplesOf<kToyLinear>,
}};
// 2. A bias that stays whole beside a Partial product.
constinit const Op<> kBiasLeftOut = {{
    .name = "bias_left_out",
    .operands = "x w b",
    .infer = InferOf<kToyLinear>,
    .rule = Fixed<"m k!, k! n, n -> m n">,
    .linear = "{x}{w}",
    .samples = SamplesOf<kToyLinear>,
}};
// 3. A sum taken for a product: one operand Partial, the other added once a rank.
constinit const Op<> kAddAlone = {{
    .name = "add_alone",
    .operands = "a b",
    .infer = InferOf<kToyAdd>,
    .rule = RuleOf<kToyAdd>,
    .linear = "{a}{b}",
    .samples = SamplesOf<kToyAdd>,
}};
// 4. A quotient taken for a sum.
constinit const Op<> kDivideJoint = {{
    .name = "divide_joint",
    .operands = "x s",
    .infer = InferOf<kToyRowDivide>,
    .rule = RuleOf<kToyRowDivide>,
    .linear = "{x s}",
    .samples = SamplesOf<kToyRowDivide>,
}};
// 5. Terms of changing signs through a kink.
constinit const Op<> kReluLinear = {{
    .name = "relu_linear",
    .operands = "x",
    .infer = InferOf<kToyRelu>,
    .rule = RuleOf<kToyRelu>,
    .linear = "{x}",
    .samples = SamplesOf<kToyRelu>,
}};
// 6. Linear in one output and not in the other.
constinit const Op<> kMomentsLinear = {{
    .name = "moments_linear",
    .operands = "x",
    .outputs = "sum squares",
    .infer = InferOf<kToyMoments>,
    .rule = RuleOf<kToyMoments>,
    .linear = "{x}",
    .samples = SamplesOf<kToyMoments>,
}};
// 7. A norm over a dim that is not marked whole.
constinit const Op<> kNormSplit = {{
    .name = "norm_split",
    .operands = "x",
    .infer = InferOf<kToyNormalize>,
    .rule = Fixed<"b d -> b d">,
    .samples = SamplesOf<kToyNormalize>,
}};
// 8. Running sums, likewise: the first rank is right.
constinit const Op<> kCumulateSplit = {{
    .name = "cumulate_split",
    .operands = "x",
    .infer = InferOf<kToyRowCumulate>,
    .rule = Fixed<"b d -> b d">,
    .samples = SamplesOf<kToyRowCumulate>,
}};
// 9. and 10. A reduction under the name of another.
constinit const Op<> kMaxAsSum = {{
    .name = "max_as_sum",
    .operands = "x",
    .infer = InferOf<kToyRowMax>,
    .rule = Fixed<"b d -> b">,
    .samples = SamplesOf<kToyRowMax>,
}};
constinit const Op<> kSumAsMax = {{
    .name = "sum_as_max",
    .operands = "x",
    .infer = InferOf<kToyRowSum>,
    .rule = Fixed<"b d -> max: b">,
    .samples = SamplesOf<kToyRowSum>,
}};

// 11. A lookup that takes every piece of the table for its beginning.
void UnmaskedEmbedding(const Call& call) {
  std::vector<ShardBox> boxes(call.input_boxes.begin(), call.input_boxes.end());
  boxes[1].offset[0] = 0;
  KernelCallBase shifted = call;
  shifted.input_boxes = boxes;
  kToyEmbedding.Invoke(FindKernel(kToyEmbedding, DeviceType::kCpu), shifted);
}
constinit const Op<> kUnmasked = {{
    .name = "unmasked",
    .operands = "ids w",
    .infer = InferOf<kToyEmbedding>,
    .rule = RuleOf<kToyEmbedding>,
    .linear = "{w}",
    .samples = SamplesOf<kToyEmbedding>,
}};

// 12. A lookup that masks by a factor of zero: 0 * inf where another rank owns the row.
void ZeroMaskedEmbedding(const Call& call) {
  const std::vector<double> ids = In(call, 0);
  const std::vector<double> table = In(call, 1);
  const ShardBox& box = call.input_boxes[1];
  const int64_t d = box.shape[1];
  std::vector<double> y(ids.size() * d, 0.0);
  for (size_t i = 0; i < ids.size() && box.shape[0] > 0; ++i) {
    const int64_t row = static_cast<int64_t>(ids[i]) - box.offset[0];
    const double mask = row >= 0 && row < box.shape[0] ? 1 : 0;
    const int64_t nearest = std::clamp<int64_t>(row, 0, box.shape[0] - 1);
    for (int64_t j = 0; j < d; ++j) y[i * d + j] = mask * table[nearest * d + j];
  }
  Out(call, y);
}
constinit const Op<> kZeroMasked = {{
    .name = "zero_masked",
    .operands = "ids w",
    .infer = InferOf<kToyEmbedding>,
    .rule = RuleOf<kToyEmbedding>,
    .samples = SamplesOf<kToyEmbedding>,
}};

// 13. A transpose whose rule pairs the wrong dims, where types alone cannot show it.
TensorTypes InferSquare(Types types, const NoAttributes&) {
  WEFT_REQUIRE(types[0].shape[0] == types[0].shape[1], "wrong_dims: expected a square");
  return {types[0]};
}
constinit const Op<> kWrongDims = {{
    .name = "wrong_dims",
    .operands = "x",
    .infer = InferSquare,
    .rule = Fixed<"a b -> a b">,
    .is_view = true,
    .samples = +[]() -> std::vector<Sample<>> {
      return {{.operands = {{{DType::kF32, {4, 4}}}}}};
    },
}};

// 14. A decomposition that computes something else.
Values DoubledDecomposition(Emitter& emitter, absl::Span<const Value> x, const NoAttributes&,
                            const NoScalars&) {
  return {emitter.Emit(kToyAdd, {x[0], x[0]})};
}
constinit const Op<> kWrongDecomposition = {{
    .name = "wrong_decomposition",
    .operands = "x",
    .infer = InferOf<kToyNormalize>,
    .rule = RuleOf<kToyNormalize>,
    .decomposition = DoubledDecomposition,
    .samples = SamplesOf<kToyNormalize>,
}};

// 15. A mean that divides by what the rank has.
void LocalMean(const Call& call) {
  const std::vector<double> x = In(call, 0);
  const int64_t d = call.inputs[0].shape()[1];
  std::vector<double> y(call.inputs[0].shape()[0], 0.0);
  for (size_t i = 0; i < x.size(); ++i) y[i / d] += x[i] / static_cast<double>(d);
  Out(call, y);
}
constinit const Op<> kLocalMean = {{
    .name = "local_mean",
    .operands = "x",
    .infer = InferOf<kToyRowSum>,
    .rule = Fixed<"b d -> b">,
    .samples = Rows,
}};

// 16. The index of the largest element, as if it were the element.
void ArgMax(const Call& call) {
  const std::vector<double> x = In(call, 0);
  const int64_t d = call.inputs[0].shape()[1];
  std::vector<double> y(call.inputs[0].shape()[0], -1.0);
  for (size_t row = 0; row < y.size() && d > 0; ++row) {
    const auto begin = x.begin() + static_cast<int64_t>(row) * d;
    const int64_t offset = call.input_boxes[0].offset[1];
    y[row] = static_cast<double>(offset + (std::max_element(begin, begin + d) - begin));
  }
  Out(call, y);
}
constinit const Op<> kArgMaxAsMax = {{
    .name = "argmax_as_max",
    .operands = "x",
    .infer = InferOf<kToyRowSum>,
    .rule = Fixed<"b d -> max: b">,
    .samples = Rows,
}};

// 17. A sum of neighbours, which needs those of the next rank.
void Neighbours(const Call& call) {
  const std::vector<double> x = In(call, 0);
  std::vector<double> y = x;
  for (size_t i = 1; i < y.size(); ++i) y[i] += x[i - 1];
  for (size_t i = 0; i + 1 < y.size(); ++i) y[i] += x[i + 1];
  Out(call, y);
}
constinit const Op<> kHaloSplit = {{
    .name = "halo_split",
    .operands = "x",
    .infer = InferOf<kToyRelu>,
    .rule = Fixed<"n -> n">,
    .linear = "{x}",
    .samples = Vectors,
}};

// 18. x + 1, which is not linear though its graph is a line.
void AddOne(const Call& call) {
  std::vector<double> y = In(call, 0);
  for (double& value : y) value += 1;
  Out(call, y);
}
constinit const Op<> kAffineLinear = {{
    .name = "affine_linear",
    .operands = "x",
    .infer = InferOf<kToyRelu>,
    .rule = Fixed<"n -> n">,
    .linear = "{x}",
    .samples = Vectors,
}};

// 19. The place in the piece instead of the place in the whole.
void LocalPlaces(const Call& call) {
  std::vector<double> y = In(call, 0);
  for (size_t i = 0; i < y.size(); ++i) y[i] += static_cast<double>(i);
  Out(call, y);
}
constinit const Op<> kBoxIgnored = {{
    .name = "box_ignored",
    .operands = "x",
    .infer = InferOf<kToyRelu>,
    .rule = Fixed<"n -> n">,
    .samples = Vectors,
}};

// 20. The largest of nothing is 0: wrong on a rank whose piece is empty.
void MaxFromFirst(const Call& call) {
  const std::vector<double> x = In(call, 0);
  const int64_t d = call.inputs[0].shape()[1];
  std::vector<double> y(call.inputs[0].shape()[0], 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    double& best = y[i / d];
    if (i % d == 0 || std::isnan(x[i]) || x[i] > best) best = std::isnan(best) && i % d > 0 ? best : x[i];
  }
  Out(call, y);
}
constinit const Op<> kMaxOfNothing = {{
    .name = "max_of_nothing",
    .operands = "x",
    .infer = InferOf<kToyRowMax>,
    .rule = RuleOf<kToyRowMax>,
    .samples = SamplesOf<kToyRowMax>,
}};

// 21. x + b by rows, whose gradient of b is a sum that calls itself a maximum: no check of values on one
// rank can see it.
void AddRow(const Call& call) {
  std::vector<double> y = In(call, 0);
  const std::vector<double> b = In(call, 1);
  for (size_t i = 0; i < y.size(); ++i) y[i] += b[i % b.size()];
  Out(call, y);
}
void SumOfRows(const Call& call) {
  const std::vector<double> x = In(call, 0);
  std::vector<double> y(call.outputs[0].num_elements(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) y[i % y.size()] += x[i];
  Out(call, y);
}
constinit const Op<> kSumOfRows = {{
    .name = "planted_sum_of_rows",
    .operands = "x",
    .infer = +[](Types types, const NoAttributes&) -> TensorTypes {
      return {{types[0].dtype, {types[0].shape[1]}}};
    },
    .rule = Fixed<"b d -> max: d">,
    .samples = Rows,
}};
constinit const Op<> kGradientNotPartial = {
    {.name = "gradient_not_partial",
     .operands = "x b",
     .infer = InferOf<kToyRelu>,
     .rule = Fixed<"b d, d -> b d">,
     .linear = "{x b}",
     .backward =
         +[](Context& context) {
           if (context.Wants(0)) context.SetGrad(0, context.grad());
           if (context.Wants(1)) context.SetGrad(1, context.Emit(kSumOfRows, {context.grad()}));
         },
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{{DType::kF32, {3, 5}}}, {{DType::kF32, {5}}}}}};
     }}};

// 22. A rule that does not say what the types are.
constinit const Op<> kNoSuchDim = {{
    .name = "no_such_dim",
    .operands = "x",
    .infer = InferOf<kToyRelu>,
    .rule = Fixed<"a b c -> a b c">,
    .samples = Rows,
}};

const RegisterKernel kRegistered[] = {
    {kBiasReplicated, DeviceType::kCpu, KernelOf<kToyLinear>},
    {kBiasLeftOut, DeviceType::kCpu, KernelOf<kToyLinear>},
    {kAddAlone, DeviceType::kCpu, KernelOf<kToyAdd>},
    {kDivideJoint, DeviceType::kCpu, KernelOf<kToyRowDivide>},
    {kReluLinear, DeviceType::kCpu, KernelOf<kToyRelu>},
    {kMomentsLinear, DeviceType::kCpu, KernelOf<kToyMoments>},
    {kNormSplit, DeviceType::kCpu, KernelOf<kToyNormalize>},
    {kCumulateSplit, DeviceType::kCpu, KernelOf<kToyRowCumulate>},
    {kMaxAsSum, DeviceType::kCpu, KernelOf<kToyRowMax>},
    {kSumAsMax, DeviceType::kCpu, KernelOf<kToyRowSum>},
    {kUnmasked, DeviceType::kCpu, UnmaskedEmbedding},
    {kZeroMasked, DeviceType::kCpu, ZeroMaskedEmbedding},
    {kWrongDims, DeviceType::kCpu, KernelOf<kToyTranspose>},
    {kWrongDecomposition, DeviceType::kCpu, KernelOf<kToyNormalize>},
    {kLocalMean, DeviceType::kCpu, LocalMean},
    {kArgMaxAsMax, DeviceType::kCpu, ArgMax},
    {kHaloSplit, DeviceType::kCpu, Neighbours},
    {kAffineLinear, DeviceType::kCpu, AddOne},
    {kBoxIgnored, DeviceType::kCpu, LocalPlaces},
    {kMaxOfNothing, DeviceType::kCpu, MaxFromFirst},
    {kSumOfRows, DeviceType::kCpu, SumOfRows},
    {kGradientNotPartial, DeviceType::kCpu, AddRow},
    {kNoSuchDim, DeviceType::kCpu, KernelOf<kToyRelu>},
};

class PlantedRulesTest : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedRulesTest, IsCaught) { ExpectCaught(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Wrong, PlantedRulesTest,
    ::testing::ValuesIn(std::vector<Planted>{
        {&kBiasReplicated, "one axis", "on a=2: [-, a], [a, -], [-] -> [-, -] P{a}", "output 0: 6 of 6"},
        {&kBiasLeftOut, "one axis", "on a=2: [-, -] P{a}, [-, -], [-] -> [-, -] P{a}", "output 0"},
        {&kAddAlone, "one axis", "on a=2: [-, -] P{a}, [-, -] -> [-, -] P{a}", "output 0"},
        {&kDivideJoint, "one axis", "on a=2: [-, -] P{a}, [-] P{a} -> [-, -] P{a}", "output 0"},
        {&kReluLinear, "one axis", "on a=2: [-, -] P{a} -> [-, -] P{a}", "output 0"},
        {&kMomentsLinear, "one axis", "on a=2: [-, -] P{a} -> [-] P{a}, [-] P{a}", "output 1"},
        {&kNormSplit, "one axis", "on a=2: [-, a] -> [-, a]", "output 0"},
        {&kCumulateSplit, "one axis", "on a=2: [-, a] -> [-, a]", "output 0"},
        {&kMaxAsSum, "one axis", "on a=2: [-, a] -> [-] P{a}", "output 0: 5 of 5"},
        {&kSumAsMax, "one axis", "on a=2: [-, a] -> [-] P{a:max}", "output 0"},
        {&kUnmasked, "one axis", "on a=2: [-], [a, -] -> [-, -] P{a}", "output 0"},
        {&kZeroMasked, "one axis", "[-], [a, -] -> [-, -] P{a}", "got nan, expected"},
        {&kWrongDims, "one axis", "on a=2: [a, -] -> [a, -]", "should be f64[2, 4], is f64[4, 2]"},
        {&kWrongDecomposition, "call", "on a=2, b=2: call", "output 0"},
        {&kLocalMean, "one axis", "on a=2: [-, a] -> [-] P{a}", "output 0: 3 of 3"},
        {&kArgMaxAsMax, "one axis", "on a=2: [-, a] -> [-] P{a:max}", "output 0"},
        {&kHaloSplit, "one axis", "on a=2: [a] -> [a]", "output 0: 2 of 5"},
        {&kAffineLinear, "one axis", "on a=2: [-] P{a} -> [-] P{a}", "output 0: 5 of 5"},
        {&kBoxIgnored, "one axis", "on a=2: [a] -> [a]", "output 0: 2 of 5"},
        {&kMaxOfNothing, "one axis", "[-, a] -> [-] P{a:max}", "got 0, expected -"},
        {&kSumOfRows, "one axis", "on a=2: [a, -] -> [-] P{a:max}", "output 0"},
        {&kGradientNotPartial, "gradient", "gradient of the call", "gradient of operand 1"},
        {&kNoSuchDim, "declaration", "", "'a b c' has 3 dims, the type is f64[3, 5]"}}),
    [](const auto& info) { return std::string(info.param.op->name()); });

}  // namespace
}  // namespace weft
