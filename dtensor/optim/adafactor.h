#ifndef WEFT_DTENSOR_OPTIM_ADAFACTOR_H_
#define WEFT_DTENSOR_OPTIM_ADAFACTOR_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/optim/optimizer.h"

// Adam's second moment, of which a matrix keeps the means of its rows and of its columns alone. For update t
// = 1, 2, ..., the scaled gradient g, learning rate lr and weight decay w; rms is the root of the mean
// square over a whole parameter:
//
//   a <- max(eps2, rms(p)) min(lr, 1 / sqrt(t))
//   p <- p - lr w p
//   r <- r + (mean over columns of g^2 - r) t^beta2_decay         [..., m, 1]
//   c <- c + (mean over rows of g^2 - c) t^beta2_decay            [..., 1, n]
//   u <- g / sqrt(max(r c / max(mean over rows of r, eps1), eps1^2))
//   p <- p - a u / max(1, rms(u) / d)
//
// Rows and columns are the last two dims; those before them have statistics of their own for each index.
// Vectors and scalars keep the running mean of g^2 whole. Halves are computed with in f32. A gradient that is not finite
// makes p so, where the scale does not have the update skipped.
//
// State:  "<path>.row" and "<path>.column", which lie as the parameter's state does along the dims that they
//         have; of vectors "<path>.variance".
// Layout: any. Means over a split dim are Partial, and summed over its axes, for all parameters together;
//         two numbers per parameter more go into the rms.
// Source: PyTorch's Adafactor. Shazeer and Stern, "Adafactor", arXiv 1804.04235.
namespace weft {

struct AdafactorOptions {
  double beta2_decay = -0.8;
  // The distance from 1 to the next number of the parameter's dtype, if not given; raised to the least normal number of
  // f32 (of f64 for f64).
  std::optional<double> eps1 = std::nullopt;
  double eps2 = 1e-3;
  double d = 1;  // updates of a larger rms are scaled down to it
  double weight_decay = 0;
  std::vector<ParameterGroup> groups = {};  // no betas, no matrix

  bool operator==(const AdafactorOptions&) const = default;
};

class Adafactor : public Optimizer {
 public:
  // Errors: InvalidArgument as ResolveGroups and RequireDecay, for a group that sets a beta or a matrix, for a d below 1, a
  //         beta2_decay above 0.
  Adafactor(std::vector<Parameter*> parameters, const AdafactorOptions& options);

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override;
  bool updates_in_parts() const override { return false; }  // one all-reduce for all of them
  std::vector<std::pair<std::string, DTensor>> Moments() const override;

 private:
  bool is_factored(int index) const { return rows_[index].defined(); }
  void MakeStates();
  // Takes the squares of the scaled gradients into the state; `weight` is not finite where nothing is to
  // change.
  void UpdateStates(absl::Span<const int> indices, const std::vector<DTensor>& gradients,
                    const DTensor& weight);
  // max(mean over rows of r, eps1) of those that are factored, undefined for others.
  std::vector<DTensor> RowMeans(absl::Span<const int> indices) const;
  // What the squares of that parameter's gradient are taken to be.
  DTensor Variance(int index, const DTensor& row_mean) const;
  double Eps1(int index) const;
  // State as it is computed with: halves in f32.
  static DTensor Wide(const DTensor& state);

  AdafactorOptions options_;
  std::vector<DTensor> rows_;  // by parameter, undefined where there is none
  std::vector<DTensor> columns_;
  std::vector<DTensor> variances_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_ADAFACTOR_H_
