#include "ops/attention/masked_attention.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor Random(DType dtype, const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = uniform(random);
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor As(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

// bool: true for about two of three keys. Else uniform, with some -inf.
Tensor RandomMask(DType dtype, const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) {
    const bool seen = random() % 3 != 0;
    value = dtype == DType::kBool ? seen : seen ? static_cast<double>(random() % 64) / 32 - 1 : -kInf;
  }
  return As(dtype, shape, values);
}

struct Extents {
  int64_t b, s, t, h, g, e;
};

// The definition in double, one row of scores at a time, all of it in memory. Scores are [b, h, g, s, t].
class Oracle {
 public:
  Oracle(const Extents& n, const AttentionAttributes& a, const DropoutScalars& dropout, const Tensor& q,
         const Tensor& k, const Tensor& v, const Tensor& mask)
      : n_(n),
        a_(a),
        dropout_(dropout),
        q_(q.ToVector<double>()),
        k_(k.ToVector<double>()),
        v_(v.ToVector<double>()),
        is_bool_(mask.dtype() == DType::kBool) {
    // Every dim repeated; [b, h*g, s, t] is [b, h, g, s, t].
    const Tensor five = mask.ndim() == 5 ? mask
                        : mask.shape()[1] == 1
                            ? mask.Reshape({mask.shape()[0], 1, 1, mask.shape()[2], mask.shape()[3]})
                            : mask.Reshape({mask.shape()[0], n.h, n.g, mask.shape()[2], mask.shape()[3]});
    mask_ = five.Expand({n.b, n.h, n.g, n.s, n.t}).ToVector<double>();
  }

  std::vector<double> y, lse, dq, dk, dv, d_scores;

  void Run(const std::vector<double>& dy) {
    y.assign(q_.size(), 0.0);
    dq.assign(q_.size(), 0.0);
    dk.assign(k_.size(), 0.0);
    dv.assign(k_.size(), 0.0);
    d_scores.assign(mask_.size(), 0.0);
    for (int64_t b = 0; b < n_.b; ++b) {
      for (int64_t h = 0; h < n_.h; ++h) {
        for (int64_t g = 0; g < n_.g; ++g) {
          for (int64_t i = 0; i < n_.s; ++i) RunQuery(b, h, g, i, dy);
        }
      }
    }
  }

 private:
  size_t Q(int64_t b, int64_t i, int64_t h, int64_t g) const {
    return (((b * n_.s + i) * n_.h + h) * n_.g + g) * n_.e;
  }
  size_t K(int64_t b, int64_t j, int64_t h) const { return ((b * n_.t + j) * n_.h + h) * n_.e; }

  void RunQuery(int64_t b, int64_t h, int64_t g, int64_t i, const std::vector<double>& dy) {
    const double scale = a_.scale != 0 ? a_.scale : 1 / std::sqrt(static_cast<double>(n_.e));
    const int64_t row = (((b * n_.h + h) * n_.g + g) * n_.s + i) * n_.t;
    const int64_t dropped_row = ((((b + dropout_.batch_offset) * n_.h + h) * n_.g + g) * n_.s + i) * n_.t;
    std::vector<double> p(n_.t, -kInf);
    double max = -kInf;
    for (int64_t j = 0; j < n_.t; ++j) {
      if (a_.causal && j > i + n_.t - n_.s) continue;
      if (is_bool_ ? mask_[row + j] == 0 : mask_[row + j] == -kInf) continue;
      p[j] = is_bool_ ? 0 : mask_[row + j];
      for (int64_t e = 0; e < n_.e; ++e) p[j] += scale * q_[Q(b, i, h, g) + e] * k_[K(b, j, h) + e];
      max = std::max(max, p[j]);
    }
    if (max == -kInf) {  // nothing is seen
      lse.push_back(-kInf);
      return;
    }
    double sum = 0;
    for (double& value : p) sum += value = std::exp(value - max);
    lse.push_back(max + std::log(sum));
    std::vector<double> factor(n_.t, 1.0), dp(n_.t, 0.0);
    double mean = 0;
    for (int64_t j = 0; j < n_.t; ++j) {
      p[j] /= sum;
      if (dropout_.rate > 0) {
        const bool kept = UniformAt(dropout_.key, dropped_row + j) >= dropout_.rate;
        factor[j] = kept ? 1 / (1 - dropout_.rate) : 0;
      }
      for (int64_t e = 0; e < n_.e; ++e) {
        y[Q(b, i, h, g) + e] += p[j] * factor[j] * v_[K(b, j, h) + e];
        dp[j] += factor[j] * dy[Q(b, i, h, g) + e] * v_[K(b, j, h) + e];
        dv[K(b, j, h) + e] += p[j] * factor[j] * dy[Q(b, i, h, g) + e];
      }
      mean += p[j] * dp[j];
    }
    for (int64_t j = 0; j < n_.t; ++j) {
      const double ds = p[j] * (dp[j] - mean);
      d_scores[row + j] = ds;
      for (int64_t e = 0; e < n_.e; ++e) {
        dq[Q(b, i, h, g) + e] += scale * ds * k_[K(b, j, h) + e];
        dk[K(b, j, h) + e] += scale * ds * q_[Q(b, i, h, g) + e];
      }
    }
  }

