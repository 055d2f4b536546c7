#include "dtensor/nn/initializers.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "dtensor/functions.h"
#include "dtensor/nn/layers/layers.h"
#include "gtest/gtest.h"
#include "runtime/base/philox.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

class OneParameter : public Module {
 public:
  explicit OneParameter(const ParameterSpec& spec) : w(this, "w", spec) {}
  Parameter w;
};

// The value on one device.
std::vector<double> ValueOf(const ParameterSpec& spec, DType dtype = DType::kF64) {
  std::vector<double> values;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(spec);
    Materialize(model, context, {.dtype = dtype});
    values = Cast(model.w.at_rest(), DType::kF64).FullTensor().ToVector<double>();
  });
  return values;
}

struct Moments {
  double mean = 0, deviation = 0, least = 0, most = 0;
};
Moments MomentsOf(const std::vector<double>& values) {
  Moments m = {.least = values[0], .most = values[0]};
  const auto count = static_cast<double>(values.size());
  for (double x : values) m.mean += x / count;
  for (double x : values) {
    m.deviation += (x - m.mean) * (x - m.mean) / count;
    m.least = std::min(m.least, x);
    m.most = std::max(m.most, x);
  }
  m.deviation = std::sqrt(m.deviation);
  return m;
}

double Index(absl::Span<const int64_t> index) {
  double value = 0.5;
  for (const int64_t i : index) value = 10 * value + static_cast<double>(i);
  return value;
}

std::vector<Initializer> All() {
  return {XavierUniform(),
          XavierNormal(2),
          KaimingUniform(),
          KaimingNormal({.fan_out = true}),
          TruncatedNormal({.mean = 1, .stddev = 3, .low = -1, .high = 2}),
          Orthogonal(),
          FromFunction(Index)};
}

TEST(InitializersTest, SameBitsOnEveryLayout) {
  for (const Shape& shape : {Shape{5, 3}, Shape{2, 7}, Shape{1, 1}}) {
    for (const Initializer& initializer : All()) {
      for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
        const ParameterSpec spec = {.shape = shape, .initializer = initializer};
        const std::vector<double> expected = ValueOf(spec, dtype);
        OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
          for (const Layout& layout : AllLayouts(context->mesh(), 2, {})) {
            OneParameter model(spec);
            model.w.Materialize(context, dtype, dtype, {layout, layout});
            EXPECT_EQ(model.w.at_rest().layout(), layout);
            const DTensor value = Cast(model.w.at_rest(), DType::kF64);
            EXPECT_EQ(value.FullTensor().ToVector<double>(), expected) << layout;
          }
        });
      }
    }
  }
}

// Deviations by the papers' formulas; 1% is five deviations of a mean of 10,000 squares.
TEST(InitializersTest, ScaleByFans) {
  const auto deviation = [](const Initializer& initializer, std::optional<Fans> fans = std::nullopt) {
    return MomentsOf(ValueOf({.shape = {100, 400}, .initializer = initializer, .fans = fans})).deviation;
  };
  const auto near = [](double value, double expected) { EXPECT_NEAR(value / expected, 1, 0.02); };
  near(deviation(XavierUniform()), std::sqrt(2.0 / 500));
  near(deviation(XavierNormal(3)), 3 * std::sqrt(2.0 / 500));
  near(deviation(KaimingUniform()), std::sqrt(2.0 / 100));
  near(deviation(KaimingNormal({.fan_out = true})), std::sqrt(2.0 / 400));
  near(deviation(KaimingNormal({.negative_slope = 1})), std::sqrt(1.0 / 100));
  near(deviation(KaimingNormal(), Fans{.in = 9, .out = 4}), std::sqrt(2.0 / 9));
  near(deviation(XavierNormal(), Fans{.in = 12, .out = 6}), std::sqrt(2.0 / 18));
  // Uniform to the bound, which is sqrt(3) deviations.
  const Moments uniform = MomentsOf(ValueOf({.shape = {100, 400}, .initializer = XavierUniform()}));
  EXPECT_LT(uniform.most, std::sqrt(6.0 / 500));
  EXPECT_GT(uniform.most, 0.999 * std::sqrt(6.0 / 500));
  EXPECT_GT(uniform.least, -std::sqrt(6.0 / 500));
}

