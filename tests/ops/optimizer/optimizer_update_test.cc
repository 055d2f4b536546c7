#include "ops/optimizer/optimizer_update.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/elementwise/elementwise.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor FromDoubles(const Shape& shape, const std::vector<double>& values, DType dtype) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor Scalar(double value, DType dtype = DType::kF32) { return FromDoubles({}, {value}, dtype); }

Tensor Uniform(const Shape& shape, double low, double high, DType dtype, int seed) {
  std::mt19937_64 random(seed);
  return RandomTensor({{dtype, shape}, low, high}, random);
}

// kAdamWRates of the t-th update.
Tensor Rates(const AdamWScalars& s, int64_t t = 1) {
  return RunOp(kAdamWRates, {Tensor::FromValues<int64_t>({}, {t})}, {},
               {.lr = s.lr, .beta1 = s.beta1, .beta2 = s.beta2});
}

// The algorithm of torch.optim.AdamW, one element at a time.
struct NaiveAdamW {
  double p, m = 0, v = 0;

  void Step(double g, int step, const AdamWScalars& s) {
    p *= 1 - s.lr * s.weight_decay;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(s.beta1, step));
    const double v_hat = v / (1 - std::pow(s.beta2, step));
    p -= s.lr * m_hat / (std::sqrt(v_hat) + s.eps);
  }
};

TEST(AdamWTest, ThreeStepsMatchANaiveLoop) {
  struct Case {
    DType dtype;
    double tolerance;
  };
  for (const Case& c : {Case{DType::kF32, 1e-6}, Case{DType::kF64, 1e-14}}) {
    for (int64_t n : {0, 1, 15, 17, 513, 40001}) {
      const Tensor p = Uniform({n}, -1, 1, c.dtype, 1);
      const Tensor m = FromDoubles({n}, std::vector<double>(n, 0), c.dtype);
      const Tensor v = FromDoubles({n}, std::vector<double>(n, 0), c.dtype);
      std::vector<NaiveAdamW> naive;
      for (double value : p.ToVector<double>()) naive.push_back({.p = value});
      for (int step = 1; step <= 3; ++step) {
        const Tensor g = Uniform({n}, -2, 2, c.dtype, 10 + step);
        const double clip = 1.0 / step;
        const AdamWScalars scalars = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
        RunAll(kAdamWUpdate, {p, m, v, g, Scalar(clip, DType::kF64), Rates(scalars, step)}, {}, scalars,
               /*num_threads=*/2);
        const std::vector<double> gradients = g.ToVector<double>();
        for (int64_t i = 0; i < n; ++i) naive[i].Step(gradients[i] * clip, step, scalars);
      }
      std::vector<double> expected_p, expected_m, expected_v;
      for (const NaiveAdamW& element : naive) {
        expected_p.push_back(element.p);
        expected_m.push_back(element.m);
        expected_v.push_back(element.v);
      }
      EXPECT_TRUE(AllClose(p, FromDoubles({n}, expected_p, c.dtype), c.tolerance));
      EXPECT_TRUE(AllClose(m, FromDoubles({n}, expected_m, c.dtype), c.tolerance));
      EXPECT_TRUE(AllClose(v, FromDoubles({n}, expected_v, c.dtype), c.tolerance));
    }
  }
}

TEST(AdamWTest, FirstStepMovesByTheLearningRate) {
  // m_hat / sqrt(v_hat) is the sign of g, whatever its size.
  const Tensor p = FromDoubles({3}, {1, 1, 1}, DType::kF32);
  const Tensor m = FromDoubles({3}, {0, 0, 0}, DType::kF32);
  const Tensor v = FromDoubles({3}, {0, 0, 0}, DType::kF32);
  const Tensor g = FromDoubles({3}, {100, -0.5, 0}, DType::kF32);
  RunAll(kAdamWUpdate, {p, m, v, g, Scalar(1), Rates({.lr = 0.25})}, {}, {.lr = 0.25});
  EXPECT_TRUE(AllClose(p, FromDoubles({3}, {0.75, 1.25, 1}, DType::kF32), 1e-6));
}

