// Functions over rows of any storage type: each instruction set level that this machine runs.

#include "ops/cpu/spans/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "ops/cpu/normalization/norm_functions.h"
#include "runtime/base/dtype.h"
#include "tests/ops/cpu/each_level.h"

namespace weft {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Each element alone, by a row of one.
TEST(Rows, ExpIsAccurateToItsEnds) {
  ForEachLevel([] {
    for (const float x : UniformFloats(20'000, -87.2f, 88.6f)) {
      ASSERT_NEAR(Rows<float>().exp_sum(&x, 1, 0) / std::exp(static_cast<double>(x)), 1, 5e-7) << x;
    }
    const float zero = 0;
    EXPECT_EQ(Rows<float>().exp_sum(&zero, 1, 0), 1);
    const float ends[] = {-kInf, -1e30f, -88, 89, 1000, kInf, std::numeric_limits<float>::quiet_NaN()};
    float y[7];
    Rows<float>().exp_affine(ends, 7, 0, 1, 0, y);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(y[i], 0) << ends[i];
    for (int i = 3; i < 6; ++i) EXPECT_EQ(y[i], kInf) << ends[i];
    EXPECT_TRUE(std::isnan(y[6]));
  });
}

// Whatever a nan carries in the bits that a power of two is added to.
TEST(Rows, NansStayNansWhateverTheyCarry) {
  const float nan = std::bit_cast<float>(0x7fffffffu);
  ForEachLevel([&] {
    float y = 0;
    Rows<float>().exp_affine(&nan, 1, 0, 1, 0, &y);
    EXPECT_TRUE(std::isnan(y));
    EXPECT_TRUE(std::isnan(Rows<float>().exp_sum(&nan, 1, 0)));
    EXPECT_TRUE(std::isnan(Rows<float>().log_sum_exp(&nan, 1).Value()));
    const float row[] = {-kInf, nan, -kInf};
    EXPECT_TRUE(std::isnan(Rows<float>().log_sum_exp(row, 3).Value()));
  });
}

// Of statistics too, which are floats: no such bits may carry into what halves keep.
TEST(Rows, NansOfStatisticsReachEveryHalf) {
  const float nan = std::bit_cast<float>(0x7fffffffu);
  const std::vector<BFloat16> x(37, BFloat16(1.5f));
  ForEachLevel([&] {
    std::vector<BFloat16> y(37);
    const auto expect = [&](const char* what) {
      for (const BFloat16& value : y) ASSERT_TRUE(std::isnan(static_cast<float>(value))) << what;
      y.assign(37, BFloat16(0.0f));
    };
    Rows<BFloat16>().exp_affine(x.data(), 37, nan, 1, 0, y.data());
    expect("exp_affine");
    Rows<BFloat16>().affine(x.data(), 37, 0, nan, 0, y.data());
    expect("affine's scale");
    Rows<BFloat16>().affine(x.data(), 37, 0, 1, nan, y.data());
    expect("affine's bias");
    Rows<BFloat16>().softmax_grad(x.data(), x.data(), 37, nan, y.data());
    expect("softmax_grad");
    Rows<BFloat16>().log_softmax_grad(x.data(), x.data(), 37, nan, y.data());
    expect("log_softmax_grad");
    NormRows<BFloat16>().normalize(x.data(), x.data(), x.data(), 37, nan, 1, y.data());
    expect("normalize");
    NormRows<BFloat16>().grad(x.data(), x.data(), x.data(), 37, 0, 1, nan, 0, y.data());
    expect("grad");
  });
}

// Storage types, and how much rounding to one may add to a result of size 1.
template <class S>
constexpr double kHalfSpacing = std::is_same_v<S, BFloat16>  ? 0x1p-9
                                : std::is_same_v<S, Float16> ? 0x1p-12
                                                             : 0;

template <class S>
std::vector<S> Stored(const std::vector<float>& values) {
  std::vector<S> stored;
  for (const float value : values) stored.push_back(S(value));
  return stored;
}

// Calls body(TypeTag<S>()) with every storage type, at every level.
template <class Body>
void ForEachStorage(const Body& body) {
  ForEachLevel([&] {
    body(TypeTag<float>());
    body(TypeTag<double>());
    body(TypeTag<BFloat16>());
    body(TypeTag<Float16>());
  });
}

// One, vectors and packs of every level short by one, whole and one more, and a block plus one.
const std::vector<int64_t> kRowSizes = {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 131, 4097};

TEST(Rows, ReductionsOfAnyStorageMatchDoubles) {
  ForEachStorage([]<class S>(TypeTag<S>) {
    using C = ComputeType<S>;
    for (const int64_t n : kRowSizes) {
      const std::vector<S> x = Stored<S>(UniformFloats(n, -3, 2)), w = Stored<S>(UniformFloats(n + 1, -1, 1));
      const auto expect = [&](double actual, auto term) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < n; ++i) {
          const double t = term(static_cast<double>(x[i]), static_cast<double>(w[i]));
          sum += t, size += std::abs(t);
        }
        ASSERT_NEAR(actual, sum, (sizeof(S) == 2 ? 8e-6 : 2e-6) * size) << n;
      };
      expect(Rows<S>().sum(x.data(), n), [](double a, double) { return a; });
      expect(Rows<S>().dot(x.data(), w.data(), n), [](double a, double b) { return a * b; });
      expect(Rows<S>().centered_squares(x.data(), n, C(0.5)),
             [](double a, double) { return (a - 0.5) * (a - 0.5); });
      expect(Rows<S>().exp_sum(x.data(), n, C(1)), [](double a, double) { return std::exp(a - 1); });
      double max = -kInf;
      for (const S& value : x) max = std::max(max, static_cast<double>(value));
      ASSERT_EQ(static_cast<double>(Rows<S>().max(x.data(), n)), max) << n;
      const LogSumExp lse = Rows<S>().log_sum_exp(x.data(), n);
      ASSERT_EQ(lse.max, max) << n;
      expect(lse.sum, [&](double a, double) { return std::exp(a - max); });
    }
  });
}