// PyTorch's: of a convolution [out, in / groups, kernel...], in / groups x kernel and out x kernel.
TEST(InitializersTest, ModulesDeclareTheirFans) {
  Module root;
  EXPECT_EQ(Linear(&root, "a", Shape{4}, Shape{3, 2, 5}).weight.spec().fans, (Fans{.in = 4, .out = 30}));
  EXPECT_EQ(Linear(&root, "b", Shape{3, 5}, Shape{7}).weight.spec().fans, (Fans{.in = 15, .out = 7}));
  EXPECT_EQ(nn::Conv1d(&root, "c", 4, 6, 3).weight.spec().fans, (Fans{.in = 12, .out = 18}));
  EXPECT_EQ(nn::Conv2d(&root, "d", 4, 6, 3, {.groups = 2}).weight.spec().fans, (Fans{.in = 18, .out = 54}));
}

TEST(InitializersTest, TruncatedNormalStaysWithin) {
  const ParameterSpec spec = {
      .shape = {200, 200},
      .initializer = TruncatedNormal({.mean = 1, .stddev = 0.5, .low = 0, .high = 2}),
  };
  const std::vector<double> values = ValueOf(spec);
  const Moments m = MomentsOf(values);
  EXPECT_GE(m.least, 0);
  EXPECT_LE(m.most, 2);
  EXPECT_LT(m.least, 0.001);
  EXPECT_GT(m.most, 1.999);
  EXPECT_NEAR(m.mean, 1, 0.01);
  // Of the standard normal within 2 deviations: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)) = 0.879626.
  EXPECT_NEAR(m.deviation, 0.5 * 0.879626, 0.005);
  EXPECT_GT(std::set<double>(values.begin(), values.end()).size(), 39000u);
  // One tail alone: the mean of what lies above 2 is phi(2) / (1 - Phi(2)) = 2.373216.
  const Moments tail =
      MomentsOf(ValueOf({.shape = {100, 100}, .initializer = TruncatedNormal({.low = 2, .high = 100})}));
  EXPECT_GE(tail.least, 2);
  EXPECT_NEAR(tail.mean, 2.373216, 0.02);
}

// Q has orthonormal rows or columns, and R = Q^T A has zeros below a positive diagonal: there is one such Q.
TEST(InitializersTest, OrthogonalIsQ) {
  const auto check = [](const Shape& shape, int row_dims) {
    int64_t rows = 1, columns = 1;
    for (int dim = 0; dim < shape.ndim(); ++dim) (dim < row_dims ? rows : columns) *= shape[dim];
    const std::vector<double> q =
        ValueOf({.shape = shape, .initializer = Orthogonal({.gain = 2, .row_dims = row_dims})});
    const std::vector<double> a = [&] {
      std::vector<double> normal;
      const RandomKey key = {.seed = 0, .stream = StreamOf("w"), .step = 0};
      for (int64_t i = 0; i < rows * columns; ++i) normal.push_back(NormalAt(key, i));
      return normal;
    }();
    const bool by_rows = rows <= columns;
    const int64_t vectors = std::min(rows, columns), length = std::max(rows, columns);
    const auto at = [&](const std::vector<double>& m, int64_t vector, int64_t i) {
      return by_rows ? m[vector * columns + i] : m[i * columns + vector];
    };
    for (int64_t i = 0; i < vectors; ++i) {
      for (int64_t j = 0; j < vectors; ++j) {
        double product = 0, of_a = 0;
        for (int64_t k = 0; k < length; ++k) {
          product += at(q, i, k) * at(q, j, k) / 4;
          of_a += at(q, i, k) * at(a, j, k) / 2;
        }
        EXPECT_NEAR(product, i == j ? 1 : 0, 1e-14);
        if (i > j) {
          EXPECT_NEAR(of_a, 0, 1e-13) << i << " " << j;
        } else if (i == j) {
          EXPECT_GT(of_a, 0);
        }
      }
    }
  };
  check({6, 4}, 1);
  check({4, 6}, 1);
  check({5, 5}, 1);
  check({3, 2, 4}, 1);
  check({3, 2, 4}, 2);
}

TEST(InitializersTest, FromFunctionGetsTheGlobalIndex) {
  EXPECT_EQ(ValueOf({.shape = {2, 3}, .initializer = FromFunction(Index)}),
            (std::vector<double>{50, 51, 52, 60, 61, 62}));
  EXPECT_EQ(ValueOf({.shape = {}, .initializer = FromFunction(Index)}), std::vector<double>{0.5});
}