  Extents n_;
  AttentionAttributes a_;
  DropoutScalars dropout_;
  std::vector<double> q_, k_, v_, mask_;
  bool is_bool_;
};

// d_scores [b, h, g, s, t] summed to the mask's shape.
std::vector<double> SumToMask(const std::vector<double>& d_scores, const Extents& n, const Shape& mask) {
  const Shape full = {n.b, n.h, n.g, n.s, n.t};
  Shape five = mask;
  if (mask.ndim() == 4) five = {mask[0], mask[1] == 1 ? 1 : n.h, mask[1] == 1 ? 1 : n.g, mask[2], mask[3]};
  std::vector<double> sums(mask.num_elements(), 0.0);
  for (size_t i = 0; i < d_scores.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), to = 0, stride = 1;
    for (int dim = 4; dim >= 0; --dim) {
      if (five[dim] != 1) to += rest % full[dim] * stride;
      stride *= five[dim];
      rest /= full[dim];
    }
    sums[to] += d_scores[i];
  }
  return sums;
}

struct Case {
  Extents n;
  Shape q;
  Shape mask;
  AttentionAttributes a = {};
  double rate = 0;
};

void CheckAgainstOracle(const Case& c, DType dtype, DType mask_dtype, double tolerance) {
  const std::string what =
      absl::StrCat("q ", c.q.ToString(), " mask ", DTypeName(mask_dtype), c.mask.ToString(), " ",
                   DTypeName(dtype), c.a.causal ? " causal" : "", " rate ", c.rate);
  const Shape k_shape = {c.n.b, c.n.t, c.n.h, c.n.e};
  const Tensor q = Random(dtype, c.q, 1);
  const Tensor k = Random(dtype, k_shape, 2);
  const Tensor v = Random(dtype, k_shape, 3);
  const Tensor dy = Random(dtype, c.q, 4);
  const Tensor mask = RandomMask(mask_dtype, c.mask, 5);
  const DropoutScalars dropout = {
      .key = {.seed = 11, .stream = 5, .step = 2}, .rate = c.rate, .batch_offset = 3};
  Oracle oracle(c.n, c.a, dropout, q, k, v, mask);
  oracle.Run(dy.ToVector<double>());
  const std::vector<Tensor> outputs = RunAll(kMaskedAttention, {q, k, v, mask}, c.a, dropout);
  EXPECT_TRUE(AllClose(outputs[0], As(dtype, c.q, oracle.y), tolerance)) << what;
  EXPECT_TRUE(AllClose(outputs[1], As(outputs[1].dtype(), outputs[1].shape(), oracle.lse), tolerance))
      << what;
  const std::vector<Tensor> grads = Backward(kMaskedAttention, {q, k, v, mask}, {dy, Tensor()}, c.a, dropout);
  EXPECT_TRUE(AllClose(grads[0], As(dtype, c.q, oracle.dq), 4 * tolerance)) << what << ": dq";
  EXPECT_TRUE(AllClose(grads[1], As(dtype, k_shape, oracle.dk), 4 * tolerance)) << what << ": dk";
  EXPECT_TRUE(AllClose(grads[2], As(dtype, k_shape, oracle.dv), 4 * tolerance)) << what << ": dv";
  if (mask_dtype == DType::kBool) return;
  const std::vector<double> d_mask = SumToMask(oracle.d_scores, c.n, c.mask);
  EXPECT_TRUE(AllClose(grads[3], As(dtype, c.mask, d_mask), 4 * tolerance)) << what << ": dmask";
}

