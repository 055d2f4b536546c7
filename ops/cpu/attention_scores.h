#ifndef WEFT_OPS_CPU_ATTENTION_SCORES_H_
#define WEFT_OPS_CPU_ATTENTION_SCORES_H_

#include <algorithm>
#include <cstdint>

namespace weft {

// The elementwise part of attention on one block of scores [rows, cols], row-major without gaps. Row i sees
// its first `visible` + i keys, none if that is negative and all if it is more than there are; the rest of it
// becomes 0. NaN in a score that is seen stays NaN.
//
// In f32 by the widest vectors of the machine (Highway), in f64 by plain loops.
struct ScoreBlock {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t visible = 0;

  int64_t VisibleIn(int64_t row) const { return std::clamp<int64_t>(visible + row, 0, cols); }
};

// One step of a softmax over blocks of keys. `max` and `sum` are the running maximum and sum of exp(score -
// max) per row; scores become exp(score - new max), and rescale exp(old max - new max): the factor of what
// was summed before.
void SoftmaxStep(const ScoreBlock& block, float* scores, float* max, float* sum, float* rescale);
void SoftmaxStep(const ScoreBlock& block, double* scores, double* max, double* sum, double* rescale);

// Scores become probabilities p = exp(score - lse), and d_probabilities the gradients of the unscaled scores,
// scale * p * (d_probability - delta).
void ScoreGradients(const ScoreBlock& block, const float* lse, const float* delta, float scale, float* scores,
                    float* d_probabilities);
void ScoreGradients(const ScoreBlock& block, const double* lse, const double* delta, double scale,
                    double* scores, double* d_probabilities);

}  // namespace weft

#endif  // WEFT_OPS_CPU_ATTENTION_SCORES_H_