TEST(InitializersTest, DependOnSeedAndPath) {
  for (const Initializer& initializer : {TruncatedNormal(), Orthogonal(), XavierNormal()}) {
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      class Pair : public Module {
       public:
        explicit Pair(const Initializer& initializer)
            : a(this, "a", {.shape = {4, 4}, .initializer = initializer}),
              b(this, "b", {.shape = {4, 4}, .initializer = initializer}) {}
        Parameter a, b;
      };
      Pair first(initializer), again(initializer), other(initializer);
      Materialize(first, context);
      Materialize(again, context);
      context->state().set_seed(1);
      Materialize(other, context);
      EXPECT_TRUE(SameBits(first.a.at_rest().ToLocal(), again.a.at_rest().ToLocal()));
      EXPECT_FALSE(SameBits(first.a.at_rest().ToLocal(), first.b.at_rest().ToLocal()));
      EXPECT_FALSE(SameBits(first.a.at_rest().ToLocal(), other.a.at_rest().ToLocal()));
    });
  }
}

// 2 TB of f32: no element is computed.
TEST(InitializersTest, NothingIsMadeOnMeta) {
  const auto on_meta = [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
    for (const Initializer& initializer : All()) {
      OneParameter model({.shape = {1 << 20, 1 << 19}, .initializer = initializer});
      Materialize(model, context);
      const Tensor& piece = model.w.at_rest().ToLocal();
      EXPECT_EQ(piece.TypeString(), "f32[1048576, 524288]");
      EXPECT_EQ(piece.device().type, DeviceType::kMeta);
    }
    OneParameter vector({.shape = {3}, .initializer = Orthogonal()});
    EXPECT_EQ(ErrorOf([&] { Materialize(vector, context); }),
              "'w' [3]: an orthogonal value with 1 dims as rows wants more dims");
  };
  RunRanks(1, on_meta, {.device = DeviceType::kMeta});
}

TEST(InitializersTest, Misuse) {
  EXPECT_EQ(ErrorOf([] { XavierNormal(-1); }), "XavierNormal: expected a gain of at least 0, got -1");
  EXPECT_EQ(ErrorOf([] { KaimingUniform({.negative_slope = NAN}); }),
            "KaimingUniform: expected a finite negative_slope, got nan");
  EXPECT_EQ(ErrorOf([] { Orthogonal({.gain = NAN}); }), "Orthogonal: expected a finite gain, got nan");
  EXPECT_EQ(ErrorOf([] { TruncatedNormal({.mean = NAN}); }),
            "TruncatedNormal: expected a finite mean, got nan");
  EXPECT_EQ(ErrorOf([] { TruncatedNormal({.stddev = 0}); }),
            "TruncatedNormal: expected a deviation above 0, got 0");
  EXPECT_EQ(ErrorOf([] { TruncatedNormal({.low = 1, .high = 1}); }),
            "TruncatedNormal: expected low below high, got 1 and 1");
  EXPECT_EQ(ErrorOf([] { TruncatedNormal({.low = 50, .high = 60}); }),
            "TruncatedNormal: none of the distribution lies between 50 and 60");
  EXPECT_EQ(ErrorOf([] { Orthogonal({.row_dims = 0}); }),
            "Orthogonal: expected at least one dim of rows, got 0");
  EXPECT_EQ(ErrorOf([] { FromFunction(nullptr); }), "FromFunction: expected a function, got an empty one");
  EXPECT_EQ(ErrorOf([] { ValueOf({.shape = {3}, .initializer = Orthogonal()}); }),
            "rank 0: 'w' [3]: an orthogonal value with 1 dims as rows wants more dims");
  EXPECT_EQ(ErrorOf([] {
              ValueOf({.shape = {3, 2, 2}, .initializer = KaimingNormal()});
            }),
            "rank 0: 'w' [3, 2, 2]: an initializer that is scaled by fans wants dims [in, out], or "
            "ParameterSpec::fans");
  EXPECT_EQ(ErrorOf([] { ValueOf({.shape = {3}, .initializer = Initializer::Made(nullptr)}); }),
            "rank 0: 'w': expected an initializer's maker, got none");
}

}  // namespace
}  // namespace weft