// Every way in which a mask repeats, all head forms; a block of 64 queries or 512 keys plus a few; a mask
// that hides all keys from some queries.
TEST(MaskedAttentionTest, MatchesTheDefinition) {
  const std::vector<Case> cases = {
      {{1, 1, 1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {}, 0.5},
      {{2, 3, 4, 2, 1, 5}, {2, 3, 2, 5}, {2, 2, 3, 4}, {}, 0},
      {{2, 3, 4, 2, 1, 5}, {2, 3, 2, 5}, {1, 2, 1, 4}, {.causal = true}, 0.3},
      {{2, 5, 5, 3, 1, 4}, {2, 5, 3, 4}, {2, 1, 5, 1}, {.causal = true, .scale = 1.5}, 0.3},
      {{2, 4, 6, 2, 3, 4}, {2, 4, 2, 3, 4}, {2, 2, 3, 4, 6}, {.causal = true}, 0.4},
      {{2, 4, 6, 2, 3, 4}, {2, 4, 2, 3, 4}, {1, 1, 3, 1, 6}, {}, 0.4},
      {{2, 4, 6, 2, 3, 4}, {2, 4, 6, 4}, {1, 6, 4, 6}, {}, 0.4},
      {{2, 4, 6, 2, 3, 4}, {2, 4, 6, 4}, {2, 1, 4, 6}, {.causal = true}, 0},
      {{1, 70, 530, 1, 1, 3}, {1, 70, 1, 3}, {1, 1, 70, 530}, {.causal = true}, 0.2},
      {{1, 130, 130, 1, 1, 3}, {1, 130, 1, 3}, {1, 1, 1, 130}, {}, 0.2},
      {{1, 6, 2, 1, 1, 2}, {1, 6, 1, 2}, {1, 1, 6, 2}, {}, 0.5},
  };
  for (const Case& c : cases) {
    for (bool hides : {false, true}) {
      CheckAgainstOracle(c, DType::kF64, hides ? DType::kBool : DType::kF64, 1e-12);
      CheckAgainstOracle(c, DType::kF32, hides ? DType::kBool : DType::kF32, 2e-5);
    }
  }
}

TEST(MaskedAttentionTest, HalvesComputeInFloat) {
  const Case c = {{2, 3, 4, 2, 1, 5}, {2, 3, 2, 5}, {2, 2, 3, 4}, {}, 0.3};
  for (bool hides : {false, true}) {
    CheckAgainstOracle(c, DType::kBF16, hides ? DType::kBool : DType::kBF16, 1e-2);
    CheckAgainstOracle(c, DType::kF16, hides ? DType::kBool : DType::kF16, 2e-3);
  }
}

// The first 512 keys are hidden: the running maximum begins in the second block.
TEST(MaskedAttentionTest, ABlockOfHiddenKeysLeavesNoTrace) {
  const int64_t t = 515;
  std::vector<double> hidden(t, -kInf);
  hidden[513] = 0;
  const Tensor q = Random(DType::kF32, {1, 2, 1, 4}, 1);
  const Tensor k = Random(DType::kF32, {1, t, 1, 4}, 2);
  const Tensor v = Random(DType::kF32, {1, t, 1, 4}, 3);
  const Tensor y = RunOp(kMaskedAttention, {q, k, v, As(DType::kF32, {1, 1, 1, t}, hidden)});
  EXPECT_TRUE(SameBits(y.Slice(1, 0, 1), v.Slice(1, 513, 1)));
}

// Finite, as many models hide keys: all equal after rounding, so the mean of v, as PyTorch gives.
TEST(MaskedAttentionTest, LargeFiniteMasksAreAdded) {
  const float lowest = std::numeric_limits<float>::lowest();
  const Tensor q = As(DType::kF32, {1, 1, 1, 1}, {0.5});
  const Tensor v = As(DType::kF32, {1, 2, 1, 1}, {1, 3});
  const Tensor mask = As(DType::kF32, {1, 1, 1, 2}, {lowest, lowest});
  EXPECT_EQ(RunOp(kMaskedAttention, {q, v, v, mask}).ToVector<float>(), std::vector<float>{2});
}

TEST(MaskedAttentionTest, NaNIsNotHidden) {
  const Tensor q = As(DType::kF32, {1, 1, 1, 1}, {1});
  const Tensor v = As(DType::kF32, {1, 2, 1, 1}, {1, 3});
  const Tensor mask = As(DType::kF32, {1, 1, 1, 2}, {std::nan(""), -kInf});
  EXPECT_TRUE(std::isnan(RunOp(kMaskedAttention, {q, v, v, mask}).ToVector<float>()[0]));
}

// A zero mask and no dropout: the very bits of the op without them.
TEST(MaskedAttentionTest, WithoutAnythingToDoIsAttention) {
  const Tensor q = Random(DType::kF32, {2, 70, 3, 8}, 1);
  const Tensor k = Random(DType::kF32, {2, 90, 3, 8}, 2);
  const Tensor zero = As(DType::kF32, {1, 1, 1, 1}, {0});
  for (bool causal : {false, true}) {
    const AttentionAttributes a = {.causal = causal};
    EXPECT_TRUE(SameBits(RunOp(kMaskedAttention, {q, k, k, zero}, a), RunOp(kAttention, {q, k, k}, a)));
    const std::vector<Tensor> masked = Backward(kMaskedAttention, {q, k, k, zero}, {q, Tensor()}, a);
    const std::vector<Tensor> plain = Backward(kAttention, {q, k, k}, {q, Tensor()}, a);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(masked[i], plain[i])) << i;
  }
}

