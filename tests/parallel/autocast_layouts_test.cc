// Autocast regions under layouts: loss and gradients beside one rank's in the same region.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/dtensor.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

// A model whose forward is an autocast region: products, attention, norms and the sums of its residual stream.
class AutocastGpt : public Gpt {
 public:
  using Gpt::Gpt;

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> segments = Gpt::MakeSegments();
    for (Segment& segment : segments) {
      segment.run = [this, run = segment.run](const DTensors& inputs) {
        const AutocastGuard guard(context()->state(), DType::kBF16);
        return run(inputs);
      };
    }
    return segments;
  }
};

TrainingRun RunOf(const std::string& plan, const std::string& mesh, bool autocasts) {
  TrainingRun run;
  run.make_model = MakeGpt(SmallGptConfig());
  if (autocasts) run.make_model = [] { return std::make_unique<AutocastGpt>(SmallGptConfig()); };
  run.mesh = DeviceMesh::Parse(mesh);
  run.plan = DataPlanNamed(plan, run.mesh);
  run.dtype = DType::kF32;
  return run;
}

TEST(AutocastLayoutsTest, AModelIsOneRanks) {
  const TrainingResult one = Train(RunOf("none", "", /*autocasts=*/true));
  for (const auto& [plan, mesh] : std::vector<std::pair<std::string, std::string>>{{"ddp", "dp=2"},
                                                                                   {"fsdp", "dp=2"},
                                                                                   {"none", "tp=2"},
                                                                                   {"ddp", "dp=2,tp=2"},
                                                                                   {"fsdp", "dp=2,tp=2"}}) {
    const TrainingResult result = Train(RunOf(plan, mesh, /*autocasts=*/true));
    EXPECT_THAT(Differences(one, result, kBF16Tolerance), testing::IsEmpty())
        << plan << " on " << mesh << ": " << DeviationSummary(one, result);
  }
  const TrainingResult single = Train(RunOf("none", "", /*autocasts=*/false));
  EXPECT_THAT(Differences(single, one, kF32Tolerance), testing::Not(testing::IsEmpty()));
}

// A product of two operands, and how they lie: on dp=2, on tp=2, and on both.
struct Product {
  std::string name;
  Shape x, w, y;
  std::function<DTensor(const DTensor& x, const DTensor& w)> call;
};
struct Place {
  std::string mesh;
  std::string x, w;  // layouts of the first two dims
};

std::vector<Product> Products() {
  const auto conv = [](const DTensor& x, const DTensor& w) { return Conv2d(x, w); };
  return {{"matmul", {6, 8}, {8, 6}, {6, 6}, [](const DTensor& x, const DTensor& w) { return MatMul(x, w); }},
          // The weight is [o, c, kh, kw]: as MatMul's, turned.
          {"conv2d", {6, 8, 5, 4}, {6, 8, 2, 3}, {6, 6, 4, 2}, conv}};
}

const std::vector<Place>& Places() {
  static const auto* const places = new std::vector<Place>{
      {"dp=2", "dp, -", "-, -"},        {"tp=2", "-, -", "-, tp"},        {"tp=2", "-, tp", "tp, -"},
      {"tp=2", "-, - P", "-, -"},       {"tp=2", "-, - P", "-, tp"},      {"tp=2", "-, -", "-, - P"},
      {"dp=2,tp=2", "dp, tp", "tp, -"}, {"dp=2,tp=2", "dp, - P", "-, -"},
  };
  return *places;
}

// "dp, - P" of so many dims, and with the first two turned around: "[-, dp, -, -] P{tp}".
std::string LayoutOf(const std::string& place, int ndim, bool turned) {
  const size_t comma = place.find(", "), partial = place.find(" P");
  const std::string first = place.substr(0, comma);
  const std::string second =
      place.substr(comma + 2, partial == std::string::npos ? partial : partial - comma - 2);
  std::string text = turned ? "[" + second + ", " + first : "[" + first + ", " + second;
  for (int dim = 2; dim < ndim; ++dim) text += ", -";
  return text + (partial == std::string::npos ? "]" : "] P{tp}");
}

struct Numbers {
  std::vector<double> loss, y, x_gradient, w_gradient;
};