TEST(AdamWTest, MixedPrecisionGradientAndHalfState) {
  const Tensor p = Uniform({700}, -1, 1, DType::kF32, 1);
  const Tensor g = Uniform({700}, -1, 1, DType::kBF16, 2);
  const Tensor g32 = CastTensor(g, DType::kF32, MakeCpuAllocator());
  const std::vector<Tensor> a = {CloneTensor(p, MakeCpuAllocator()),
                                 FromDoubles({700}, std::vector<double>(700), DType::kF32),
                                 FromDoubles({700}, std::vector<double>(700), DType::kF32),
                                 g,
                                 Scalar(0.5),
                                 Rates({})};
  std::vector<Tensor> b = CopyTensors(a);
  b[3] = g32;
  RunAll(kAdamWUpdate, a);
  RunAll(kAdamWUpdate, b);
  for (int i : {0, 1, 2}) EXPECT_TRUE(SameBits(a[i], b[i])) << i;
  // All bf16: computed in float, rounded once.
  std::vector<Tensor> c;
  for (const Tensor& tensor : {p, a[1], a[2], g})
    c.push_back(CastTensor(tensor, DType::kBF16, MakeCpuAllocator()));
  std::vector<Tensor> d;
  for (const Tensor& tensor : c) d.push_back(CastTensor(tensor, DType::kF32, MakeCpuAllocator()));
  for (std::vector<Tensor>* operands : {&c, &d}) {
    operands->push_back(Scalar(1));
    operands->push_back(Rates({}));
  }
  RunAll(kAdamWUpdate, c);
  RunAll(kAdamWUpdate, d);
  for (int i : {0, 1, 2})
    EXPECT_TRUE(SameBits(c[i], CastTensor(d[i], DType::kBF16, MakeCpuAllocator()))) << i;
}

TEST(AdamWTest, StridedSlotsAndThreadsGiveTheSameBits) {
  const Tensor base = Uniform({3, 200, 130}, 0.1, 1, DType::kF32, 4);
  const Tensor g = Uniform({130, 200}, -1, 1, DType::kF32, 5);
  const std::vector<Tensor> strided = {base.Select(0, 0).Transpose(0, 1),
                                       base.Select(0, 1).Transpose(0, 1),
                                       base.Select(0, 2).Transpose(0, 1),
                                       g,
                                       Scalar(1),
                                       Rates({}, 2)};
  const std::vector<Tensor> dense = CopyTensors(strided);
  RunAll(kAdamWUpdate, strided, {}, {}, /*num_threads=*/2);
  RunAll(kAdamWUpdate, dense, {}, {}, /*num_threads=*/1);
  for (int i : {0, 1, 2}) EXPECT_TRUE(SameBits(CloneTensor(strided[i], MakeCpuAllocator()), dense[i])) << i;
}

TEST(AdamWTest, RatesAreThoseOfTheCount) {
  for (const double beta2 : {0.95, 0.999}) {
    for (const int64_t t : {1, 2, 3, 10, 999, 1000, 123456, 1 << 30}) {
      const AdamWScalars scalars = {.lr = 0.02, .beta1 = 0.9, .beta2 = beta2};
      const std::vector<double> rates = Rates(scalars, t).ToVector<double>();
      ASSERT_EQ(rates.size(), 2u);
      EXPECT_NEAR(rates[0] * (1 - std::pow(0.9, t)) / 0.02, 1, 1e-13) << t;
      EXPECT_NEAR(rates[1] * std::sqrt(1 - std::pow(beta2, t)), 1, 1e-13) << t;
    }
  }
}

TEST(OptimizerUpdateTest, FiniteFactorsAreCounted) {
  const Tensor count = Tensor::FromValues<int64_t>({}, {41});
  const auto after = [&](const Tensor& factor) {
    RunAll(kCountUpdate, {count, factor});
    return count.ToVector<int64_t>()[0];
  };
  EXPECT_EQ(after(Scalar(0.5)), 42);
  for (const double s : {kNan, kInf, -kInf}) EXPECT_EQ(after(Scalar(s)), 42);
  EXPECT_EQ(after(Scalar(kNan, DType::kF64)), 42);
  EXPECT_EQ(after(Scalar(0, DType::kF64)), 43);
}

TEST(SgdTest, MatchesClosedForm) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor p = FromDoubles({3}, {1, -2, 4}, dtype);
    const Tensor g = FromDoubles({3}, {2, 4, -8}, dtype);
    RunAll(kSgdUpdate, {p, g, Scalar(0.5)}, {}, {.lr = 0.25, .weight_decay = 0.5});
    // p - 0.25 * (0.5 g + 0.5 p)
    EXPECT_EQ(p.ToVector<double>(), (std::vector<double>{0.625, -2.25, 4.5}));
  }
}

