#include "ops/cpu/attention_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

// Compiles the part below once for each instruction set, this file included again each time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_scores.cc"
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

// Highway's Exp maps NaN to 0, which would hide it.
HWY_INLINE V ExpOf(D d, V x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x)); }

// Loads min(n, Lanes) elements from p, `fill` elsewhere; the tail must not read past the block.
HWY_INLINE V LoadUpTo(D d, const float* p, int64_t n, float fill) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = static_cast<int64_t>(i) < n ? p[i] : fill;
  return hn::Load(d, lanes);
}

HWY_INLINE void StoreUpTo(D d, V v, float* p, int64_t n) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, d, lanes);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

float RowMax(const float* row, int64_t n, float start) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V max = hn::Set(d, start);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) max = hn::Max(max, hn::LoadU(d, row + i));
  if (i < n) max = hn::Max(max, LoadUpTo(d, row + i, n - i, start));
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

// row = exp(row - max); returns the sum.
float ExpRow(float* row, int64_t n, float max) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V shift = hn::Set(d, max);
  V sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V e = ExpOf(d, hn::Sub(hn::LoadU(d, row + i), shift));
    hn::StoreU(e, d, row + i);
    sum = hn::Add(sum, e);
  }
  if (i < n) {
    const V tail = LoadUpTo(d, row + i, n - i, -std::numeric_limits<float>::infinity());
    const V e = hn::IfThenElseZero(hn::FirstN(d, n - i), ExpOf(d, hn::Sub(tail, shift)));
    StoreUpTo(d, e, row + i, n - i);
    sum = hn::Add(sum, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void SoftmaxStepF32(const ScoreBlock& block, float* scores, float* max, float* sum, float* rescale) {
  for (int64_t i = 0; i < block.rows; ++i) {
    float* const row = scores + i * block.cols;
    const int64_t n = block.VisibleIn(i);
    std::fill(row + n, row + block.cols, 0.0f);
    rescale[i] = 1;
    if (n == 0) continue;
    const float old_max = max[i];
    max[i] = RowMax(row, n, old_max);
    rescale[i] = std::exp(old_max - max[i]);
    sum[i] = sum[i] * rescale[i] + ExpRow(row, n, max[i]);
  }
}

void ScoreGradientsF32(const ScoreBlock& block, const float* lse, const float* delta, float scale,
                       float* scores, float* d_probabilities) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V factor = hn::Set(d, scale);
  for (int64_t i = 0; i < block.rows; ++i) {
    float* const p = scores + i * block.cols;
    float* const dp = d_probabilities + i * block.cols;
    const int64_t n = block.VisibleIn(i);
    const V row_lse = hn::Set(d, lse[i]);
    const V row_delta = hn::Set(d, delta[i]);
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) {
      const V probability = ExpOf(d, hn::Sub(hn::LoadU(d, p + j), row_lse));
      hn::StoreU(probability, d, p + j);
      const V gradient = hn::Sub(hn::LoadU(d, dp + j), row_delta);
      hn::StoreU(hn::Mul(hn::Mul(probability, factor), gradient), d, dp + j);
    }
    if (j < n) {
      const V probability = ExpOf(d, hn::Sub(LoadUpTo(d, p + j, n - j, 0), row_lse));
      StoreUpTo(d, probability, p + j, n - j);
      const V gradient = hn::Sub(LoadUpTo(d, dp + j, n - j, 0), row_delta);
      StoreUpTo(d, hn::Mul(hn::Mul(probability, factor), gradient), dp + j, n - j);
    }
    std::fill(p + n, p + block.cols, 0.0f);
    std::fill(dp + n, dp + block.cols, 0.0f);
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
HWY_EXPORT(ScoreGradientsF32);

}  // namespace

void SoftmaxStep(const ScoreBlock& block, float* scores, float* max, float* sum, float* rescale) {
  HWY_DYNAMIC_DISPATCH(SoftmaxStepF32)(block, scores, max, sum, rescale);
}

void ScoreGradients(const ScoreBlock& block, const float* lse, const float* delta, float scale, float* scores,
                    float* d_probabilities) {
  HWY_DYNAMIC_DISPATCH(ScoreGradientsF32)(block, lse, delta, scale, scores, d_probabilities);
}

void SoftmaxStep(const ScoreBlock& block, double* scores, double* max, double* sum, double* rescale) {
  for (int64_t i = 0; i < block.rows; ++i) {
    double* const row = scores + i * block.cols;
    const int64_t n = block.VisibleIn(i);
    std::fill(row + n, row + block.cols, 0.0);
    rescale[i] = 1;
    if (n == 0) continue;
    const double old_max = max[i];
    for (int64_t j = 0; j < n; ++j) max[i] = std::max(max[i], row[j]);
    rescale[i] = std::exp(old_max - max[i]);
    sum[i] *= rescale[i];
    for (int64_t j = 0; j < n; ++j) {
      row[j] = std::exp(row[j] - max[i]);
      sum[i] += row[j];
    }
  }
}

void ScoreGradients(const ScoreBlock& block, const double* lse, const double* delta, double scale,
                    double* scores, double* d_probabilities) {
  for (int64_t i = 0; i < block.rows; ++i) {
    double* const p = scores + i * block.cols;
    double* const dp = d_probabilities + i * block.cols;
    const int64_t n = block.VisibleIn(i);
    for (int64_t j = 0; j < n; ++j) {
      p[j] = std::exp(p[j] - lse[i]);
      dp[j] = scale * p[j] * (dp[j] - delta[i]);
    }
    std::fill(p + n, p + block.cols, 0.0);
    std::fill(dp + n, dp + block.cols, 0.0);
  }
}

}  // namespace weft
#endif  // HWY_ONCE