// `factors`: what the elements of y are multiplied by, before they are summed to the loss.
Numbers Compute(const Product& product, const DTensor& x, const DTensor& w, const Tensor& factors) {
  const DTensor y = product.call(x, w);
  const DTensor loss =
      Sum(y * DTensor::Distribute(x.context(), factors, Layout(y.ndim(), x.context()->mesh().num_axes())));
  Backward(loss);
  const auto values = [](const DTensor& tensor) { return tensor.FullTensor().ToVector<double>(); };
  return {values(loss), values(y), values(x.grad()), values(w.grad())};
}

// A leaf whose gradient rests whole where `x` is a sum.
DTensor Leaf(const DTensor& x) {
  Layout layout = x.layout();
  for (const int axis : layout.PartialAxes()) layout = layout.WithReplicate(axis);
  return x.RequiresGrad(layout);
}

// Of elements as they lie: of a sum each term's.
DTensor Magnitudes(const DTensor& x) {
  std::vector<double> values = x.ToLocal().ToVector<double>();
  for (double& value : values) value = std::abs(value);
  return DTensor::FromLocal(x.context(), FromDoubles(DType::kF64, x.ToLocal().shape(), values), x.layout(),
                            x.shape());
}

Tensor Elements(const Shape& shape, uint64_t seed) {
  return FromDoubles(DType::kF32, shape, RandomF64(shape, seed).ToVector<double>());
}

// bf16 rounds by 2^-8 of what it rounds: both operands, or one and the gradient of y, and the result. Where an operand is a
// sum that has not been made yet, each term is rounded by itself, and where a result is one, each term of it; so the error is
// in proportion to the products of magnitudes, term by term, not to the sums, which may be far smaller. Sums over ranks may
// round once more per axis. That is 3 times 2^-8 of the magnitudes on one rank, 5 under layouts, 8 between the two.
constexpr double kBound = 8 * 0x1p-8;

void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                const std::vector<double>& magnitudes, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_EQ(magnitudes.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(std::abs(actual[i] - expected[i]), kBound * magnitudes[i])
        << what << ", element " << i << ": " << actual[i] << ", on one rank " << expected[i];
  }
}

TEST(AutocastLayoutsTest, ProductsAreOneRanksUpToTheRoundingOfTerms) {
  for (const Product& product : Products()) {
    const Tensor x = Elements(product.x, 1), w = Elements(product.w, 2), factors = Elements(product.y, 3);
    Tensor factor_magnitudes;
    Numbers one;
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      const AutocastGuard guard(context->state(), DType::kBF16);
      factor_magnitudes = Magnitudes(Lay(context, factors, Layout(factors.ndim(), 0))).ToLocal();
      one = Compute(product, Leaf(Lay(context, x, Layout(x.ndim(), 0))),
                    Leaf(Lay(context, w, Layout(w.ndim(), 0))), factors);
    });
    for (const Place& place : Places()) {
      const std::string what = product.name + " on " + place.mesh + ", " + place.x + " by " + place.w;
      const bool turned = product.name == "conv2d";
      OnMesh(place.mesh, [&](const IntrusivePtr<MeshContext>& context) {
        const DTensor x_there = Leaf(Lay(context, x, LayoutOf(place.x, x.ndim(), /*turned=*/false)));
        const DTensor w_there = Leaf(Lay(context, w, LayoutOf(place.w, w.ndim(), turned)));
        const Numbers magnitudes =
            Compute(product, Leaf(Magnitudes(x_there)), Leaf(Magnitudes(w_there)), factor_magnitudes);
        const AutocastGuard guard(context->state(), DType::kBF16);
        EXPECT_EQ(product.call(x_there, w_there).dtype(), DType::kBF16);
        const Numbers actual = Compute(product, x_there, w_there, factors);
        ExpectNear(actual.loss, one.loss, magnitudes.loss, what + ": loss");
        ExpectNear(actual.y, one.y, magnitudes.y, what);
        ExpectNear(actual.x_gradient, one.x_gradient, magnitudes.x_gradient, what + ": gradient of x");
        ExpectNear(actual.w_gradient, one.w_gradient, magnitudes.w_gradient, what + ": gradient of w");
      });
    }
  }
}

}  // namespace
}  // namespace weft
