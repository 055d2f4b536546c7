// A GPT trained by AdamW against PyTorch's (gpt_training.json, computed by make_gpt_golden.py): losses, norms
// and final parameters, in f64, on one rank and spread. The reference decays matrices and embeddings alone.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr double kTolerance = 1e-12;

// Softmax does not see what is added to all its operands, so the gradient of the keys' bias is zero but for
// rounding, which AdamW scales up to steps of 1e-12: PyTorch's own values move by 3e-12 where its sums run in
// another order.
constexpr double kKeyBiasTolerance = 1e-10;

// As make_gpt_golden.py has it.
uint64_t Mixed(uint64_t stream, uint64_t index) {
  uint64_t z = ((stream << 32) + index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

Json ReadGolden() {
  std::ifstream file("tests/golden/gpt_training.json");
  return file ? Json::parse(file) : Json();
}

struct Batch {
  DTensor tokens;
  DTensor targets;  // the next ones
};

Batch MakeBatch(const Json& golden, int64_t step, const IntrusivePtr<MeshContext>& context,
                const Layout& layout) {
  const int64_t b = golden["training"]["batch"], s = golden["config"]["context"];
  const int64_t vocabulary = golden["config"]["vocabulary"], batches = golden["training"]["batches"];
  std::vector<int64_t> tokens, targets;
  for (int64_t i = 0; i < b * (s + 1); ++i) {
    const uint64_t mixed = Mixed(static_cast<uint64_t>(1000 + step % batches), static_cast<uint64_t>(i));
    const int64_t token = static_cast<int64_t>(mixed % static_cast<uint64_t>(vocabulary));
    if (i % (s + 1) < s) tokens.push_back(token);
    if (i % (s + 1) > 0) targets.push_back(token);
  }
  return {DTensor::Distribute(context, Tensor::FromValues<int64_t>({b, s}, tokens), layout),
          DTensor::Distribute(context, Tensor::FromValues<int64_t>({b, s}, targets), layout)};
}

void LoadFirstValues(const Json& golden, Gpt& model) {
  std::map<std::string, Parameter*> parameters;
  for (Parameter* parameter : model.AllParameters()) parameters[parameter->path()] = parameter;
  ASSERT_EQ(golden["parameters"].size(), parameters.size());
  uint64_t stream = 0;
  for (const Json& entry : golden["parameters"]) {
    Parameter& parameter = *parameters.at(entry["path"]);
    const Shape shape(entry["shape"].get<std::vector<int64_t>>());
    const double center = entry["center"], width = entry["width"];
    std::vector<double> values(static_cast<size_t>(shape.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      const double uniform = static_cast<double>(Mixed(stream, i) >> 11) * 0x1p-53;
      values[i] = center + width * (uniform - 0.5);
    }
    ++stream;
    const Layout& layout = parameter.layouts().at_rest;
    parameter.Load(DTensor::Distribute(model.context(), Tensor::FromValues<double>(shape, values), layout));
  }
}

// The largest deviation from the golden elements; of a qkv bias [3, h, e] that of the keys by itself.
void CompareElements(const Json& entry, const std::vector<double>& values) {
  const std::string path = entry["path"];
  const std::vector<double> expected = entry["final"];
  ASSERT_EQ(values.size(), expected.size()) << path;
  const bool has_keys = absl::EndsWith(path, "attn.qkv.bias");
  double largest = 0, largest_of_keys = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_key = has_keys && i / (values.size() / 3) == 1;
    double& slot = is_key ? largest_of_keys : largest;
    const double difference = std::abs(values[i] - expected[i]);
    slot = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(slot, difference);
  }
  EXPECT_LE(largest, kTolerance) << path;
  EXPECT_LE(largest_of_keys, kKeyBiasTolerance) << path;
}

void TrainRank(World& world, const Json& golden, const std::string& mesh_text, DataPlan data_plan) {
  const Json& config = golden["config"];
  const Json& training = golden["training"];
  Gpt model({.vocabulary = config["vocabulary"],
             .context = config["context"],
             .layers = config["layers"],
             .heads = config["heads"],
             .dim = config["dim"],
             .tied_head = true});
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  const Plan plan = GptPlan(mesh, data_plan, /*sequence_parallel=*/false);
  const IntrusivePtr<MeshContext> context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
  LoadFirstValues(golden, model);
  AdamW optimizer(model.AllParameters(), {.beta1 = training["beta1"],
                                          .beta2 = training["beta2"],
                                          .eps = training["epsilon"],
                                          .weight_decay = training["weight_decay"]});
  const int64_t steps = training["steps"];
  const Layout layout = BatchLayout(mesh, plan);
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = MakeBatch(golden, step, context, layout);
    const DTensor loss = model.Loss(batch.tokens, batch.targets).Mean();
    Backward(loss);
    const GlobalNorm norm = ComputeGlobalNorm(model.AllParameters(), training["grad_clip"]);
    optimizer.Step(golden["learning_rates"][step], norm.scale);
    optimizer.ZeroGrad();
    const double expected_loss = golden["losses"][step], expected_norm = golden["grad_norms"][step];
    EXPECT_NEAR(loss.Item(), expected_loss, kTolerance * expected_loss) << "step " << step + 1;
    EXPECT_NEAR(std::sqrt(norm.norm_squared.Item()), expected_norm, kTolerance) << "step " << step + 1;
  }
  std::map<std::string, std::vector<double>> values;
  for (const Parameter* parameter : model.AllParameters()) {
    values[parameter->path()] = parameter->at_rest().FullTensor().ToVector<double>();
  }
  for (const Json& entry : golden["parameters"]) CompareElements(entry, values[entry["path"]]);
}

struct Setup {
  std::string name;
  std::string mesh;
  DataPlan data = DataPlan::kDdp;
};

class GoldenGptTest : public testing::TestWithParam<Setup> {};

TEST_P(GoldenGptTest, TrainsAsPyTorchDoes) {
  const Json golden = ReadGolden();
  ASSERT_TRUE(golden.is_object()) << "tests/golden/gpt_training.json cannot be read";
  ASSERT_EQ(golden["losses"].size(), 40u);
  const int ranks = static_cast<int>(DeviceMesh::Parse(GetParam().mesh).num_ranks());
  RunRanks(ranks, [&](World& world) { TrainRank(world, golden, GetParam().mesh, GetParam().data); });
}

INSTANTIATE_TEST_SUITE_P(Meshes, GoldenGptTest,
                         testing::Values(Setup{"one_rank", ""}, Setup{"ddp", "dp=2"},
                                         Setup{"fsdp_x_tp", "dp=2,tp=2", DataPlan::kFsdp}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft
