#include "ops/attention/attention.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/check_gradients.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

Tensor Random(DType dtype, const Shape& shape, unsigned seed, double scale = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-scale, scale);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = uniform(random);
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

struct Extents {
  int64_t b, s, t, h, g, e;
};

// Row-major elements of [rows of heads, ...] tensors, in double.
struct Oracle {
  Extents n;
  AttentionAttributes a;
  std::vector<double> q, k, v;

  size_t Q(int64_t b, int64_t i, int64_t h, int64_t g, int64_t e) const {
    return (((b * n.s + i) * n.h + h) * n.g + g) * n.e + e;
  }
  size_t K(int64_t b, int64_t j, int64_t h, int64_t e) const { return ((b * n.t + j) * n.h + h) * n.e + e; }

  double scale() const { return a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(n.e)); }

  // Probabilities of the keys for one query, and its log-sum-exp.
  std::vector<double> Probabilities(int64_t b, int64_t i, int64_t h, int64_t g, double* lse) const {
    const int64_t seen = a.causal ? i + n.t - n.s + 1 : n.t;
    std::vector<double> p(n.t, 0.0);
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < seen; ++j) {
      for (int64_t e = 0; e < n.e; ++e) p[j] += scale() * q[Q(b, i, h, g, e)] * k[K(b, j, h, e)];
      max = std::max(max, p[j]);
    }
    double sum = 0;
    for (int64_t j = 0; j < seen; ++j) sum += p[j] = std::exp(p[j] - max);
    for (double& value : p) value /= sum;
    *lse = max + std::log(sum);
    return p;
  }

  template <class Body>
  void ForEachQuery(const Body& body) const {
    for (int64_t b = 0; b < n.b; ++b) {
      for (int64_t h = 0; h < n.h; ++h) {
        for (int64_t g = 0; g < n.g; ++g) {
          for (int64_t i = 0; i < n.s; ++i) body(b, h, g, i);
        }
      }
    }
  }

  void Forward(std::vector<double>& y, std::vector<double>& lse) const {
    y.assign(q.size(), 0.0);
    ForEachQuery([&](int64_t b, int64_t h, int64_t g, int64_t i) {
      double row_lse;
      const std::vector<double> p = Probabilities(b, i, h, g, &row_lse);
      lse.push_back(row_lse);
      for (int64_t j = 0; j < n.t; ++j) {
        for (int64_t e = 0; e < n.e; ++e) y[Q(b, i, h, g, e)] += p[j] * v[K(b, j, h, e)];
      }
    });
  }

  void Backward(const std::vector<double>& dy, std::vector<double>& dq, std::vector<double>& dk,
                std::vector<double>& dv) const {
    dq.assign(q.size(), 0.0);
    dk.assign(k.size(), 0.0);
    dv.assign(k.size(), 0.0);
    ForEachQuery([&](int64_t b, int64_t h, int64_t g, int64_t i) {
      double lse;
      const std::vector<double> p = Probabilities(b, i, h, g, &lse);
      std::vector<double> dp(n.t, 0.0);
      double mean = 0;
      for (int64_t j = 0; j < n.t; ++j) {
        for (int64_t e = 0; e < n.e; ++e) dp[j] += dy[Q(b, i, h, g, e)] * v[K(b, j, h, e)];
        mean += p[j] * dp[j];
      }
      for (int64_t j = 0; j < n.t; ++j) {
        const double ds = scale() * p[j] * (dp[j] - mean);
        for (int64_t e = 0; e < n.e; ++e) {
          dq[Q(b, i, h, g, e)] += ds * k[K(b, j, h, e)];
          dk[K(b, j, h, e)] += ds * q[Q(b, i, h, g, e)];
          dv[K(b, j, h, e)] += p[j] * dy[Q(b, i, h, g, e)];
        }
      }
    });
  }
};

