#include "ops/product/contract.h"

#include "absl/strings/str_cat.h"
#include "ops/elementwise/elementwise.h"
#include "ops/reduce/reduce.h"

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

// The names of a product's operands and result, as in its op's lists.
struct Names {
  absl::string_view x = "x";
  absl::string_view w = "w";
  absl::string_view y = "y";
};

// Every letter of `labels`, of `name`, must be in the result or be summed with the other operand's.
void RequireUsed(absl::string_view op, absl::string_view name, const DimLabels& labels,
                 const DimLabels& other, const DimLabels& y, absl::string_view y_name) {
  for (const char& letter : labels) {
    WEFT_REQUIRE(other.Has(letter) || y.Has(letter), op, ": dim '", Letter(letter), "' is in ", name, " \"",
                 labels.text(), "\" alone, neither in the other operand \"", other.text(), "\" nor in ",
                 y_name, " \"", y.text(), "\": sum it away first, or name it in ", y_name);
  }
}

TensorTypes InferProduct(absl::string_view op, absl::Span<const TensorType> operands,
                         const ContractAttributes& a, const Names& names = {}) {
  const TensorType& x = operands[0];
  const TensorType& w = operands[1];
  RequireLabels(op, names.x, x, a.x);
  RequireLabels(op, names.w, w, a.w);
  WEFT_REQUIRE(x.dtype == w.dtype, op, ": ", names.x, " and ", names.w, " must have one dtype, got ",
               x.ToString(), " and ", w.ToString(), ": cast one of them");
  RequireUsed(op, names.x, a.x, a.w, a.y, names.y);
  RequireUsed(op, names.w, a.w, a.x, a.y, names.y);
  for (const char& letter : a.x) {
    const int w_dim = a.w.Find(letter);
    if (w_dim < 0) continue;
    const int64_t x_extent = x.shape[a.x.Find(letter)];
    WEFT_REQUIRE(x_extent == w.shape[w_dim], op, ": dim '", Letter(letter), "' is ", x_extent, " in ",
                 Named(names.x, x, a.x), " and ", w.shape[w_dim], " in ", Named(names.w, w, a.w));
  }
  TensorType y = {x.dtype, {}};
  for (const char& letter : a.y) {
    const int x_dim = a.x.Find(letter);
    const int w_dim = a.w.Find(letter);
    WEFT_REQUIRE(x_dim >= 0 || w_dim >= 0, op, ": dim '", Letter(letter), "' of ", names.y, " \"", a.y.text(),
                 "\" is neither in ", names.x, " \"", a.x.text(), "\" nor in ", names.w, " \"", a.w.text(),
                 "\"");
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

// The letters of a bias of `ndim` dims along the last of `labels`.
DimLabels BiasLabels(const DimLabels& labels, int ndim) {
  DimLabels last;
  for (int dim = labels.size() - ndim; dim < labels.size(); ++dim) last.push_back(labels[dim]);
  return last;
}

TensorTypes InferLinearNamed(absl::string_view op, absl::Span<const TensorType> operands,
                             const ContractAttributes& a, const Names& names) {
  const TensorTypes types = InferProduct(op, operands.first(2), a, names);
  const TensorType& y = types[0];
  const TensorType& b = operands[2];
  bool fits = b.dtype == y.dtype && b.ndim() <= y.ndim();
  for (int dim = 0; fits && dim < b.ndim(); ++dim) {
    fits = b.shape[dim] == y.shape[y.ndim() - b.ndim() + dim];
  }
  WEFT_REQUIRE(fits, op, ": expected a bias of the last dims of ", y.ToString(), ", got ", b.ToString());
  for (const char& letter : BiasLabels(a.y, b.ndim())) {
    WEFT_REQUIRE(a.w.Has(letter) && !a.x.Has(letter), op, ": dim '", Letter(letter), "' of the bias ",
                 b.ToString(), " is none of w's own: ", names.x, " is \"", a.x.text(), "\", w \"", a.w.text(),
                 "\"");
  }
  return types;
}

TensorTypes InferLinear(absl::Span<const TensorType> operands, const ContractAttributes& a) {
  return InferLinearNamed("linear", operands, a, {});
}

TensorTypes InferGeluLinear(absl::Span<const TensorType> operands, const ContractAttributes& a) {
  return {InferLinearNamed("gelu_linear", operands, a, {.x = "h"})[0], operands[0]};
}

TensorTypes InferWeightGrad(absl::Span<const TensorType> operands, const LinearWeightGradAttributes& a) {
  constexpr absl::string_view kOp = "linear_weight_grad";
  const TensorType& dy = operands[1];
  TensorTypes types = InferProduct(kOp, operands, a.labels, {.w = "dy", .y = "dw"});
  WEFT_REQUIRE(a.bias_ndim >= 0 && a.bias_ndim <= dy.ndim(), kOp,
               ": expected a bias of at most the dims of dy ", dy.ToString(), ", got one of ", a.bias_ndim);
  TensorType db = {dy.dtype, {}};
  for (int dim = dy.ndim() - a.bias_ndim; dim < dy.ndim(); ++dim) db.shape.push_back(dy.shape[dim]);
  for (const char& letter : BiasLabels(a.labels.w, a.bias_ndim)) {
    WEFT_REQUIRE(a.labels.y.Has(letter) && !a.labels.x.Has(letter), kOp, ": dim '", Letter(letter),
                 "' of the bias ", db.ToString(), " is none of dy's own: x is \"", a.labels.x.text(),
                 "\", dw \"", a.labels.y.text(), "\"");
  }
  types.push_back(db);
  return types;
}

TensorTypes InferGeluInputGrad(absl::Span<const TensorType> operands, const ContractAttributes& a) {
  constexpr absl::string_view kOp = "gelu_linear_input_grad";
  const TensorTypes types = InferProduct(kOp, operands.first(2), a, {.x = "dy", .y = "dh"});
  WEFT_REQUIRE(operands[2] == types[0], kOp, ": expected h of the product's type ", types[0].ToString(),
               ", got ", operands[2].ToString());
  return types;
}

std::string RuleLinear(absl::Span<const TensorType> operands, const ContractAttributes& a) {
  return absl::StrCat(Factors(a.x), ", ", Factors(a.w), ", ", Factors(BiasLabels(a.y, operands[2].ndim())),
                      " -> ", Factors(a.y));
}

std::string RuleGeluLinear(absl::Span<const TensorType> operands, const ContractAttributes& a) {
  return absl::StrCat(RuleLinear(operands, a), ", ", Factors(a.x), " {0}");
}

std::string RuleWeightGrad(absl::Span<const TensorType> operands, const LinearWeightGradAttributes& a) {
  return absl::StrCat(Rule(operands, a.labels), ", ", Factors(BiasLabels(a.labels.w, a.bias_ndim)), " {1}");
}

std::string RuleGeluInputGrad(absl::Span<const TensorType>, const ContractAttributes& a) {
  return absl::StrCat(Factors(a.x), ", ", Factors(a.w), ", ", Factors(a.y), " -> ", Factors(a.y));
}

using Context = GradContext<ContractAttributes, NoScalars>;

// A letter of x is in y or in w, so each gradient is again a contraction of the other two.
ContractAttributes InputGradLabels(const ContractAttributes& a) { return {.x = a.y, .w = a.w, .y = a.x}; }
ContractAttributes WeightGradLabels(const ContractAttributes& a) { return {.x = a.x, .w = a.y, .y = a.w}; }

// What the gradient of operand 0 reads of the weight; undefined if that gradient is not wanted. To be read before the weight's own
// gradient is released.
Value WeightForInput(Context& ctx) { return ctx.Wants(0) ? ctx.saved("w") : Value(); }

void BackwardInput(Context& ctx, Value dy, Value w) {
  if (!w.defined()) return;
  ctx.SetGrad(0, ctx.Emit(kContract, {dy, w}, InputGradLabels(ctx.attributes())));
}

void Backward(Context& ctx) {
  const Value dy = ctx.grad();
  if (!dy.defined()) return;
  const Value w = WeightForInput(ctx);
  if (ctx.Wants(1)) {
    ctx.ReleaseGrad(1, ctx.Emit(kContract, {ctx.saved("x"), dy}, WeightGradLabels(ctx.attributes())));
  }
  BackwardInput(ctx, dy, w);
}

// The gradients of operands 1 and 2, w and b; operand 0 of the product is saved as `input`.
void BackwardWeights(Context& ctx, Value dy, absl::string_view input) {
  const ContractAttributes labels = WeightGradLabels(ctx.attributes());
  const Shape& bias = ctx.operand_type(2).shape;
  const bool sums = ctx.TypeOf(dy).shape != bias;
  if (ctx.Wants(1) && ctx.Wants(2) && sums) {
    const Values grads = ctx.EmitAll(kLinearWeightGrad, {ctx.saved(input), dy}, {labels, bias.ndim()});
    ctx.ReleaseGrad(2, grads[1]);
    ctx.ReleaseGrad(1, grads[0]);
    return;
  }
  if (ctx.Wants(2)) {
    if (sums) {
      ctx.ReleaseGrad(2, ctx.Emit(kSumTo, {dy}, {.shape = bias}));
    } else {
      ctx.SetGrad(2, dy);
    }
  }
  if (ctx.Wants(1)) ctx.ReleaseGrad(1, ctx.Emit(kContract, {ctx.saved(input), dy}, labels));
}

void BackwardLinear(Context& ctx) {
  const Value dy = ctx.grad();
  if (!dy.defined()) return;
  const Value w = WeightForInput(ctx);
  BackwardWeights(ctx, dy, "x");
  BackwardInput(ctx, dy, w);
}

void BackwardGeluLinear(Context& ctx) {
  const Value dy = ctx.grad(0);
  const Value da = ctx.grad(1);
  const Value w = dy.defined() ? WeightForInput(ctx) : Value();
  if (dy.defined()) BackwardWeights(ctx, dy, "a");
  if (!ctx.Wants(0)) return;
  Value dh = da.defined() ? ctx.Emit(kGeluGrad, {ctx.saved("h"), da}) : Value();
  if (dy.defined()) {
    const Value through =
        ctx.Emit(kGeluLinearInputGrad, {dy, w, ctx.saved("h")}, InputGradLabels(ctx.attributes()));
    dh = dh.defined() ? ctx.Emit(kAdd, {dh, through}) : through;
  }
  if (dh.defined()) ctx.SetGrad(0, dh);
}

// dw is a product, db a sum: of dw's gradient products again, of db's a broadcast.
void BackwardWeightGrad(GradContext<LinearWeightGradAttributes, NoScalars>& ctx) {
  const ContractAttributes& labels = ctx.attributes().labels;
  const Value gw = ctx.grad(0);
  const Value gb = ctx.grad(1);
  if (ctx.Wants(0) && gw.defined()) {
    ctx.SetGrad(0, ctx.Emit(kContract, {gw, ctx.saved("dy")}, InputGradLabels(labels)));
  }
  if (!ctx.Wants(1)) return;
  Value to_dy;
  if (gw.defined()) to_dy = ctx.Emit(kContract, {ctx.saved("x"), gw}, WeightGradLabels(labels));
  if (gb.defined()) {
    const Shape& dy = ctx.operand_type(1).shape;
    const DimMask summed = AllDims(dy.ndim() - ctx.attributes().bias_ndim);
    const Value spread = ctx.Emit(kBroadcastTo, {gb}, {.shape = dy, .missing_dims = summed});
    to_dy = to_dy.defined() ? ctx.Emit(kAdd, {to_dy, spread}) : spread;
  }
  if (to_dy.defined()) ctx.SetGrad(1, to_dy);
}

// Of dh = (dy w) gelu'(h).
void BackwardGeluInputGrad(Context& ctx) {
  const Value g = ctx.grad();
  const Value h = ctx.saved("h");
  const Value dy = ctx.saved("dy");
  const Value w = ctx.saved("w");
  if (ctx.Wants(0) || ctx.Wants(1)) {
    const Value through = ctx.Emit(kGeluGrad, {h, g});
    if (ctx.Wants(0)) ctx.SetGrad(0, ctx.Emit(kContract, {through, w}, InputGradLabels(ctx.attributes())));
    if (ctx.Wants(1)) ctx.SetGrad(1, ctx.Emit(kContract, {dy, through}, WeightGradLabels(ctx.attributes())));
  }
  if (!ctx.Wants(2)) return;
  const Value p = ctx.Emit(kMul, {g, ctx.Emit(kContract, {dy, w}, ctx.attributes())});
  ctx.SetGrad(2, EmitGeluCurvature(ctx.emitter(), h, p, {}));
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

std::vector<Sample<LinearWeightGradAttributes>> WeightGradSamples() {
  std::vector<Sample<LinearWeightGradAttributes>> samples;
  for (const Sample<ContractAttributes>& linear : LinearSamples()) {
    const ContractAttributes& a = linear.attributes;
    const TensorTypes y = Infer({{linear.operands[0].type, linear.operands[1].type}}, a);
    samples.push_back({{linear.operands[0], {y[0]}}, {WeightGradLabels(a), linear.operands[2].type.ndim()}});
  }
  return samples;
}

std::vector<Sample<ContractAttributes>> GeluInputGradSamples() {
  std::vector<Sample<ContractAttributes>> samples;
  for (const Sample<ContractAttributes>& linear : LinearSamples()) {
    const ContractAttributes& a = linear.attributes;
    const TensorTypes y = Infer({{linear.operands[0].type, linear.operands[1].type}}, a);
    samples.push_back({{{y[0]}, linear.operands[1], linear.operands[0]}, InputGradLabels(a)});
  }
  return samples;
}

}  // namespace

constinit const Op<ContractAttributes> kContract = {{
    .name = "contract",
    .operands = "x w",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}{w}",
    .saves = "x w",
    .backward = Backward,
    .samples = Samples,
}};

constinit const Op<ContractAttributes> kLinear = {{
    .name = "linear",
    .operands = "x w b",
    .infer = InferLinear,
    .rule = RuleLinear,
    .linear = "{x b}{w b}",
    .saves = "x w",
    .backward = BackwardLinear,
    .samples = LinearSamples,
}};

constinit const Op<LinearWeightGradAttributes> kLinearWeightGrad = {{
    .name = "linear_weight_grad",
    .operands = "x dy",
    .outputs = "dw db",
    .infer = InferWeightGrad,
    .rule = RuleWeightGrad,
    .linear = "{x}{dy}",
    .saves = "x dy",
    .backward = BackwardWeightGrad,
    .samples = WeightGradSamples,
}};

constinit const Op<ContractAttributes> kGeluLinear = {{
    .name = "gelu_linear",
    .operands = "h w b",
    .outputs = "y a",
    .infer = InferGeluLinear,
    .rule = RuleGeluLinear,
    .linear = "{w b}",
    .saves = "h w a",
    .backward = BackwardGeluLinear,
    .samples = LinearSamples,
}};

constinit const Op<ContractAttributes> kGeluLinearInputGrad = {{
    .name = "gelu_linear_input_grad",
    .operands = "dy w h",
    .outputs = "dh",
    .infer = InferGeluInputGrad,
    .rule = RuleGeluInputGrad,
    .linear = "{dy}{w}",
    .saves = "dy w h",
    .backward = BackwardGeluInputGrad,
    .samples = GeluInputGradSamples,
}};

}  // namespace weft
