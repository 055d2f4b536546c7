// Op results and gradients against PyTorch's numbers (ops.json, computed by make_golden.py). Deliberate
// differences stand in docs/pytorch.md; where one shows in a number, the case is skipped by name here, with
// the reason.

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/launch/run_ranks.h"
#include "tests/golden/indexing_callers.h"

namespace weft {
namespace {

using Json = nlohmann::json;
using Operands = std::vector<DTensor>;
using Outputs = std::vector<DTensor>;

// Sums run in another order and functions are rounded otherwise: relative to the larger of 1 and the value.
constexpr double kTolerance = 1e-12;

double NumberOf(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  return json == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

Shape ShapeOf(const Json& json) { return Shape(json.get<std::vector<int64_t>>()); }

DTensor TensorOf(const IntrusivePtr<MeshContext>& context, const Json& json) {
  const Shape shape = ShapeOf(json["shape"]);
  const std::string dtype = json["dtype"];
  Tensor local;
  if (dtype == "f64") {
    std::vector<double> values;
    for (const Json& value : json["values"]) values.push_back(NumberOf(value));
    local = Tensor::FromValues<double>(shape, values);
  } else if (dtype == "i64") {
    local = Tensor::FromValues<int64_t>(shape, json["values"].get<std::vector<int64_t>>());
  } else {
    const std::vector<bool> bits = json["values"].get<std::vector<bool>>();
    const std::unique_ptr<bool[]> values(new bool[bits.size()]);
    std::copy(bits.begin(), bits.end(), values.get());
    local = Tensor::FromValues<bool>(shape, absl::MakeConstSpan(values.get(), bits.size()));
  }
  return DTensor::Distribute(context, local, Layout(shape.ndim(), context->mesh().num_axes()));
}

std::vector<double> ValuesOf(const DTensor& x) {
  return Cast(x, DType::kF64).FullTensor().ToVector<double>();
}

using Caller = GoldenCaller;

Caller Unary(DTensor (*function)(const DTensor&)) {
  return [=](const Operands& x, const Json&) { return Outputs{function(x[0])}; };
}
Caller Binary(DTensor (*function)(const DTensor&, const DTensor&)) {
  return [=](const Operands& x, const Json&) { return Outputs{function(x[0], x[1])}; };
}
Caller Reduction(DTensor (*function)(const DTensor&, const std::vector<int>&, bool)) {
  return [=](const Operands& x, const Json& a) {
    return Outputs{function(x[0], a["dims"].get<std::vector<int>>(), a["keep"].get<bool>())};
  };
}
Caller AlongDim(const std::function<DTensor(const DTensor&, int)>& function) {
  return [=](const Operands& x, const Json& a) { return Outputs{function(x[0], a["dim"].get<int>())}; };
}
Caller One(const std::function<DTensor(const Operands&, const Json&)>& function) {
  return [=](const Operands& x, const Json& a) { return Outputs{function(x, a)}; };
}

Outputs BothOf(const SortedElements& sorted) { return {sorted.values, sorted.indices}; }

std::vector<int> Ints(const Json& json) { return json.get<std::vector<int>>(); }
std::vector<int64_t> Longs(const Json& json) { return json.get<std::vector<int64_t>>(); }

ClampOptions ClampFrom(const Json& a) {
  ClampOptions options;
  if (!a["low"].is_null()) options.min = a["low"].get<double>();
  if (!a["high"].is_null()) options.max = a["high"].get<double>();
  return options;
}

std::map<std::string, Caller> ElementwiseCallers() {
  return {
      {"neg", Unary(Neg)},
      {"abs", Unary(Abs)},
      {"exp", Unary(Exp)},
      {"log", Unary(Log)},
      {"sqrt", Unary(Sqrt)},
      {"rsqrt", Unary(Rsqrt)},
      {"sin", Unary(Sin)},
      {"cos", Unary(Cos)},
      {"tanh", Unary(Tanh)},
      {"sigmoid", Unary(Sigmoid)},
      {"relu", Unary(Relu)},
      {"silu", Unary(Silu)},
      {"erf", Unary(Erf)},
      {"square", Unary(Square)},
      {"gelu_tanh", Unary(Gelu)},
      {"gelu", Unary(GeluExact)},
      {"add", Binary(Add)},
      {"sub", Binary(Sub)},
      {"mul", Binary(Mul)},
      {"div", Binary(Div)},
      {"maximum", Binary(Maximum)},
      {"minimum", Binary(Minimum)},
      {"pow", Binary(Pow)},
      {"pow_scalar",
       One([](const Operands& x, const Json& a) { return Pow(x[0], a["exponent"].get<double>()); })},
      {"clamp", One([](const Operands& x, const Json& a) { return Clamp(x[0], ClampFrom(a)); })},
      {"where", One([](const Operands& x, const Json&) { return Where(x[0], x[1], x[2]); })},
      {"eq", Binary(Equal)},
      {"ne", Binary(NotEqual)},
      {"lt", Binary(Less)},
      {"le", Binary(LessEqual)},
      {"gt", Binary(Greater)},
      {"ge", Binary(GreaterEqual)},
      {"logical_and", Binary(LogicalAnd)},
      {"logical_or", Binary(LogicalOr)},
      {"logical_xor", Binary(LogicalXor)},
      {"logical_not", Unary(LogicalNot)},
  };
}

std::map<std::string, Caller> ReductionCallers() {
  const auto variance =
      [](DTensor (*function)(const DTensor&, const std::vector<int>&, const VarianceOptions&)) {
        return One([=](const Operands& x, const Json& a) {
          return function(x[0], Ints(a["dims"]),
                          {.correction = a["correction"].get<double>(), .keep_dims = a["keep"].get<bool>()});
        });
      };
  return {
      {"sum", Reduction(Sum)},
      {"mean", Reduction(Mean)},
      {"amax", Reduction(Max)},
      {"amin", Reduction(Min)},
      {"logsumexp", Reduction(LogSumExp)},
      {"var", variance(Var)},
      {"std", variance(Std)},
      {"norm", One([](const Operands& x, const Json& a) {
         return Norm(x[0], NumberOf(a["p"]), Ints(a["dims"]), a["keep"].get<bool>());
       })},
      {"prod", AlongDim([](const DTensor& x, int dim) { return Prod(x, {dim}); })},
      {"cumsum", AlongDim(CumSum)},
      {"argmax", AlongDim([](const DTensor& x, int dim) { return Argmax(x, dim); })},
      {"argmin", AlongDim([](const DTensor& x, int dim) { return Argmin(x, dim); })},
      {"sort",
       [](const Operands& x, const Json& a) {
         return BothOf(Sort(x[0], a["dim"].get<int>(), a["descending"].get<bool>()));
       }},
      {"topk",
       [](const Operands& x, const Json& a) {
         return BothOf(TopK(x[0], a["k"].get<int64_t>(),
                            {.dim = a["dim"].get<int>(), .largest = a["largest"].get<bool>()}));
       }},
  };
}

std::map<std::string, Caller> ShapeCallers() {
  const auto dim = [](const Json& a) { return a["dim"].get<int>(); };
  return {
      {"reshape", One([](const Operands& x, const Json& a) { return Reshape(x[0], ShapeOf(a["shape"])); })},
      {"permute", One([](const Operands& x, const Json& a) { return Permute(x[0], Ints(a["dims"])); })},
      {"transpose", One([](const Operands& x, const Json& a) {
         return Transpose(x[0], a["dim_a"].get<int>(), a["dim_b"].get<int>());
       })},
      {"expand", One([](const Operands& x, const Json& a) { return Expand(x[0], ShapeOf(a["shape"])); })},
      {"squeeze", One([=](const Operands& x, const Json& a) { return Squeeze(x[0], dim(a)); })},
      {"unsqueeze", One([=](const Operands& x, const Json& a) { return Unsqueeze(x[0], dim(a)); })},
      {"flatten", One([](const Operands& x, const Json& a) {
         return Flatten(x[0], a["start"].get<int>(), a["end"].get<int>());
       })},
      {"slice", One([=](const Operands& x, const Json& a) {
         return Slice(x[0], dim(a), a["start"].get<int64_t>(), a["length"].get<int64_t>());
       })},
      {"concat", One([=](const Operands& x, const Json& a) { return Concat(x, dim(a)); })},
      {"stack", One([=](const Operands& x, const Json& a) { return Stack(x, dim(a)); })},
      {"split", [=](const Operands& x, const Json& a) { return Split(x[0], Longs(a["sizes"]), dim(a)); }},
      {"pad", One([](const Operands& x, const Json& a) {
         const std::vector<int64_t> before = Longs(a["before"]), after = Longs(a["after"]);
         std::vector<std::pair<int64_t, int64_t>> widths;
         for (size_t i = 0; i < before.size(); ++i) widths.push_back({before[i], after[i]});
         return Pad(x[0], widths, a["value"].get<double>());
       })},
      {"tril",
       One([](const Operands& x, const Json& a) { return Tril(x[0], a["diagonal"].get<int64_t>()); })},
      {"triu",
       One([](const Operands& x, const Json& a) { return Triu(x[0], a["diagonal"].get<int64_t>()); })},
      {"flip", One([](const Operands& x, const Json& a) { return Flip(x[0], Ints(a["dims"])); })},
      {"roll",
       One([=](const Operands& x, const Json& a) { return Roll(x[0], a["shift"].get<int64_t>(), dim(a)); })},
      {"index_select",
       One([=](const Operands& x, const Json& a) { return IndexSelect(x[0], dim(a), x[1]); })},
      {"gather", One([=](const Operands& x, const Json& a) { return Gather(x[0], dim(a), x[1]); })},
      {"scatter_add",
       One([=](const Operands& x, const Json& a) { return ScatterAdd(x[0], dim(a), x[1], x[2]); })},
  };
}

std::map<std::string, Caller> ProductCallers() {
  return {
      {"matmul", Binary(MatMul)},
      {"bmm", Binary(Bmm)},
      {"linear", One([](const Operands& x, const Json&) {
         return LinearTransform(x[0], Transpose(x[1], 0, 1), x[2]);
       })},
      {"einsum",
       One([](const Operands& x, const Json& a) { return Einsum(a["equation"].get<std::string>(), x); })},
  };
}

Pool1dOptions Pool1dFrom(const Json& a) {
  return {.kernel = a["kernel"].get<int64_t>(),
          .stride = a["stride"].get<int64_t>(),
          .padding = a["padding"].get<int64_t>()};
}
Pool2dOptions Pool2dFrom(const Json& a, bool count_padding = true) {
  const Pool1dOptions both = Pool1dFrom(a);
  return {.kernel = {both.kernel, both.kernel},
          .stride = {both.stride, both.stride},
          .padding = {both.padding, both.padding},
          .count_padding = count_padding};
}
Conv1dOptions Conv1dFrom(const Json& a) {
  return {.stride = a["stride"].get<int64_t>(),
          .padding = a["padding"].get<int64_t>(),
          .dilation = a["dilation"].get<int64_t>(),
          .groups = a["groups"].get<int64_t>()};
}
Conv2dOptions Conv2dFrom(const Json& a) {
  const Conv1dOptions both = Conv1dFrom(a);
  return {.stride = {both.stride, both.stride},
          .padding = {both.padding, both.padding},
          .dilation = {both.dilation, both.dilation},
          .groups = both.groups};
}

std::map<std::string, Caller> NeuralCallers() {
  const auto attention = [](const Operands& x, const Json& a) {
    return ScaledDotProductAttention(
        x[0], x[1], x[2], {.mask = x.size() > 3 ? x[3] : DTensor(), .causal = a["causal"].get<bool>()});
  };
  const auto epsilon = [](const Json& a) { return a["epsilon"].get<double>(); };
  return {
      {"softmax", AlongDim(Softmax)},
      {"log_softmax", AlongDim(LogSoftmax)},
      {"layer_norm",
       One([=](const Operands& x, const Json& a) { return LayerNormalize(x[0], x[1], x[2], epsilon(a)); })},
      {"rms_norm",
       One([=](const Operands& x, const Json& a) { return RmsNormalize(x[0], x[1], epsilon(a)); })},
      {"embedding", Binary(EmbeddingLookup)},
      {"cross_entropy", One([](const Operands& x, const Json& a) {
         return CrossEntropy(x[0], x[1],
                             {.ignore_index = a["ignore_index"].get<int64_t>(),
                              .label_smoothing = a["label_smoothing"].get<double>()})
             .Mean();
       })},
      {"mse", One([](const Operands& x, const Json&) { return MseLoss(x[0], x[1]).Mean(); })},
      {"batch_norm",
       One([=](const Operands& x, const Json& a) { return BatchNormalize(x[0], x[1], x[2], epsilon(a)).y; })},
      {"group_norm", One([=](const Operands& x, const Json& a) {
         return GroupNormalize(x[0], a["groups"].get<int64_t>(), x[1], x[2], epsilon(a));
       })},
      {"attention", One(attention)},
      {"attention_mask", One(attention)},
      {"conv1d", One([](const Operands& x, const Json& a) { return Conv1d(x[0], x[1], {}, Conv1dFrom(a)); })},
      {"conv2d", One([](const Operands& x, const Json& a) { return Conv2d(x[0], x[1], {}, Conv2dFrom(a)); })},
      {"max_pool1d", One([](const Operands& x, const Json& a) { return MaxPool1d(x[0], Pool1dFrom(a)); })},
      {"avg_pool1d", One([](const Operands& x, const Json& a) { return AvgPool1d(x[0], Pool1dFrom(a)); })},
      {"max_pool2d", One([](const Operands& x, const Json& a) { return MaxPool2d(x[0], Pool2dFrom(a)); })},
      {"avg_pool2d", One([](const Operands& x, const Json& a) { return AvgPool2d(x[0], Pool2dFrom(a)); })},
      {"avg_pool2d_exclude_pad", One([](const Operands& x, const Json& a) {
         return AvgPool2d(x[0], Pool2dFrom(a, /*count_padding=*/false));
       })},
  };
}

// Appends what differs between `actual` and PyTorch's tensor, as "WHAT element 3: 0.1, PyTorch has 0.2".
void Compare(const std::string& what, const DTensor& actual, const Json& expected, std::string* differences) {
  if (!actual.defined()) {
    absl::StrAppend(differences, what, ": nothing, PyTorch has ", expected.dump(), "\n");
    return;
  }
  if (actual.shape() != ShapeOf(expected["shape"]) ||
      DTypeName(actual.dtype()) != expected["dtype"].get<std::string>()) {
    absl::StrAppend(differences, what, ": ", actual.ToString(), ", PyTorch has ", expected["dtype"].dump(),
                    expected["shape"].dump(), "\n");
    return;
  }
  const std::vector<double> values = ValuesOf(actual);
  for (size_t i = 0; i < values.size(); ++i) {
    const Json& json = expected["values"][i];
    const double want = json.is_boolean() ? json.get<bool>() : NumberOf(json);
    const bool same = values[i] == want || (std::isnan(values[i]) && std::isnan(want)) ||
                      std::abs(values[i] - want) <= kTolerance * std::max(1.0, std::abs(want));
    if (!same)
      absl::StrAppend(differences, what, " element ", i, ": ", values[i], ", PyTorch has ", want, "\n");
  }
}

// Makes one call of the file and compares its outputs and gradients.
std::string Differences(const IntrusivePtr<MeshContext>& context, const Caller& call, const Json& test_case) {
  const bool wants_gradients = test_case.contains("gradients");
  Operands operands;
  for (size_t i = 0; i < test_case["inputs"].size(); ++i) {
    DTensor operand = TensorOf(context, test_case["inputs"][i]);
    const bool is_leaf = wants_gradients && !test_case["gradients"][i].is_null();
    operands.push_back(is_leaf ? operand.RequiresGrad() : operand);
  }
  const Outputs outputs = call(operands, test_case["attributes"]);
  std::string differences;
  if (outputs.size() != test_case["outputs"].size()) return absl::StrCat(outputs.size(), " outputs\n");
  for (size_t i = 0; i < outputs.size(); ++i) {
    Compare(absl::StrCat("output ", i), outputs[i], test_case["outputs"][i], &differences);
  }
  if (!wants_gradients || !differences.empty()) return differences;
  DTensor total;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (test_case["weights"][i].is_null()) continue;
    const DTensor term = Sum(outputs[i] * TensorOf(context, test_case["weights"][i]));
    total = total.defined() ? total + term : term;
  }
  Backward(total);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (test_case["gradients"][i].is_null()) continue;
    Compare(absl::StrCat("gradient ", i), operands[i].grad(), test_case["gradients"][i], &differences);
  }
  return differences;
}

TEST(GoldenOpsTest, AgreeWithPyTorch) {
  std::ifstream file("tests/golden/ops.json");
  ASSERT_TRUE(file) << "tests/golden/ops.json cannot be read";
  const Json golden = Json::parse(file);
  std::map<std::string, Caller> callers = ElementwiseCallers();
  for (auto family : {ReductionCallers, ShapeCallers, ProductCallers, NeuralCallers, IndexingCallers})
    callers.merge(family());
  std::set<std::string> called;
  RunRanks(1, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
    for (size_t i = 0; i < golden["cases"].size(); ++i) {
      const Json& test_case = golden["cases"][i];
      const std::string op = test_case["op"];
      called.insert(op);
      ASSERT_EQ(callers.count(op), 1u) << "no caller for " << op;
      EXPECT_EQ(Differences(context, callers.at(op), test_case), "")
          << op << test_case["attributes"].dump() << ", case " << i << " of ops.json";
    }
  });
  EXPECT_EQ(called.size(), callers.size()) << "a caller here is never used: ops.json lacks its op";
}

}  // namespace
}  // namespace weft
