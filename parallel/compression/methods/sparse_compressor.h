// Methods that send few elements of a gradient, as pairs of an index and a value.

#ifndef WEFT_PARALLEL_COMPRESSION_METHODS_SPARSE_COMPRESSOR_H_
#define WEFT_PARALLEL_COMPRESSION_METHODS_SPARSE_COMPRESSOR_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "parallel/compression/compressor.h"
#include "runtime/base/random_key.h"

namespace weft {

// What is sent of an element.
struct SparseEntry {
  int32_t index = 0;
  float value = 0;
};

// Which elements are sent.
class SparseSelection {
 public:
  virtual ~SparseSelection() = default;
  // Sets `entries`, as many as there are, of finite values. Indices may repeat: their values add up.
  virtual void Select(absl::Span<const double> values, const RandomKey& key,
                      absl::Span<SparseEntry> entries) const = 0;
};

struct SparseOptions {
  double fraction = 0.01;  // k = floor(fraction m) of m elements, and 1 at least
  bool error_feedback = true;
  // Momentum correction: a rank adds up velocities u = momentum u + gradient, and sends of their sum. 0: gradients. Once a
  // round (GradientBucket::round): where gradients rest split, for each microbatch.
  double momentum = 0;
  bool masking = true;  // the velocity of what was sent is 0 again
};

// Sums k entries of each rank: an all-gather, each rank adds up all of them, in f64, in rank order. Where ranks own boxes
// of the sums, each selects the fraction of every box, and an all-to-all brings it to the box's owner: a selection in the
// whole would leave how much goes to whom to the values, and every owner would have to be sent room for all of it.
//
// Cost:   n (n-1) k 8 bytes per gradient, summed over the group's ranks: (n-1) 8 k into each. ReduceScatter: (n-1) k 8, k
//         that of all boxes.
// Source: Lin et al., "Deep gradient compression", 2018: what is not sent stays, momentum correction, masking.
class SparseCompressor final : public Compressor {
 public:
  SparseCompressor(std::unique_ptr<const SparseSelection> selection, const SparseOptions& options)
      : selection_(std::move(selection)), options_(options) {}

  std::vector<CompressorState> State(const Shape& piece) const override;
  Work Reduce(const std::shared_ptr<GradientBucket>& bucket) const override;
  Work ReduceScatter(const std::shared_ptr<GradientBucket>& bucket) const override;

 private:
  const std::shared_ptr<const SparseSelection> selection_;
  const SparseOptions options_;
};

// The argument "fraction" of such methods.
MethodArgument FractionArgument();

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_METHODS_SPARSE_COMPRESSOR_H_