Tensor As(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

enum class Heads { kPlain, kGrouped, kMerged };

Shape QueryShape(const Extents& n, Heads heads) {
  if (heads == Heads::kGrouped) return {n.b, n.s, n.h, n.g, n.e};
  return {n.b, n.s, n.h * n.g, n.e};
}

void CheckAgainstOracle(const Extents& n, Heads heads, const AttentionAttributes& a, DType dtype,
                        double tolerance, double size = 1) {
  const std::string what = absl::StrCat("b ", n.b, " s ", n.s, " t ", n.t, " h ", n.h, " g ", n.g, " e ", n.e,
                                        " ", DTypeName(dtype), a.causal ? " causal" : "");
  const Shape q_shape = QueryShape(n, heads);
  const Shape k_shape = {n.b, n.t, n.h, n.e};
  const Tensor q = Random(dtype, q_shape, 1, size);
  const Tensor k = Random(dtype, k_shape, 2, size);
  const Tensor v = Random(dtype, k_shape, 3);
  const Tensor dy = Random(dtype, q_shape, 4);
  const Oracle oracle = {n, a, q.ToVector<double>(), k.ToVector<double>(), v.ToVector<double>()};

  const std::vector<Tensor> outputs = RunAll(kAttention, {q, k, v}, a);
  std::vector<double> y, lse;
  oracle.Forward(y, lse);
  EXPECT_TRUE(AllClose(outputs[0], As(dtype, q_shape, y), tolerance)) << what;
  EXPECT_TRUE(AllClose(outputs[1], As(outputs[1].dtype(), outputs[1].shape(), lse), tolerance)) << what;

  std::vector<double> dq, dk, dv;
  oracle.Backward(dy.ToVector<double>(), dq, dk, dv);
  const std::vector<Tensor> grads = Backward(kAttention, {q, k, v}, {dy, Tensor()}, a);
  EXPECT_TRUE(AllClose(grads[0], As(dtype, q_shape, dq), 4 * tolerance)) << what << ": dq";
  EXPECT_TRUE(AllClose(grads[1], As(dtype, k_shape, dk), 4 * tolerance)) << what << ": dk";
  EXPECT_TRUE(AllClose(grads[2], As(dtype, k_shape, dv), 4 * tolerance)) << what << ": dv";
}

// One query, one key, odd numbers, a block of 64 queries or 256 keys plus a few.
TEST(AttentionTest, MatchesTheDefinition) {
  for (const Extents& n :
       {Extents{1, 1, 1, 1, 1, 1}, Extents{2, 3, 3, 2, 1, 5}, Extents{1, 1, 7, 2, 1, 4},
        Extents{1, 130, 130, 2, 1, 8}, Extents{1, 5, 517, 1, 1, 3}, Extents{1, 65, 600, 1, 1, 4}}) {
    for (bool causal : {false, true}) {
      CheckAgainstOracle(n, Heads::kPlain, {.causal = causal}, DType::kF64, 1e-12);
      CheckAgainstOracle(n, Heads::kPlain, {.causal = causal, .scale = 1.5}, DType::kF32, 1e-5);
    }
  }
}

// Blocks of 64 queries and 256 keys, panels of 64 keys, vectors of 16 elements: one less, as many, one more.
TEST(AttentionTest, EdgesOfBlocks) {
  for (int64_t s : {15, 16, 17, 63, 64, 65, 131}) {
    for (bool causal : {false, true}) {
      CheckAgainstOracle({1, s, s, 2, 1, 16}, Heads::kPlain, {.causal = causal}, DType::kF32, 1e-5);
    }
  }
  for (int64_t t : {255, 256, 257, 515}) {
    for (int64_t s : {int64_t{6}, int64_t{70}, t - 1, t}) {
      CheckAgainstOracle({1, s, t, 1, 1, 8}, Heads::kPlain, {.causal = true}, DType::kF32, 1e-5);
    }
    CheckAgainstOracle({1, t, t, 1, 1, 5}, Heads::kPlain, {.causal = true}, DType::kF64, 1e-12);
  }
  for (int64_t e : {1, 15, 17, 63, 64, 65, 128}) {
    for (bool causal : {false, true}) {
      CheckAgainstOracle({1, 67, 67, 1, 1, e}, Heads::kPlain, {.causal = causal}, DType::kF32, 1e-5);
    }
  }
}

// More queries than keys, and fewer than a transpose of the keys is worth.
TEST(AttentionTest, FewQueriesOrFewKeys) {
  for (int64_t s = 1; s <= 5; ++s) {
    for (bool causal : {false, true}) {
      CheckAgainstOracle({2, s, 300, 2, 1, 20}, Heads::kPlain, {.causal = causal}, DType::kF32, 1e-5);
      CheckAgainstOracle({1, s, 257, 2, 3, 16}, Heads::kGrouped, {.causal = causal}, DType::kBF16, 8e-3);
    }
  }
  CheckAgainstOracle({1, 150, 3, 1, 1, 4}, Heads::kPlain, {}, DType::kF32, 1e-5);
  CheckAgainstOracle({1, 150, 1, 1, 2, 4}, Heads::kMerged, {}, DType::kF32, 1e-5);
}

TEST(AttentionTest, GroupedQueries) {
  const Extents n = {2, 9, 9, 2, 3, 4};
  for (Heads heads : {Heads::kGrouped, Heads::kMerged}) {
    CheckAgainstOracle(n, heads, {.causal = true}, DType::kF64, 1e-12);
    CheckAgainstOracle(n, heads, {.causal = false}, DType::kF32, 1e-5);
  }
}

TEST(AttentionTest, HalvesComputeInFloat) {
  CheckAgainstOracle({2, 5, 5, 2, 1, 4}, Heads::kPlain, {.causal = true}, DType::kBF16, 8e-3);
  CheckAgainstOracle({2, 5, 5, 2, 1, 4}, Heads::kPlain, {.causal = true}, DType::kF16, 1e-3);
  CheckAgainstOracle({1, 70, 70, 2, 1, 33}, Heads::kPlain, {.causal = true}, DType::kBF16, 8e-3);
  CheckAgainstOracle({1, 70, 300, 1, 2, 64}, Heads::kGrouped, {}, DType::kBF16, 8e-3);
  CheckAgainstOracle({1, 70, 70, 2, 1, 33}, Heads::kPlain, {.causal = true}, DType::kF16, 1e-3);
}

// Scores up to 10^4: exp of any of them alone overflows.
TEST(AttentionTest, LargeScoresDoNotOverflow) {
  CheckAgainstOracle({1, 20, 20, 1, 1, 4}, Heads::kPlain, {.causal = true, .scale = 1}, DType::kF64, 1e-9,
                     50);
  // Long rows in float: the scores, up to some 500, round to 6e-5 before exp.
  CheckAgainstOracle({1, 300, 300, 1, 1, 8}, Heads::kPlain, {.causal = true, .scale = 0.25}, DType::kF32,
                     2e-3, 20);
  const Tensor q = Random(DType::kF32, {1, 20, 1, 4}, 1, 50);
  const std::vector<Tensor> outputs = RunAll(kAttention, {q, q, q}, {.causal = false, .scale = 1});
  for (double value : outputs[0].ToVector<double>()) EXPECT_LE(std::abs(value), 50.001);
}

TEST(AttentionTest, StridedOperands) {
  const Tensor qkv = Random(DType::kF32, {2, 7, 3, 2, 4}, 1);
  const auto copy = [](const Tensor& tensor) { return CloneTensor(tensor, MakeCpuAllocator()); };
  // Slices of a packed qkv; k as [b, h, t, e] in memory; v with strided elements; dy expanded.
  const Tensor q = qkv.Select(2, 0);
  const Tensor k = copy(qkv.Select(2, 1).Transpose(1, 2)).Transpose(1, 2);
  const Tensor v = copy(qkv.Select(2, 2).Transpose(1, 3)).Transpose(1, 3);
  const Tensor dy = Random(DType::kF32, {2, 1, 2, 1}, 9).Expand({2, 7, 2, 4});
  const AttentionAttributes a = {.causal = true};
  const std::vector<Tensor> strided = RunAll(kAttention, {q, k, v}, a);
  const std::vector<Tensor> dense = RunAll(kAttention, {copy(q), copy(k), copy(v)}, a);
  EXPECT_TRUE(AllClose(strided[0], dense[0], 1e-6));
  EXPECT_TRUE(AllClose(strided[1], dense[1], 1e-6));
  const std::vector<Tensor> strided_grads = Backward(kAttention, {q, k, v}, {dy, Tensor()}, a);
  const std::vector<Tensor> dense_grads =
      Backward(kAttention, {copy(q), copy(k), copy(v)}, {copy(dy), Tensor()}, a);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(AllClose(strided_grads[i], dense_grads[i], 1e-6)) << i;
}

// Heads enough for every thread, too few of them, and one alone, whose keys backward cuts into parts.
TEST(AttentionTest, BitsDoNotDependOnThreads) {
  for (const Shape& shape : {Shape{2, 300, 3, 16}, Shape{1, 900, 1, 20}, Shape{5, 3, 2, 16}}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor q = Random(dtype, shape, 1);
      const Tensor k = Random(dtype, shape, 2);
      const AttentionAttributes a = {.causal = true};
      const std::vector<Tensor> one = RunAll(kAttention, {q, k, k}, a, {}, /*num_threads=*/1);
      const std::vector<Tensor> grad = {q, k, k, one[0], one[1], q};
      const std::vector<Tensor> one_grads = RunAll(kAttentionGrad, grad, a, {}, 1);
      for (int threads : {2, 3}) {
        const std::vector<Tensor> many = RunAll(kAttention, {q, k, k}, a, {}, threads);
        EXPECT_TRUE(SameBits(many[0], one[0]) && SameBits(many[1], one[1])) << threads;
        const std::vector<Tensor> many_grads = RunAll(kAttentionGrad, grad, a, {}, threads);
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(many_grads[i], one_grads[i])) << threads << " " << i;
      }
    }
  }
}

