#include "ops/contract.h"

#include "absl/strings/str_cat.h"
#include "ops/reduce.h"

namespace weft {
namespace {

// "w f32[5, 7] (\"dv\")".
std::string Named(absl::string_view name, const TensorType& type, const DimLabels& labels) {
  return absl::StrCat(name, " ", type.ToString(), " (\"", labels.text(), "\")");
}

absl::string_view Letter(const char& letter) { return {&letter, 1}; }

void RequireLabels(absl::string_view op, absl::string_view name, const TensorType& type,
                   const DimLabels& labels) {
  WEFT_REQUIRE(IsFloating(type.dtype), op, ": expected floating operands, got ", name, " ", type.ToString());
  WEFT_REQUIRE(labels.size() == type.ndim(), op, ": ", name, " is ", type.ToString(), ", its labels \"",
               labels.text(), "\" name ", labels.size(), " dims");
}

// Every letter of `labels` must be in the result or be summed with the other operand's.
void RequireUsed(absl::string_view op, absl::string_view name, const DimLabels& labels,
                 const DimLabels& other, const DimLabels& y) {
  for (const char& letter : labels) {
    WEFT_REQUIRE(other.Has(letter) || y.Has(letter), op, ": dim '", Letter(letter), "' is in ", name, " \"",
                 labels.text(), "\" alone, neither in the other operand \"", other.text(), "\" nor in y \"",
                 y.text(), "\": sum it away first, or name it in y");
  }
}

TensorTypes InferProduct(absl::string_view op, absl::Span<const TensorType> operands,
                         const ContractAttributes& a) {
  const TensorType& x = operands[0];
  const TensorType& w = operands[1];
  RequireLabels(op, "x", x, a.x);
  RequireLabels(op, "w", w, a.w);
  WEFT_REQUIRE(x.dtype == w.dtype, op, ": x and w must have one dtype, got ", x.ToString(), " and ",
               w.ToString(), ": cast one of them");
  RequireUsed(op, "x", a.x, a.w, a.y);
  RequireUsed(op, "w", a.w, a.x, a.y);
  for (const char& letter : a.x) {
    const int w_dim = a.w.Find(letter);
    if (w_dim < 0) continue;
    const int64_t x_extent = x.shape[a.x.Find(letter)];
    WEFT_REQUIRE(x_extent == w.shape[w_dim], op, ": dim '", Letter(letter), "' is ", x_extent, " in ",
                 Named("x", x, a.x), " and ", w.shape[w_dim], " in ", Named("w", w, a.w));
  }
  TensorType y = {x.dtype, {}};
  for (const char& letter : a.y) {
    const int x_dim = a.x.Find(letter);
    const int w_dim = a.w.Find(letter);
    WEFT_REQUIRE(x_dim >= 0 || w_dim >= 0, op, ": dim '", Letter(letter), "' of y \"", a.y.text(),
                 "\" is neither in x \"", a.x.text(), "\" nor in w \"", a.w.text(), "\"");
    y.shape.push_back(x_dim >= 0 ? x.shape[x_dim] : w.shape[w_dim]);
  }
  return {y};
}

TensorTypes Infer(absl::Span<const TensorType> operands, const ContractAttributes& a) {
  return InferProduct("contract", operands, a);
}

std::string Factors(const DimLabels& labels) {
  if (labels.size() == 0) return "()";
  std::string text;
  for (const char& letter : labels) absl::StrAppend(&text, text.empty() ? "" : " ", Letter(letter));
  return text;
}

std::string Rule(absl::Span<const TensorType>, const ContractAttributes& a) {
  return absl::StrCat(Factors(a.x), ", ", Factors(a.w), " -> ", Factors(a.y));
}

// The letters of a bias of `ndim` dims.
DimLabels BiasLabels(const ContractAttributes& a, int ndim) {
  DimLabels labels;
  for (int dim = a.y.size() - ndim; dim < a.y.size(); ++dim) labels.push_back(a.y[dim]);
  return labels;
}

TensorTypes InferLinear(absl::Span<const TensorType> operands, const ContractAttributes& a) {
  const TensorTypes types = InferProduct("linear", operands.first(2), a);
  const TensorType& y = types[0];
  const TensorType& b = operands[2];
  bool fits = b.dtype == y.dtype && b.ndim() <= y.ndim();
  for (int dim = 0; fits && dim < b.ndim(); ++dim) {
    fits = b.shape[dim] == y.shape[y.ndim() - b.ndim() + dim];
  }
  WEFT_REQUIRE(fits, "linear: expected a bias of the last dims of ", y.ToString(), ", got ", b.ToString());
  for (const char& letter : BiasLabels(a, b.ndim())) {
    WEFT_REQUIRE(a.w.Has(letter) && !a.x.Has(letter), "linear: dim '", Letter(letter), "' of the bias ",
                 b.ToString(), " is none of w's own: x is \"", a.x.text(), "\", w \"", a.w.text(), "\"");
  }
  return types;
}

std::string RuleLinear(absl::Span<const TensorType> operands, const ContractAttributes& a) {
  return absl::StrCat(Factors(a.x), ", ", Factors(a.w), ", ", Factors(BiasLabels(a, operands[2].ndim())),
                      " -> ", Factors(a.y));
}

void Backward(GradContext<ContractAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  if (!dy.defined()) return;
  const ContractAttributes& a = ctx.attributes();
  // A letter of x is in y or in w, so each gradient is again a contraction of the other two.
  if (ctx.Wants(0)) ctx.SetGrad(0, ctx.Emit(kContract, {dy, ctx.saved("w")}, {.x = a.y, .w = a.w, .y = a.x}));
  if (ctx.Wants(1)) ctx.SetGrad(1, ctx.Emit(kContract, {ctx.saved("x"), dy}, {.x = a.x, .w = a.y, .y = a.w}));
}

void BackwardLinear(GradContext<ContractAttributes, NoScalars>& ctx) {
  Backward(ctx);
  const Value dy = ctx.grad();
  if (!dy.defined() || !ctx.Wants(2)) return;
  const Shape& shape = ctx.operand_type(2).shape;
  ctx.SetGrad(2, ctx.TypeOf(dy).shape == shape ? dy : ctx.Emit(kSumTo, {dy}, {.shape = shape}));
}

std::vector<Sample<ContractAttributes>> Samples() {
  return {
      {{{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {5, 3, 2, 2}}}}, {"bsd", "dthe", "bsthe"}},
      {{{{DType::kF32, {5, 4}}}, {{DType::kF32, {4, 3}}}}, {"mk", "kn", "mn"}},
      {{{{DType::kF32, {3, 1, 4}}}, {{DType::kF32, {3, 5, 4}}}}, {"bmk", "bnk", "bmn"}},
      {{{{DType::kF32, {2, 3, 4}}}, {{DType::kF32, {5, 4}}}}, {"bsd", "vd", "vbs"}},
      {{{{DType::kF32, {2, 3, 4}}}, {{DType::kF32, {4, 2, 3}}}}, {"bsd", "dhe", "bhse"}},
      {{{{DType::kF32, {2, 3, 2, 3}}}, {{DType::kF32, {2, 3, 5}}}}, {"bshe", "hed", "bsd"}},
      {{{{DType::kF32, {3}}}, {{DType::kF32, {2}}}}, {"m", "n", "mn"}},
      {{{{DType::kF32, {5}}}, {{DType::kF32, {5}}}}, {"k", "k", ""}},
      {{{{DType::kF32, {2, 3}}}, {{DType::kF32, {3, 2}}}}, {"ab", "ba", "ba"}},
      {{{{DType::kF32, {}}}, {{DType::kF32, {3}}}}, {"", "n", "n"}},
  };
}

std::vector<Sample<ContractAttributes>> LinearSamples() {
  return {
      {{{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {5, 3, 2, 2}}}, {{DType::kF32, {3, 2, 2}}}},
       {"bsd", "dthe", "bsthe"}},
      {{{{DType::kF32, {5, 4}}}, {{DType::kF32, {4, 3}}}, {{DType::kF32, {3}}}}, {"mk", "kn", "mn"}},
      {{{{DType::kF32, {2, 3, 4}}}, {{DType::kF32, {5, 4}}}, {{DType::kF32, {5}}}}, {"bsd", "vd", "bsv"}},
      {{{{DType::kF32, {2, 3, 2, 3}}}, {{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {5}}}},
       {"bshe", "hed", "bsd"}},
      {{{{DType::kF32, {4}}}, {{DType::kF32, {4, 3}}}, {{DType::kF32, {3}}}}, {"k", "kn", "n"}},
      {{{{DType::kF32, {3, 4}}}, {{DType::kF32, {4, 2, 3}}}, {{DType::kF32, {3}}}}, {"mk", "kon", "mon"}},
  };
}

}  // namespace

constinit const Op<ContractAttributes> kContract = {{.name = "contract",
                                                     .operands = "x w",
                                                     .infer = Infer,
                                                     .rule = Rule,
                                                     .linear = "{x}{w}",
                                                     .saves = "x w",
                                                     .backward = Backward,
                                                     .samples = Samples}};

constinit const Op<ContractAttributes> kLinear = {{.name = "linear",
                                                   .operands = "x w b",
                                                   .infer = InferLinear,
                                                   .rule = RuleLinear,
                                                   .linear = "{x b}{w b}",
                                                   .saves = "x w",
                                                   .backward = BackwardLinear,
                                                   .samples = LinearSamples}};

}  // namespace weft
