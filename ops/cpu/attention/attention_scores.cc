#include "ops/cpu/attention/attention_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

// Compiles the part below once for each instruction set, this file included again each time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/attention_scores.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// e^x, e^0 = 1 exactly, half of the instructions of Highway's: x = n log 2 + r, a polynomial in r, times 2^n.
// The polynomial, of least relative error (9e-8) among those of degree 5 that are 1 at 0, is Lawson's fit.
HWY_INLINE V ExpOf(D d, V x) {
  // By 1.5 * 2^23 the sum rounds to a whole number in the low bits; 127 more make it the exponent field of
  // 2^n.
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  // Below -88 the field is 0, hence the result: -inf too. Above 89 it is that of inf. x second: NaN passes.
  x = hn::Min(hn::Set(d, 89.0f), hn::Max(hn::Set(d, -88.0f), x));
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.4426950408889634f), magic);
  const V n = hn::Sub(shifted, magic);
  const V r = hn::NegMulAdd(n, hn::Set(d, 0.6931471805599453f), x);
  V p = hn::Set(d, 0.008290281519293785f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.04189818352460861f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.1666763871908188f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.4999914765357971f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.9999997019767761f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const hn::RebindToSigned<D> di;
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// The largest of `start` and the first n; what lies beyond them in their last vector becomes -inf.
// Two maxima, since each waits for the one before it. -inf beyond the row becomes exp(-inf) = 0 in ExpRow,
// which then needs no mask.
float RowMax(float* row, int64_t n, float start) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V max = hn::Set(d, start);
  V max2 = max;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    max = hn::Max(max, hn::LoadU(d, row + i));
    max2 = hn::Max(max2, hn::LoadU(d, row + i + lanes));
  }
  for (; i + lanes <= n; i += lanes) max = hn::Max(max, hn::LoadU(d, row + i));
  if (i < n) {
    const V last = hn::IfThenElse(hn::FirstN(d, n - i), hn::LoadU(d, row + i), hn::Neg(hn::Inf(d)));
    hn::StoreU(last, d, row + i);
    max2 = hn::Max(max2, last);
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max, max2)));
}

// row = exp(row - max), 0 from n to cols; returns the sum. -inf follows the n up to a whole vector.
// In float even the sum: a block has at most 256 terms between 0 and 1, and lanes add 16 to 64 of them each.
float ExpRow(float* row, int64_t n, int64_t cols, float max) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V shift = hn::Set(d, max);
  V sum = hn::Zero(d);
  int64_t i = 0;
  for (; i < n; i += lanes) {
    const V e = ExpOf(d, hn::Sub(hn::LoadU(d, row + i), shift));
    hn::StoreU(e, d, row + i);
    sum = hn::Add(sum, e);
  }
  for (; i < cols; i += lanes) hn::StoreU(hn::Zero(d), d, row + i);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void ExpInPlace(float* values, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(ExpOf(d, hn::LoadU(d, values + i)), d, values + i);
  // By whole vectors too, so that the bits are those of any other element.
  for (; i < n; ++i) values[i] = hn::GetLane(ExpOf(d, hn::Set(d, values[i])));
}

// The online softmax over blocks of keys (Milakov and Gimelshein, arXiv 1805.02867): where a block raises the
// maximum, what was summed before is scaled down by exp(old - new). All rows' factors are made together, by
// whole vectors.
void SoftmaxStepF32(const ScoreBlock& block, float* scores, float* max, float* sum, float* rescale) {
  for (int64_t i = 0; i < block.rows; ++i) {
    const float old_max = max[i];
    max[i] = RowMax(scores + i * block.stride, block.VisibleIn(i), old_max);
    // Also where both are -inf, whose difference is NaN.
    rescale[i] = old_max == max[i] ? 0.0f : old_max - max[i];
  }
  ExpInPlace(rescale, block.rows);
  for (int64_t i = 0; i < block.rows; ++i) {
    const float added = ExpRow(scores + i * block.stride, block.VisibleIn(i), block.cols, max[i]);
    sum[i] = sum[i] * rescale[i] + added;
  }
}