// A maximum that rises by much and by little, early and late, from -inf and back to it.
TEST(Rows, LogSumExpFollowsTheMaximum) {
  ForEachStorage([]<class S>(TypeTag<S>) {
    for (const int64_t n : {int64_t{1}, int64_t{70}, int64_t{1000}, int64_t{9001}}) {
      std::vector<float> values = UniformFloats(n, -1, 1);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t part = 10 * i / n;
        const float steps[] = {-kInf, -300, -300, -290, -280, 5, 20, 150, 140, -kInf};
        values[i] = n == 1 ? 3 : steps[part] + values[i];
      }
      const std::vector<S> x = Stored<S>(values);
      double max = -kInf, sum = 0;
      for (const S& value : x) max = std::max(max, static_cast<double>(value));
      for (const S& value : x) sum += std::exp(static_cast<double>(value) - max);
      const LogSumExp lse = Rows<S>().log_sum_exp(x.data(), n);
      EXPECT_EQ(lse.max, max) << n;
      EXPECT_NEAR(lse.sum, sum, (sizeof(S) == 2 ? 1e-5 : 3e-6) * sum) << n;
    }
    const std::vector<S> nothing = Stored<S>(std::vector<float>(100, -kInf));
    EXPECT_EQ(Rows<S>().log_sum_exp(nothing.data(), 100).Value(), -kInf);
    EXPECT_EQ(Rows<S>().log_sum_exp(nothing.data(), 0).Value(), -kInf);
    std::vector<S> most = nothing;
    most[50] = S(kInf);
    EXPECT_TRUE(std::isnan(Rows<S>().log_sum_exp(most.data(), 100).Value()));
  });
}

// |actual - expected| within rounding to S, and a little of the size of the terms.
template <class S>
void ExpectRounded(const S& actual, double expected, double terms, const std::string& where) {
  const double size = std::abs(expected);
  const double subnormal = std::is_same_v<S, Float16> ? 0x1p-25 : 0;
  const double tolerance = 2 * kHalfSpacing<S> * size + (sizeof(S) == 2 ? 1e-5 : 2e-6) * terms + subnormal;
  ASSERT_NEAR(static_cast<double>(actual), expected, tolerance) << where;
}

TEST(Rows, MapsOfAnyStorageMatchDoubles) {
  ForEachStorage([]<class S>(TypeTag<S>) {
    using C = ComputeType<S>;
    for (const int64_t n : kRowSizes) {
      const std::vector<S> x = Stored<S>(UniformFloats(n, -3, 2)),
                           dy = Stored<S>(UniformFloats(n + 1, -1, 1));
      std::vector<S> y(n + 1, S(99.0f));
      const auto expect = [&](const char* name, auto value, double terms = 1) {
        for (int64_t i = 0; i < n; ++i) {
          ExpectRounded(y[i], value(static_cast<double>(x[i]), static_cast<double>(dy[i])), terms,
                        std::string(name) + " at " + std::to_string(i) + " of " + std::to_string(n));
        }
        ASSERT_EQ(static_cast<double>(y[n]), 99) << name << " " << n;
      };
      Rows<S>().exp_affine(x.data(), n, C(1), C(0.5), C(0.25), y.data());
      expect("exp_affine", [](double a, double) { return std::exp(a - 1) * 0.5 + 0.25; });
      Rows<S>().affine(x.data(), n, C(1), C(2), C(0.25), y.data());
      expect("affine", [](double a, double) { return (a - 1) * 2 + 0.25; });
      Rows<S>().softmax_grad(x.data(), dy.data(), n, C(0.5), y.data());
      expect("softmax_grad", [](double a, double b) { return a * (b - 0.5); });
      Rows<S>().log_softmax_grad(x.data(), dy.data(), n, C(0.5), y.data());
      expect("log_softmax_grad", [](double a, double b) { return b - std::exp(a) * 0.5; });
      std::vector<C> scratch(n + kRowScratch);
      Rows<S>().softmax(x.data(), n, scratch.data(), y.data());
      double sum = 0;
      for (const S& value : x) sum += std::exp(static_cast<double>(value));
      const auto share = [&](double a, double) { return std::exp(a) / sum; };
      expect("softmax", share, /*terms=*/share(2, 0));
    }
  });
}