TEST(SgdTest, MomentumMatchesClosedForm) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor p = FromDoubles({2}, {1, 0}, dtype);
    const Tensor b = FromDoubles({2}, {0, 8}, dtype);
    const Tensor g = FromDoubles({2}, {2, 4}, dtype);
    RunAll(kMomentumUpdate, {p, b, g, Scalar(1)}, {}, {.lr = 0.5, .momentum = 0.25});
    EXPECT_EQ(b.ToVector<double>(), (std::vector<double>{2, 6}));
    EXPECT_EQ(p.ToVector<double>(), (std::vector<double>{0, -3}));
    RunAll(kMomentumUpdate, {p, b, g, Scalar(1)}, {}, {.lr = 0.5, .momentum = 0.25, .weight_decay = 1});
    EXPECT_EQ(b.ToVector<double>(), (std::vector<double>{2.5, 2.5}));  // 0.25 b + g + p
    EXPECT_EQ(p.ToVector<double>(), (std::vector<double>{-1.25, -4.25}));
  }
}

TEST(SgdTest, NesterovMatchesClosedForm) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor p = FromDoubles({2}, {1, 0}, dtype);
    const Tensor b = FromDoubles({2}, {0, 8}, dtype);
    const Tensor g = FromDoubles({2}, {4, 8}, dtype);
    RunAll(kNesterovUpdate, {p, b, g, Scalar(0.5)}, {}, {.lr = 0.5, .momentum = 0.25, .weight_decay = 2});
    EXPECT_EQ(b.ToVector<double>(), (std::vector<double>{4, 6}));         // 0.25 b + (0.5 g + 2 p)
    EXPECT_EQ(p.ToVector<double>(), (std::vector<double>{-1.5, -2.75}));  // p - 0.5 (0.5 g + 2 p + 0.25 b)
  }
}

TEST(LionTest, MatchesClosedForm) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor p = FromDoubles({4}, {1, -2, 4, 0}, dtype);
    const Tensor m = FromDoubles({4}, {4, 0, -4, 0}, dtype);
    const Tensor g = FromDoubles({4}, {-8, -8, 8, 0}, dtype);
    RunAll(kLionUpdate, {p, m, g, Scalar(0.5)}, {},
           {.lr = 0.25, .beta1 = 0.75, .beta2 = 0.5, .weight_decay = 0.5});
    // Directions 0.75 m + 0.125 g: 2, -1, -2, 0.
    EXPECT_EQ(p.ToVector<double>(), (std::vector<double>{0.875 - 0.25, -1.75 + 0.25, 3.5 + 0.25, 0}));
    EXPECT_EQ(m.ToVector<double>(), (std::vector<double>{0, -2, 0, 0}));
  }
}

TEST(LerpTest, GoesPartOfTheWay) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const Tensor m = FromDoubles({3}, {1, -2, 4}, dtype);
    RunAll(kLerpUpdate, {m, FromDoubles({3}, {5, -2, 0}, DType::kF32), Scalar(0.25, DType::kF64)});
    EXPECT_EQ(m.ToVector<double>(), (std::vector<double>{2, -2, 3}));
    RunAll(kLerpUpdate, {m, FromDoubles({3}, {7, 8, 9}, DType::kF32), Scalar(1)});
    EXPECT_EQ(m.ToVector<double>(), (std::vector<double>{7, 8, 9}));
  }
}

TEST(OptimizerUpdateTest, ANonFiniteFactorChangesNothing) {
  for (double s : {kNan, kInf, -kInf}) {
    std::vector<Tensor> state;
    for (int i = 0; i < 4; ++i) state.push_back(Uniform({33}, 0.1, 1, DType::kF32, i));
    const std::vector<Tensor> before = CopyTensors(state);
    RunAll(kAdamWUpdate, {state[0], state[1], state[2], state[3], Scalar(s), Rates({})});
    RunAll(kSgdUpdate, {state[0], state[3], Scalar(s)});
    RunAll(kMomentumUpdate, {state[0], state[1], state[3], Scalar(s)});
    RunAll(kNesterovUpdate, {state[0], state[1], state[3], Scalar(s)});
    RunAll(kLionUpdate, {state[0], state[1], state[3], Scalar(s)});
    RunAll(kLerpUpdate, {state[0], state[3], Scalar(s)});
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(SameBits(state[i], before[i])) << s << " " << i;
  }
}