// log(sum) of sums that are at least 1, or inf or NaN, which Highway's Log takes to numbers.
HWY_INLINE V LogOfSum(D d, V sum) { return hn::IfThenElse(hn::Lt(sum, hn::Inf(d)), hn::Log(d, sum), sum); }

// By whole vectors of padded copies, so that a row's log has the same bits wherever it stands in a block.
void LogSumExp(int64_t rows, const float* max, const float* sum, float* lse) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float some_max[HWY_LANES(float)];
  HWY_ALIGN float some_sum[HWY_LANES(float)];
  for (int64_t i = 0; i < rows; i += lanes) {
    const int64_t n = std::min(lanes, rows - i);
    std::fill(std::copy(sum + i, sum + i + n, some_sum), some_sum + lanes, 1.0f);
    std::fill(std::copy(max + i, max + i + n, some_max), some_max + lanes, 0.0f);
    const V all = hn::Load(d, some_sum);
    const V value = hn::Add(hn::Load(d, some_max), LogOfSum(d, all));
    hn::Store(hn::IfThenElse(hn::Eq(all, hn::Zero(d)), hn::Neg(hn::Inf(d)), value), d, some_max);
    std::copy(some_max, some_max + n, lse + i);
  }
}

void SoftmaxFinishF32(int64_t rows, int64_t cols, const float* max, const float* sum, const float* sums,
                      int64_t stride, const SoftmaxResult<float>& result) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  LogSumExp(rows, max, sum, result.lse);
  for (int64_t i = 0; i < rows; ++i) {
    const float* const from = sums + i * stride;
    float* const y = result.y + i * result.stride;
    if (sum[i] == 0) {
      std::fill(y, y + cols, 0.0f);
      continue;
    }
    // One division per row. The products round once more than divisions of all elements would, by 2^-24 of
    // the value at most.
    const float factor = 1 / sum[i];
    int64_t j = 0;
    for (; j + lanes <= cols; j += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + j), hn::Set(d, factor)), d, y + j);
    }
    for (; j < cols; ++j) y[j] = from[j] * factor;
  }
}

// p = exp(s - lse) needs no maximum and no sum: lse, saved by forward, is both. ds = p (dp - delta).
void ScoreGradientsF32(const ScoreBlock& block, const float* lse, const float* delta, float* scores,
                       float* d_probabilities) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < block.rows; ++i) {
    float* const p = scores + i * block.stride;
    float* const dp = d_probabilities + i * block.stride;
    const int64_t n = block.VisibleIn(i);
    const V row_lse = hn::Set(d, lse[i]);
    const V row_delta = hn::Set(d, delta[i]);
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) {
      const V probability = ExpOf(d, hn::Sub(hn::LoadU(d, p + j), row_lse));
      hn::StoreU(probability, d, p + j);
      hn::StoreU(hn::Mul(probability, hn::Sub(hn::LoadU(d, dp + j), row_delta)), d, dp + j);
    }
    // The vector with the row's end is written whole, which the stride leaves room for. Beyond the end,
    // scores are undefined and may make NaN: they are replaced by 0 and never multiplied by it.
    if (j < n) {
      const auto seen = hn::FirstN(d, n - j);
      const V probability = ExpOf(d, hn::Sub(hn::LoadU(d, p + j), row_lse));
      hn::StoreU(hn::IfThenElseZero(seen, probability), d, p + j);
      const V gradient = hn::Mul(probability, hn::Sub(hn::LoadU(d, dp + j), row_delta));
      hn::StoreU(hn::IfThenElseZero(seen, gradient), d, dp + j);
      j += lanes;
    }
    for (; j < block.cols; j += lanes) {
      hn::StoreU(hn::Zero(d), d, p + j);
      hn::StoreU(hn::Zero(d), d, dp + j);
    }
  }
}