TEST(NormRows, MatchTheirDefinition) {
  ForEachStorage([]<class S>(TypeTag<S>) {
    using C = ComputeType<S>;
    const NormFunctions<S>& functions = NormRows<S>();
    for (const int64_t n : kRowSizes) {
      const std::vector<S> x = Stored<S>(UniformFloats(n, -2, 3)), w = Stored<S>(UniformFloats(n + 1, -1, 1)),
                           dy = Stored<S>(UniformFloats(n + 2, -3, 1));
      const int64_t places = functions.NumSums(n);
      ASSERT_LE(places, n + kRowScratch);
      std::vector<C> dw(places + 1, C(0.5)), db(places + 1, C(0.25));
      const NormSums sums =
          functions.grad_sums(x.data(), w.data(), dy.data(), n, C(0.5), C(2), dw.data(), db.data());
      std::vector<S> y(n + 1, S(99.0f)), dx = y;
      functions.normalize(x.data(), w.data(), dy.data(), n, C(0.5), C(2), y.data());
      functions.grad(x.data(), w.data(), dy.data(), n, C(0.5), C(2), C(0.125), C(0.25), dx.data());
      double g = 0, g_centered = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double value = static_cast<double>(x[i]) - 0.5, gradient = static_cast<double>(dy[i]);
        const double weight = static_cast<double>(w[i]);
        g += gradient * weight, g_centered += gradient * weight * value;
        const std::string where = std::to_string(i) + " of " + std::to_string(n);
        ExpectRounded(y[i], value * 2 * weight + gradient, /*terms=*/4, where);
        ExpectRounded(dx[i], 2 * (gradient * weight - 0.125 - value * 2 * 0.25), /*terms=*/4, where);
      }
      EXPECT_NEAR(sums.g, g, 1e-3) << n;
      EXPECT_NEAR(sums.g_centered, g_centered, 3e-3) << n;
      EXPECT_NEAR(functions.grad_dot(x.data(), w.data(), dy.data(), n, C(0.5)), g_centered, 3e-3) << n;
      EXPECT_EQ(static_cast<double>(y[n]), 99);
      EXPECT_EQ(static_cast<double>(dx[n]), 99);
      // Every column once, and what weight_grad does, the same.
      std::vector<C> dw_alone(places + 1, C(0.5)), db_alone(places + 1, C(0.25));
      functions.weight_grad(x.data(), dy.data(), n, C(0.5), C(2), dw_alone.data(), db_alone.data());
      std::vector<int> seen(n, 0);
      for (int64_t place = 0; place < places; ++place) {
        const int64_t i = functions.ColumnOfSum(place);
        if (i >= n) continue;
        ++seen[i];
        const double gradient = static_cast<double>(dy[i]);
        ASSERT_NEAR(dw[place], 0.5 + gradient * (static_cast<double>(x[i]) - 0.5) * 2, 4e-6);
        ASSERT_NEAR(db[place], 0.25 + gradient, 1e-6);
        ASSERT_EQ(dw[place], dw_alone[place]);
        ASSERT_EQ(db[place], db_alone[place]);
      }
      EXPECT_EQ(seen, std::vector<int>(n, 1));
      EXPECT_EQ(dw[places], C(0.5));
      EXPECT_EQ(db[places], C(0.25));
    }
  });
}

// A sum with 0 leaves a half as it is: all of them, out and back.
TEST(Rows, HalvesPassUnchanged) {
  const auto expect = []<class H>(TypeTag<H>) {
    for (uint32_t first = 0; first < 0x10000; first += 4096) {
      std::vector<H> x, y(4096);
      for (uint32_t i = 0; i < 4096; ++i) x.push_back(H::FromBits(static_cast<uint16_t>(first + i)));
      Rows<H>().affine(x.data(), 4096, /*shift=*/0, /*scale=*/1, /*bias=*/-0.0f, y.data());
      for (int i = 0; i < 4096; ++i) {
        ASSERT_EQ(y[i].bits(), H(static_cast<float>(x[i])).bits()) << first + i;
      }
    }
  };
  ForEachLevel([&] {
    expect(TypeTag<BFloat16>());
    expect(TypeTag<Float16>());
  });
}

}  // namespace
}  // namespace weft
