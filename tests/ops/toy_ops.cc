#include "tests/ops/toy_ops.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

using Samples = std::vector<Sample<>>;
using Types = absl::Span<const TensorType>;
using NoContext = GradContext<NoAttributes, NoScalars>;

TensorType F32(Shape shape) { return {DType::kF32, shape}; }

// The rule of an op that is always split alike: FixedRule<"b d -> b">.
template <size_t length>
struct RuleText {
  char text[length] = {};
  constexpr RuleText(const char (&from)[length]) { std::copy(from, from + length, text); }
};
template <RuleText rule, class A = NoAttributes>
std::string FixedRule(Types, const A&) {
  return rule.text;
}

template <int num_operands, int num_outputs = 1>
std::string Elementwise(Types types, const NoAttributes&) {
  return ElementwiseRule(num_operands, num_outputs, types[0].ndim());
}
TensorTypes LikeFirst(Types types, const NoAttributes&) { return {types[0]}; }

TensorTypes MatmulInfer(Types types, const ToyMatmulAttributes& a) {
  const int64_t m = types[0].shape[a.transpose_x ? 1 : 0];
  const int64_t n = types[1].shape[a.transpose_w ? 0 : 1];
  return {{types[0].dtype, {m, n}}};
}

std::string MatmulRule(Types, const ToyMatmulAttributes& a) {
  return absl::StrCat(a.transpose_x ? "k m" : "m k", ", ", a.transpose_w ? "n k" : "k n", " -> m n");
}

void MatmulBackward(GradContext<ToyMatmulAttributes, NoScalars>& context) {
  // For y = x w only; the transposed forms serve as its gradients.
  const Value dy = context.grad();
  if (context.Wants(0))
    context.SetGrad(0, context.Emit(kToyMatmul, {dy, context.saved("w")}, {.transpose_w = true}));
  if (context.Wants(1))
    context.SetGrad(1, context.Emit(kToyMatmul, {context.saved("x"), dy}, {.transpose_x = true}));
}

std::vector<Sample<ToyMatmulAttributes>> MatmulSamples() {
  return {{.operands = {{F32({3, 5})}, {F32({5, 2})}}}};
}

std::string SumRule(Types types, const NoAttributes&) {
  return ElementwiseRule(static_cast<int>(types.size()), 1, types[0].ndim());
}

TensorTypes RowsInfer(Types types, const NoAttributes&) { return {{types[0].dtype, {types[0].shape[0]}}}; }
TensorTypes MomentsInfer(Types types, const NoAttributes& a) {
  return {RowsInfer(types, a)[0], RowsInfer(types, a)[0]};
}

TensorTypes LinearGradInfer(Types types, const NoAttributes&) {
  const int64_t n = types[1].shape[1];
  return {{types[0].dtype, {types[0].shape[1], n}}, {types[0].dtype, {n}}};
}

Values NormalizeDecomposition(Emitter& emitter, absl::Span<const Value> x, const NoAttributes&,
                              const NoScalars&) {
  return {emitter.Emit(kToyRowDivide, {x[0], emitter.Emit(kToyRowSum, {x[0]})})};
}

TensorTypes EmbeddingInfer(Types types, const NoAttributes&) {
  return {{types[1].dtype, {types[0].shape[0], types[1].shape[1]}}};
}

TensorTypes EmbeddingGradInfer(Types types, const ToyRows& a) {
  return {{types[0].dtype, {a.rows, types[0].shape[1]}}};
}

}  // namespace

constinit const Op<ToyMatmulAttributes> kToyMatmul = {{
    .name = "toy_matmul",
    .operands = "x w",
    .infer = MatmulInfer,
    .rule = MatmulRule,
    .linear = "{x}{w}",
    .saves = "x w",
    .backward = MatmulBackward,
    .samples = MatmulSamples,
}};

constinit const Op<> kToyLinear = {
    {.name = "toy_linear",
     .operands = "x w b",
     .infer = +[](Types types, const NoAttributes&) { return MatmulInfer(types, {}); },
     .rule = FixedRule<"m k, k n, n -> m n">,
     .linear = "{x b}{w b}",
     .samples =
         +[] {
           return Samples{{.operands = {{F32({2, 5})}, {F32({5, 3})}, {F32({3})}}}};
         }}};

constinit const Op<> kToyAdd = {{
    .name = "toy_add",
    .operands = "a b",
    .infer = LikeFirst,
    .rule = Elementwise<2>,
    .linear = "{a b}",
    .backward =
        +[](NoContext& context) {
          for (int i : {0, 1}) {
            if (context.Wants(i)) context.SetGrad(i, context.grad());
          }
        },
    .samples =
        +[] {
          return Samples{{.operands = {{F32({3, 2})}, {F32({3, 2})}}}};
        },
}};

constinit const Op<> kToyRelu = {
    {.name = "toy_relu", .operands = "x", .infer = LikeFirst, .rule = Elementwise<1>, .samples = +[] {
       return Samples{{.operands = {{F32({5, 3})}}}};
     }}};

constinit const Op<> kToyRowSum = {{
    .name = "toy_row_sum",
    .operands = "x",
    .infer = RowsInfer,
    .rule = FixedRule<"b d -> b">,
    .linear = "{x}",
    .samples =
        +[] {
          return Samples{{.operands = {{F32({2, 5})}}}};
        },
}};

constinit const Op<> kToyRowMax = {{
    .name = "toy_row_max",
    .operands = "x",
    .infer = RowsInfer,
    .rule = FixedRule<"b d -> max: b">,
    .samples =
        +[] {
          return Samples{{.operands = {{F32({5, 4}), -2, -1}}}};
        },
}};