// v of ones: y is the sum of the kept probabilities, so it tells every bit that was drawn.
TEST(MaskedAttentionTest, PiecesDropWhatTheWholeDrops) {
  const Tensor q = Random(DType::kF32, {3, 4, 2, 3, 2}, 1);
  const Tensor k = Random(DType::kF32, {3, 5, 2, 2}, 2);
  const Tensor v = Random(DType::kF32, {3, 5, 2, 2}, 3);
  const Tensor mask = RandomMask(DType::kF32, {3, 1, 3, 4, 5}, 4);
  const DropoutScalars dropout = {.key = {.seed = 5}, .rate = 0.5};
  const std::vector<Tensor> whole = RunAll(kMaskedAttention, {q, k, v, mask}, {}, dropout);
  const auto boxes = [&](int y_dim, int lse_dim, Range range) {
    return std::vector<ShardBox>{SplitBox(q.shape(), y_dim, range),
                                 SplitBox(whole[1].shape(), lse_dim, range)};
  };
  // b, h and g, in uneven pieces.
  for (Range range : {Range{0, 1}, Range{1, 2}}) {
    const std::vector<Tensor> b = RunSharded(kMaskedAttention,
                                             {SplitPiece(q, 0, range), SplitPiece(k, 0, range),
                                              SplitPiece(v, 0, range), SplitPiece(mask, 0, range)},
                                             boxes(0, 0, range), {}, dropout);
    EXPECT_TRUE(SameBits(b[0], whole[0].Slice(0, range.offset, range.size)));
    const std::vector<Tensor> g = RunSharded(
        kMaskedAttention, {SplitPiece(q, 3, range), WholePiece(k), WholePiece(v), SplitPiece(mask, 2, range)},
        boxes(3, 2, range), {}, dropout);
    EXPECT_TRUE(SameBits(g[0], whole[0].Slice(3, range.offset, range.size)));
  }
  const Range second = {1, 1};
  const std::vector<Tensor> h = RunSharded(
      kMaskedAttention,
      {SplitPiece(q, 2, second), SplitPiece(k, 2, second), SplitPiece(v, 2, second), WholePiece(mask)},
      boxes(2, 1, second), {}, dropout);
  EXPECT_TRUE(SameBits(h[0], whole[0].Slice(2, 1, 1)));
}