// A query whose keys are all hidden from it but one sees that one, to the last bit: exp(0) is 1.
TEST(AttentionTest, TheFirstQueryOfACausalBlockSeesOneKey) {
  const Tensor q = Random(DType::kF32, {1, 70, 1, 20}, 1);
  const Tensor v = Random(DType::kF32, {1, 70, 1, 20}, 2);
  const Tensor y = RunOp(kAttention, {q, q, v}, {.causal = true});
  EXPECT_TRUE(SameBits(y.Slice(1, 0, 1), v.Slice(1, 0, 1)));
}

// In a whole vector and in the tail after it, for every vector width.
TEST(AttentionTest, NaNIsNotHidden) {
  for (int64_t bad : {0, 5, 16, 18}) {
    std::vector<float> keys(19, 1.0f);
    keys[bad] = std::nanf("");
    const Tensor k = Tensor::FromValues<float>({1, 19, 1, 1}, keys);
    const Tensor ones = Tensor::FromValues<float>({1, 19, 1, 1}, std::vector<float>(19, 1.0f));
    const std::vector<float> y = RunAll(kAttention, {ones, k, ones}, {.causal = true})[0].ToVector<float>();
    for (int64_t i = 0; i < 19; ++i) EXPECT_EQ(std::isnan(y[i]), i >= bad) << bad << " " << i;
  }
}