constinit const Op<> kToyRowDivide = {{
    .name = "toy_row_divide",
    .operands = "x s",
    .infer = LikeFirst,
    .rule = FixedRule<"b d, b -> b d">,
    .linear = "{x}",
    .samples =
        +[] {
          return Samples{{.operands = {{F32({3, 5})}, {F32({3}), 1, 2}}}};
        },
}};

constinit const Op<> kToyNormalize = {{
    .name = "toy_normalize",
    .operands = "x",
    .infer = LikeFirst,
    .rule = FixedRule<"b d! -> b d!">,
    .decomposition = NormalizeDecomposition,
    .samples =
        +[] {
          return Samples{{.operands = {{F32({3, 5}), 1, 2}}}};
        },
}};

constinit const Op<> kToyRowCumulate = {{
    .name = "toy_row_cumulate",
    .operands = "x",
    .infer = LikeFirst,
    .rule = FixedRule<"b d! -> b d!">,
    .linear = "{x}",
    .samples =
        +[] {
          return Samples{{.operands = {{F32({3, 5})}}}};
        },
}};

constinit const Op<> kToyEmbedding = {
    {.name = "toy_embedding",
     .operands = "ids w",
     .infer = EmbeddingInfer,
     .rule = FixedRule<"b, v@ d -> b d">,
     .linear = "{w}",
     .saves = "ids",
     .backward =
         +[](NoContext& context) {
           if (!context.Wants(1)) return;
           context.SetGrad(1, context.EmitLike(1, kToyEmbeddingGrad, {context.grad(), context.saved("ids")},
                                               {.rows = context.operand_type(1).shape[0]}));
         },
     .samples =
         +[] {
           return Samples{{.operands = {{{DType::kI64, {7}}, 0, 5}, {F32({5, 3})}}}};
         }}};

constinit const Op<ToyRows> kToyEmbeddingGrad = {
    {.name = "toy_embedding_grad",
     .operands = "dy ids",
     .infer = EmbeddingGradInfer,
     .rule = FixedRule<"b d, b -> v d", ToyRows>,
     .linear = "{dy}",
     .samples = +[]() -> std::vector<Sample<ToyRows>> {
       return {{.operands = {{F32({7, 3})}, {{DType::kI64, {7}}, 0, 5}}, .attributes = {.rows = 5}}};
     }}};

constinit const Op<> kToyTranspose = {{
    .name = "toy_transpose",
    .operands = "x",
    .infer = +[](Types t, const NoAttributes&) -> TensorTypes {
      return {{t[0].dtype, {t[0].shape[1], t[0].shape[0]}}};
    },
    .rule = FixedRule<"a b -> b a">,
    .linear = "{x}",
    .is_view = true,
    .samples =
        +[] {
          return Samples{{.operands = {{F32({3, 4})}}}};
        },
}};

constinit const Op<NoAttributes, ToyRate> kToySgd = {
    {.name = "toy_sgd",
     .operands = "p g",
     .outputs = "p",
     .infer = LikeFirst,
     .rule = Elementwise<2>,
     .in_place = "p",
     .samples = +[]() -> std::vector<Sample<NoAttributes, ToyRate>> {
       return {{.operands = {{F32({5, 2})}, {F32({5, 2})}}, .scalars = {.rate = 0.5}}};
     }}};

constinit const Op<ToyRows> kToyIota = {{
    .name = "toy_iota",
    .operands = "",
    .infer = +[](Types, const ToyRows& a) -> TensorTypes {
      return {{DType::kF64, {a.rows}}};
    },
    .rule = FixedRule<"-> a", ToyRows>,
    .samples =
        +[]() -> std::vector<Sample<ToyRows>> { return {{.operands = {}, .attributes = {.rows = 5}}}; },
}};

constinit const Op<> kToySum = {{
    .name = "toy_sum",
    .operands = "x...",
    .infer = LikeFirst,
    .rule = SumRule,
    .linear = "{x...}",
    .samples =
        +[] {
          return Samples{{.operands = {{F32({3})}, {F32({3})}, {F32({3})}}}};
        },
}};

constinit const Op<> kToyMoments = {{
    .name = "toy_moments",
    .operands = "x",
    .outputs = "sum squares",
    .infer = MomentsInfer,
    .rule = FixedRule<"b d -> b, b">,
    .samples =
        +[] {
          return Samples{{.operands = {{F32({3, 4})}}}};
        },
}};

constinit const Op<> kToyLinearGrad = {{
    .name = "toy_linear_grad",
    .operands = "x dy",
    .outputs = "dw db",
    .infer = LinearGradInfer,
    .rule = FixedRule<"m k, m n -> k n, n {1}">,
    .linear = "{x}{dy}",
    .samples =
        +[] {
          return Samples{{.operands = {{F32({5, 2})}, {F32({5, 3})}}}};
        },
}};

constinit const Op<> kToyReluLinear = {
    {.name = "toy_relu_linear",
     .operands = "x w b",
     .outputs = "y r",
     .infer = +[](Types types, const NoAttributes&) -> TensorTypes {
       return {MatmulInfer(types, {})[0], types[0]};
     },
     .rule = FixedRule<"m k, k n, n -> m n, m k {0}">,
     .linear = "{w b}",
     .samples =
         +[] {
           return Samples{{.operands = {{F32({2, 5})}, {F32({5, 3})}, {F32({3})}}}};
         }}};

}  // namespace weft