void RowDotsF32(int64_t rows, int64_t n, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                float* delta) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < rows; ++i) {
    const float* const x = a + i * a_stride;
    const float* const y = b + i * b_stride;
    V sum = hn::Zero(d);
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) sum = hn::MulAdd(hn::LoadU(d, x + j), hn::LoadU(d, y + j), sum);
    float rest = 0;
    for (; j < n; ++j) rest += x[j] * y[j];
    delta[i] = hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(SoftmaxStepF32);
HWY_EXPORT(SoftmaxFinishF32);
HWY_EXPORT(ScoreGradientsF32);
HWY_EXPORT(RowDotsF32);

}  // namespace

void SoftmaxStep(const ScoreBlock& block, float* scores, float* max, float* sum, float* rescale) {
  HWY_DYNAMIC_DISPATCH(SoftmaxStepF32)(block, scores, max, sum, rescale);
}

void SoftmaxFinish(int64_t rows, int64_t cols, const float* max, const float* sum, const float* sums,
                   int64_t stride, const SoftmaxResult<float>& result) {
  HWY_DYNAMIC_DISPATCH(SoftmaxFinishF32)(rows, cols, max, sum, sums, stride, result);
}

void ScoreGradients(const ScoreBlock& block, const float* lse, const float* delta, float* scores,
                    float* d_probabilities) {
  HWY_DYNAMIC_DISPATCH(ScoreGradientsF32)(block, lse, delta, scores, d_probabilities);
}

void RowDots(int64_t rows, int64_t n, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
             float* delta) {
  HWY_DYNAMIC_DISPATCH(RowDotsF32)(rows, n, a, a_stride, b, b_stride, delta);
}

// f64 serves verification: plain loops and libm, the definition that the vectors above approximate.
void SoftmaxStep(const ScoreBlock& block, double* scores, double* max, double* sum, double* rescale) {
  for (int64_t i = 0; i < block.rows; ++i) {
    double* const row = scores + i * block.stride;
    const int64_t n = block.VisibleIn(i);
    std::fill(row + n, row + block.cols, 0.0);
    const double old_max = max[i];
    for (int64_t j = 0; j < n; ++j) max[i] = std::max(max[i], row[j]);
    rescale[i] = old_max == max[i] ? 1 : std::exp(old_max - max[i]);
    sum[i] *= rescale[i];
    for (int64_t j = 0; j < n; ++j) {
      row[j] = std::exp(row[j] - max[i]);
      sum[i] += row[j];
    }
  }
}

void SoftmaxFinish(int64_t rows, int64_t cols, const double* max, const double* sum, const double* sums,
                   int64_t stride, const SoftmaxResult<double>& result) {
  for (int64_t i = 0; i < rows; ++i) {
    const bool seen = sum[i] != 0;
    result.lse[i] = seen ? max[i] + std::log(sum[i]) : -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < cols; ++j) {
      result.y[i * result.stride + j] = seen ? sums[i * stride + j] / sum[i] : 0;
    }
  }
}

void ScoreGradients(const ScoreBlock& block, const double* lse, const double* delta, double* scores,
                    double* d_probabilities) {
  for (int64_t i = 0; i < block.rows; ++i) {
    double* const p = scores + i * block.stride;
    double* const dp = d_probabilities + i * block.stride;
    const int64_t n = block.VisibleIn(i);
    for (int64_t j = 0; j < n; ++j) {
      p[j] = std::exp(p[j] - lse[i]);
      dp[j] = p[j] * (dp[j] - delta[i]);
    }
    std::fill(p + n, p + block.cols, 0.0);
    std::fill(dp + n, dp + block.cols, 0.0);
  }
}

void RowDots(int64_t rows, int64_t n, const double* a, int64_t a_stride, const double* b, int64_t b_stride,
             double* delta) {
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += a[i * a_stride + j] * b[i * b_stride + j];
    delta[i] = sum;
  }
}

}  // namespace weft
#endif  // HWY_ONCE
