// Modules against PyTorch's numbers (modules.json, computed by make_module_golden.py), on one device and under plans: outputs,
// gradients, running statistics, evaluation.

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/layers/layers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "parallel/parallelize.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using Json = nlohmann::json;

// Sums run in another order: relative to the larger of 1 and the value.
constexpr double kTolerance = 1e-12;

Tensor TensorOf(const Json& json) {
  return Tensor::FromValues<double>(Shape(json["shape"].get<std::vector<int64_t>>()),
                                    json["values"].get<std::vector<double>>());
}

template <class Options>
Options PoolOptions(const Json& a) {
  Options options;
  const auto set = [&](const char* name, auto& field) {
    if (!a.contains(name)) return;
    if constexpr (std::is_same_v<decltype(options.kernel), int64_t>) {
      field = a[name].get<int64_t>();
    } else {
      field = {a[name].get<int64_t>(), a[name].get<int64_t>()};
    }
  };
  set("kernel", options.kernel);
  set("stride", options.stride);
  set("padding", options.padding);
  return options;
}

BatchNormOptions NormOptions(const Json& a) {
  BatchNormOptions options;
  options.eps = a.value("eps", options.eps);
  if (a.contains("momentum")) {
    options.momentum = a["momentum"].is_null() ? std::optional<double>() : a["momentum"].get<double>();
  }
  options.affine = a.value("affine", true);
  options.track_statistics = a.value("track", true);
  return options;
}

std::array<int64_t, 2> Pair(const Json& a, const char* name, int64_t value) {
  return {a.value(name, value), a.value(name, value)};
}

std::unique_ptr<Module> MakeModule(Module* root, const std::string& name, const Json& a) {
  const auto make = [&]<class M>(auto&&... args) {
    return std::unique_ptr<Module>(new M(root, "m", args...));
  };
  if (name == "Conv1d") {
    const nn::Conv1dOptions options = {.stride = a.value("stride", 1),
                                       .padding = a.value("padding", 0),
                                       .dilation = a.value("dilation", 1),
                                       .groups = a.value("groups", 1),
                                       .bias = a.value("bias", true)};
    return make.operator()<nn::Conv1d>(a["in"].get<int64_t>(), a["out"].get<int64_t>(),
                                       a["kernel"].get<int64_t>(), options);
  }
  if (name == "Conv2d") {
    const nn::Conv2dOptions options = {.stride = Pair(a, "stride", 1),
                                       .padding = Pair(a, "padding", 0),
                                       .dilation = Pair(a, "dilation", 1),
                                       .groups = a.value("groups", 1),
                                       .bias = a.value("bias", true)};
    return make.operator()<nn::Conv2d>(a["in"].get<int64_t>(), a["out"].get<int64_t>(),
                                       a["kernel"].get<int64_t>(), options);
  }
  if (name == "BatchNorm1d")
    return make.operator()<BatchNorm1d>(a["channels"].get<int64_t>(), NormOptions(a));
  if (name == "BatchNorm2d")
    return make.operator()<BatchNorm2d>(a["channels"].get<int64_t>(), NormOptions(a));
  if (name == "GroupNorm") {
    return make.operator()<GroupNorm>(a["groups"].get<int64_t>(), a["channels"].get<int64_t>(),
                                      a.value("eps", 1e-5));
  }
  if (name == "MaxPool1d") return make.operator()<nn::MaxPool1d>(PoolOptions<Pool1dOptions>(a));
  if (name == "AvgPool1d") return make.operator()<nn::AvgPool1d>(PoolOptions<Pool1dOptions>(a));
  if (name == "MaxPool2d") return make.operator()<nn::MaxPool2d>(PoolOptions<Pool2dOptions>(a));
  if (name == "AvgPool2d") return make.operator()<nn::AvgPool2d>(PoolOptions<Pool2dOptions>(a));
  if (name == "AdaptiveAvgPool1d")
    return make.operator()<nn::AdaptiveAvgPool1d>(a["extents"][0].get<int64_t>());
  if (name == "AdaptiveAvgPool2d") {
    return make.operator()<nn::AdaptiveAvgPool2d>(a["extents"].get<std::array<int64_t, 2>>());
  }
  if (name == "Flatten") return make.operator()<nn::Flatten>();
  if (name == "Relu") return make.operator()<nn::Relu>();
  if (name == "Gelu") return make.operator()<nn::Gelu>();
  throw std::invalid_argument(name);
}

// The module "m" below a root, as `plan` spreads it; inputs as `input` lies, in its first dims.
struct Spread {
  std::string mesh;
  std::string input;  // of dims 0 and 1: "dp -"
  Plan plan;
};