TEST(AttentionTest, EmptyExtents) {
  const std::vector<Tensor> no_keys =
      RunAll(kAttention, {Random(DType::kF32, {1, 2, 1, 3}, 1), Random(DType::kF32, {1, 0, 1, 3}, 2),
                          Random(DType::kF32, {1, 0, 1, 3}, 3)});
  EXPECT_EQ(no_keys[0].ToVector<float>(), std::vector<float>(6, 0.0f));
  EXPECT_EQ(no_keys[1].ToVector<float>(), std::vector<float>(2, -std::numeric_limits<float>::infinity()));
  for (const Shape& shape : {Shape{0, 2, 1, 3}, Shape{1, 0, 1, 3}, Shape{1, 2, 0, 3}}) {
    const Tensor x = Random(DType::kF32, shape, 1);
    EXPECT_EQ(RunOp(kAttention, {x, x, x}).shape(), shape);
    EXPECT_EQ(Backward(kAttention, {x, x, x}, {x, Tensor()})[1].shape(), shape);
  }
  // No queries: the gradients of the keys are 0.
  const Tensor q = Random(DType::kF32, {1, 0, 1, 3}, 1);
  const Tensor k = Random(DType::kF32, {1, 2, 1, 3}, 1);
  EXPECT_EQ(Backward(kAttention, {q, k, k}, {q, Tensor()})[2].ToVector<float>(), std::vector<float>(6, 0.0f));
}

std::string InferError(const Shape& q, const Shape& k, const AttentionAttributes& a = {}) {
  const TensorTypes types = {{DType::kF32, q}, {DType::kF32, k}, {DType::kF32, k}};
  try {
    kAttention.Infer(types, &a);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

TEST(AttentionTest, Errors) {
  EXPECT_EQ(
      InferError({1, 2, 3, 4}, {1, 2, 2, 4}),
      "attention: expected q [b, s, h, e] and k, v [b, t, h, e], or for grouped queries q [b, s, h, g, e] or "
      "[b, s, h*g, e], floating and of one dtype; got q f32[1, 2, 3, 4], k f32[1, 2, 2, 4], v f32[1, 2, 2, "
      "4]");
  EXPECT_EQ(
      InferError({1, 3, 1, 4}, {1, 2, 1, 4}, {.causal = true}),
      "attention: a causal mask lets the last query see the last key, so there may not be more queries than "
      "keys; got q f32[1, 3, 1, 4], k f32[1, 2, 1, 4]");
  EXPECT_EQ(InferError({1, 3, 1, 0}, {1, 2, 1, 0}),
            "attention: heads must have elements, got k f32[1, 2, 1, 0]");
}

TEST(AttentionTest, RefusesAGradientOfTheLogSumExp) {
  const Tensor x = Random(DType::kF32, {1, 2, 1, 3}, 1);
  EXPECT_THROW(Backward(kAttention, {x, x, x}, {x, Random(DType::kF32, {1, 1, 2}, 1)}), Error);
}

}  // namespace
}  // namespace weft