TEST(MaskedAttentionTest, StridedMasksAndThreads) {
  const Tensor q = Random(DType::kF32, {2, 150, 3, 4}, 1);
  const Tensor k = Random(DType::kF32, {2, 150, 3, 4}, 2);
  const Tensor strided = RandomMask(DType::kF32, {150, 150, 3, 2}, 3).Permute({3, 2, 1, 0});
  const Tensor dense = CloneTensor(strided, MakeCpuAllocator());
  const DropoutScalars dropout = {.key = {.seed = 5}, .rate = 0.25};
  const std::vector<Tensor> one = RunAll(kMaskedAttention, {q, k, k, dense}, {}, dropout);
  const std::vector<Tensor> many =
      RunAll(kMaskedAttention, {q, k, k, strided}, {}, dropout, /*num_threads=*/3);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(SameBits(many[i], one[i])) << i;
  const std::vector<Tensor> grad = {q, k, k, dense, one[0], one[1], q};
  const std::vector<Tensor> strided_grad = {q, k, k, strided, one[0], one[1], q};
  const std::vector<Tensor> one_grads = RunAll(kMaskedAttentionGrad, grad, {}, dropout);
  const std::vector<Tensor> many_grads = RunAll(kMaskedAttentionGrad, strided_grad, {}, dropout, 3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(many_grads[i], one_grads[i])) << i;
  EXPECT_TRUE(SameBits(RunOp(kMaskedAttentionMaskGrad, strided_grad, {}, dropout, 3),
                       RunOp(kMaskedAttentionMaskGrad, grad, {}, dropout)));
}

TEST(MaskedAttentionTest, EmptyExtents) {
  const Tensor mask = As(DType::kF32, {1, 1, 1, 1}, {0});
  for (const Shape& shape : {Shape{0, 2, 1, 3}, Shape{1, 0, 1, 3}, Shape{1, 2, 0, 3}}) {
    const Tensor x = Random(DType::kF32, shape, 1);
    const std::vector<Tensor> grads = Backward(kMaskedAttention, {x, x, x, mask}, {x, Tensor()});
    EXPECT_EQ(grads[1].shape(), shape);
    EXPECT_EQ(grads[3].ToVector<float>(), std::vector<float>{0});
  }
  const Tensor no_keys =
      RunOp(kMaskedAttention, {Random(DType::kF32, {1, 2, 1, 3}, 1), Random(DType::kF32, {1, 0, 1, 3}, 2),
                               Random(DType::kF32, {1, 0, 1, 3}, 3), mask});
  EXPECT_EQ(no_keys.ToVector<float>(), std::vector<float>(6, 0.0f));
}

TEST(MaskedAttentionTest, Errors) {
  const Tensor x = Random(DType::kF32, {1, 2, 3, 4}, 1);
  const auto message = [&](const Tensor& mask, double rate) {
    return MessageOf([&] { RunOp(kMaskedAttention, {x, x, x, mask}, {}, {.key = {}, .rate = rate}); });
  };
  EXPECT_EQ(message(Random(DType::kF32, {1, 2, 2, 2}, 1), 0),
            "masked_attention: expected a mask of bool or f32 that broadcasts to [1, 3, 2, 2], got f32[1, 2, "
            "2, 2]");
  EXPECT_EQ(message(Random(DType::kF64, {1, 3, 2, 2}, 1), 0),
            "masked_attention: expected a mask of bool or f32 that broadcasts to [1, 3, 2, 2], got f64[1, 3, "
            "2, 2]");
  EXPECT_EQ(message(Random(DType::kF32, {1, 1, 1, 1}, 1), 1),
            "masked_attention: expected a rate in [0, 1), got 1");
}

}  // namespace
}  // namespace weft