void CheckCase(const Json& golden, const IntrusivePtr<MeshContext>& context, const Spread& spread) {
  Module root;
  const std::unique_ptr<Module> module = MakeModule(&root, golden["module"], golden["arguments"]);
  Parallelize(root, context, spread.plan, {.dtype = DType::kF64});
  const auto lay = [&](const Json& json) {
    const Tensor full = TensorOf(json);
    std::string text = absl::StrCat("[", spread.input);
    for (int dim = 2; dim < full.ndim(); ++dim) absl::StrAppend(&text, ", -");
    return Lay(context, full, absl::StrCat(text, "]"));
  };
  for (Parameter* parameter : module->parameters()) {
    parameter->Load(Lay(context, TensorOf(golden["parameters"][parameter->name()]),
                        Layout(parameter->spec().shape.ndim(), context->mesh().num_axes())));
  }
  EXPECT_EQ(module->parameters().size(), golden["parameters"].size());
  for (const Json& batch : golden["batches"]) {
    const DTensor x = lay(batch["input"]).RequiresGrad();
    const DTensor y = (*module)(x);
    EXPECT_TRUE(AllClose(y.FullTensor(), TensorOf(batch["output"]), kTolerance));
    const Tensor weight = TensorOf(batch["weight"]);
    Backward(Sum(y * Lay(context, weight, Layout(weight.ndim(), context->mesh().num_axes()))));
    EXPECT_TRUE(AllClose(x.grad().FullTensor(), TensorOf(batch["input_gradient"]), kTolerance));
    for (Parameter* parameter : module->parameters()) {
      EXPECT_TRUE(AllClose(parameter->grad().FullTensor(), TensorOf(batch["gradients"][parameter->name()]),
                           kTolerance))
          << parameter->name();
      parameter->ClearGrad();
    }
  }
  EXPECT_EQ(module->buffers().size(), golden["buffers"].size());
  for (const ModuleBuffer* buffer : module->buffers()) {
    EXPECT_TRUE(AllClose(Cast(buffer->Value(), DType::kF64).FullTensor(),
                         TensorOf(golden["buffers"][buffer->name()]), kTolerance))
        << buffer->name();
  }
  module->Eval();
  const DTensor y = (*module)(lay(golden["evaluated_input"]));
  EXPECT_TRUE(AllClose(y.FullTensor(), TensorOf(golden["evaluated"]), kTolerance));
  // Evaluation leaves statistics alone.
  for (const ModuleBuffer* buffer : module->buffers()) {
    EXPECT_TRUE(AllClose(Cast(buffer->Value(), DType::kF64).FullTensor(),
                         TensorOf(golden["buffers"][buffer->name()]), kTolerance));
  }
}

// Whether the module has parameters that ColumnParallel splits: grouped convolutions have none.
bool HasColumns(const Json& golden) {
  Module root;
  const std::unique_ptr<Module> module = MakeModule(&root, golden["module"], golden["arguments"]);
  for (const Parameter* parameter : module->parameters()) {
    if (parameter->spec().shard_dims.column >= 0) return true;
  }
  return false;
}

TEST(GoldenModulesTest, AreThoseOfPyTorch) {
  std::ifstream file("tests/golden/modules.json");
  ASSERT_TRUE(file);
  const Json goldens = Json::parse(file)["cases"];
  ASSERT_GE(goldens.size(), 20u);
  int number = 0;
  for (const Json& golden : goldens) {
    SCOPED_TRACE(
        absl::StrCat(number++, " ", golden["module"].get<std::string>(), golden["arguments"].dump()));
    std::vector<Spread> spreads = {
        {"", "-, -", {}},
        {"dp=2", "dp, -", {{"", DataParallel("dp")}}},
        {"dp=4", "dp, -", {{"", FullyShard("dp")}}},
        {"tp=2", "-, tp", {}},
        {"dp=2,tp=2", "dp, tp", {{"", FullyShard("dp")}}},
    };
    if (HasColumns(golden)) {
      const bool by_channel = golden["module"] != "Conv1d" && golden["module"] != "Conv2d";
      const StyleBorders borders = {.input = by_channel ? Placement(Shard(1)) : Placement(Replicate())};
      spreads.push_back({"tp=2", "-, -", {{"m", ColumnParallel("tp", borders)}}});
      spreads.push_back(
          {"dp=2,tp=2", "dp, -", {{"m", ColumnParallel("tp", borders)}, {"", FullyShard("dp")}}});
    }
    for (const Spread& spread : spreads) {
      SCOPED_TRACE(absl::StrCat(spread.mesh, " ", spread.input, "\n", spread.plan.ToString()));
      OnMesh(spread.mesh,
             [&](const IntrusivePtr<MeshContext>& context) { CheckCase(golden, context, spread); });
    }
  }
}

}  // namespace
}  // namespace weft
