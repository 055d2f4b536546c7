#ifndef WEFT_OPS_CPU_ATTENTION_ATTENTION_SCORES_H_
#define WEFT_OPS_CPU_ATTENTION_ATTENTION_SCORES_H_

#include <algorithm>
#include <cstdint>

namespace weft {

// The elementwise part of attention on one block of scores: rows `stride` elements apart, a multiple of
// kBlockLanes, so that the vector with a row's last element can be read and written whole. Row i sees its
// first `visible` + i keys, none if that is negative and all `cols` if it is more; the rest of it becomes 0.
// NaN in a score that is seen stays NaN.
//
// In f32 by the widest vectors of the machine (Highway), exp to 3e-7 of its value and 0 below 2^-126; in f64
// by plain loops.
struct ScoreBlock {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  int64_t visible = 0;

  int64_t VisibleIn(int64_t row) const { return std::clamp<int64_t>(visible + row, 0, cols); }
};

// One step of a softmax over blocks of keys. `max` and `sum` are the running maximum and sum of exp(score -
// max) per row; scores become exp(score - new max), and rescale exp(old max - new max): the factor of what
// was summed before.
void SoftmaxStep(const ScoreBlock& block, float* scores, float* max, float* sum, float* rescale);
void SoftmaxStep(const ScoreBlock& block, double* scores, double* max, double* sum, double* rescale);

// Where a softmax's weighted sums go: rows of y `stride` apart, and one log-sum-exp a row.
template <class T>
struct SoftmaxResult {
  T* y = nullptr;
  int64_t stride = 0;
  T* lse = nullptr;
};

// Its end: row i of `sums` [rows, cols], rows `stride` apart, becomes a row of y divided by sum[i], and lse
// is max + log(sum). Rows that saw nothing (sum 0) become 0 and -inf. y may be `sums`.
void SoftmaxFinish(int64_t rows, int64_t cols, const float* max, const float* sum, const float* sums,
                   int64_t stride, const SoftmaxResult<float>& result);
void SoftmaxFinish(int64_t rows, int64_t cols, const double* max, const double* sum, const double* sums,
                   int64_t stride, const SoftmaxResult<double>& result);

// Scores become probabilities p = exp(score - lse), and d_probabilities the gradients of the scores,
// p * (d_probability - delta).
void ScoreGradients(const ScoreBlock& block, const float* lse, const float* delta, float* scores,
                    float* d_probabilities);
void ScoreGradients(const ScoreBlock& block, const double* lse, const double* delta, double* scores,
                    double* d_probabilities);

// delta[i] = sum of the products of a[i] and b[i], rows of n elements.
void RowDots(int64_t rows, int64_t n, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
             float* delta);
void RowDots(int64_t rows, int64_t n, const double* a, int64_t a_stride, const double* b, int64_t b_stride,
             double* delta);

}  // namespace weft

#endif  // WEFT_OPS_CPU_ATTENTION_ATTENTION_SCORES_H_