TEST(ClipFactorTest, ScalesLongGradientsOnly) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const auto factor = [&](double x, double max_norm) {
      return RunOp(kClipFactor, {Scalar(x, dtype)}, {}, {.max_norm = max_norm}).ToVector<double>()[0];
    };
    EXPECT_NEAR(factor(25, 1), 0.2, 1e-6);
    EXPECT_NEAR(factor(25, 2.5), 0.5, 1e-6);
    EXPECT_EQ(factor(0.25, 1), 1);
    EXPECT_EQ(factor(0, 1), 1);
    EXPECT_TRUE(std::isnan(factor(kInf, 1)));
    EXPECT_TRUE(std::isnan(factor(kNan, 1)));
  }
}

TEST(AccumulateTest, AddsInPlace) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor acc = FromDoubles({2, 2}, {1, 2, 3, 4}, dtype);
    const Tensor x = FromDoubles({2, 2}, {10, 20, 30, 40}, DType::kF32).Transpose(0, 1);
    const Tensor out = RunOp(kAccumulate, {acc, x});
    EXPECT_EQ(out.data(), acc.data());
    EXPECT_EQ(acc.ToVector<double>(), (std::vector<double>{11, 32, 23, 44}));
  }
}

// One sum after the other, each rounded.
TEST(AddAllTest, IsAChainOfSums) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : {Shape{}, Shape{3, 5}, Shape{0, 2}, Shape{40001}}) {
      for (int count : {1, 2, 7}) {
        std::vector<Tensor> terms;
        for (int i = 0; i < count; ++i) {
          const Tensor term = Uniform(shape, -1, 1 << i, dtype, i);
          const bool turns = i % 3 == 2 && shape.ndim() == 2;
          terms.push_back(turns ? CloneTensor(term.Transpose(0, 1), MakeCpuAllocator()).Transpose(0, 1)
                                : term);
        }
        Tensor sum = terms[0];
        for (int i = 1; i < count; ++i) sum = RunOp(kAdd, {sum, terms[i]});
        EXPECT_TRUE(SameBits(RunOp(kAddAll, terms), sum)) << dtype << shape.ToString() << " " << count;
      }
    }
  }
}

TEST(OptimizerUpdateTest, MisuseIsNamed) {
  const Tensor p = Uniform({2, 3}, 0, 1, DType::kF32, 1);
  const Tensor f64 = Uniform({2, 3}, 0, 1, DType::kF64, 1);
  const Tensor flat = Uniform({6}, 0, 1, DType::kF32, 1);
  EXPECT_EQ(MessageOf([&] {
              RunAll(kAdamWUpdate, {p, f64, p, p, Scalar(1), Rates({})});
            }),
            "adamw_update: expected state of p's type f32[2, 3], got f64[2, 3]");
  EXPECT_EQ(MessageOf([&] {
              RunAll(kSgdUpdate, {p, flat, Scalar(1)});
            }),
            "sgd_update: expected g of a floating dtype and p's shape [2, 3], got f32[6]");
  EXPECT_EQ(MessageOf([&] {
              RunAll(kMomentumUpdate, {p, p, p, p});
            }),
            "momentum_update: expected s a scalar of f32 or f64, got f32[2, 3]");
  EXPECT_EQ(MessageOf([&] {
              RunAll(kAdamWUpdate, {p, p, p, p, Scalar(1), Scalar(1)});
            }),
            "adamw_update: expected r as adamw_rates makes it, f64[2], got f32[]");
  EXPECT_EQ(MessageOf([&] {
              RunAll(kCountUpdate, {Scalar(0), Scalar(1)});
            }),
            "count_update: expected t a scalar of i64, got f32[]");
  EXPECT_EQ(MessageOf([&] {
              RunAll(kCountUpdate, {Tensor::FromValues<int64_t>({}, {0}), flat});
            }),
            "count_update: expected s a scalar of f32 or f64, got f32[6]");
  EXPECT_EQ(MessageOf([&] { RunOp(kAdamWRates, {Scalar(1)}); }),
            "adamw_rates: expected t a scalar of i64, got f32[]");
  EXPECT_EQ(MessageOf([&] {
              RunAll(kAccumulate, {p, flat});
            }),
            "accumulate: expected floating operands of one shape, got f32[2, 3] and f32[6]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kAddAll, {p, flat});
            }),
            "add_all: expected operands of one type, got f32[2, 3] and f32[6]");
  EXPECT_EQ(MessageOf([&] { RunOp(kAddAll, {CastTensor(p, DType::kI32, MakeCpuAllocator())}); }),
            "add_all: expected floating operands, got i32[2, 3]");
  EXPECT_EQ(MessageOf([&] { RunOp(kClipFactor, {flat}); }),
            "clip_factor: expected a scalar of f32 or f64, got f32[6]");
}

}  // namespace
}  // namespace weft
