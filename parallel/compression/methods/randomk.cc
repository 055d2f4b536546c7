// randomk: elements drawn at random, by importance.

#include <algorithm>
#include <cmath>

#include "parallel/compression/methods/sparse_compressor.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

// Draws k elements, element i with probability p_i = min(1, c |x_i|), c such that the p_i add up to k. One uniform number
// decides (systematic sampling), so that there are k of them whatever it is: a message's size is known before.
//
// With error feedback the elements are sent as they are; without it divided by their probability, so that the mean is
// exact: both together would feed back what division has added, and residuals would grow.
// Source: Wangni et al., "Gradient sparsification for communication-efficient distributed optimization", 2018.
class RandomK final : public SparseSelection {
 public:
  explicit RandomK(bool divides) : divides_(divides) {}

  void Select(absl::Span<const double> values, const RandomKey& key,
              absl::Span<SparseEntry> entries) const override {
    const double factor = Factor(values, static_cast<double>(entries.size()));
    const double start = UniformAt(key, 0);
    double sum = 0;  // of probabilities
    size_t drawn = 0;
    for (size_t i = 0; i < values.size() && drawn < entries.size(); ++i) {
      const double probability = std::min(1.0, factor * std::abs(values[i]));
      sum += probability;
      // Elements whose stretch of the line holds a point start + 0, 1, 2, ...
      if (!(sum > start + static_cast<double>(drawn))) continue;
      const double value = divides_ ? values[i] / probability : values[i];
      entries[drawn++] = {.index = static_cast<int32_t>(i), .value = static_cast<float>(value)};
    }
    // Of zeros there may be fewer than k others; of rounding one.
    for (; drawn < entries.size(); ++drawn) entries[drawn] = {};
  }

 private:
  // Elements that have probability 1 leave the others less, which may lift more of them to 1.
  static double Factor(absl::Span<const double> values, double count) {
    double factor = 0;
    for (int round = 0; round < 64; ++round) {
      double rest = 0, certain = 0;
      for (const double value : values) {
        const bool is_certain = factor * std::abs(value) >= 1;
        certain += is_certain ? 1 : 0;
        rest += is_certain ? 0 : std::abs(value);
      }
      if (rest == 0 || certain >= count) return factor;
      const double next = (count - certain) / rest;
      if (!(next > factor)) return factor;
      factor = next;
    }
    return factor;
  }

  const bool divides_;
};

std::unique_ptr<Compressor> Make(const CommunicationMethod& method) {
  const bool error_feedback = method.GetFlag("error_feedback");
  return std::make_unique<SparseCompressor>(
      std::make_unique<RandomK>(/*divides=*/!error_feedback),
      SparseOptions{.fraction = method.Get("fraction"), .error_feedback = error_feedback});
}

const RegisterCompressor kRegister({
    .name = "randomk",
    .arguments = {FractionArgument(), ErrorFeedbackArgument()},
    .make = Make,
});

}  // namespace
}  // namespace weft
