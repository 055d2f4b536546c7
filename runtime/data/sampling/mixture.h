// Samples of several datasets in given proportions.

#ifndef WEFT_RUNTIME_DATA_SAMPLING_MIXTURE_H_
#define WEFT_RUNTIME_DATA_SAMPLING_MIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/sampling/sampler.h"

namespace weft {

// One dataset of a mixture: in which order its own samples come, and its share.
struct MixturePart {
  std::shared_ptr<const Sampler> sampler = nullptr;
  double weight = 1;  // in units of the sum of all weights; above 0
};

struct MixtureOptions {
  // Samples in which the proportions are exact. A share is a whole number of these: off by less than 1 / block.
  int64_t block = 1024;
  // Samples of an epoch of the mixture; 0: as many as the parts' epochs have together, 2^63 - 1 at most. It is a name alone: the parts count
  // their own epochs.
  int64_t epoch_size = 0;
};

// Draws from parts by weight. What comes is an index into the parts' datasets put one after another, in the order of the
// parts (ConcatenatedDataset).
//
// The sequence is cut into blocks. Each block has `quota(k)` samples of part k, shared out by largest remainders, in an
// order of its own (Permutation), so that the d-th sample of a part is found without counting: after b blocks, part k
// has given exactly b quota(k) samples, each of its sampler's sequence once. Within a block a part's samples come in
// another order than its sampler has them.
//
// Cost:   O(log parts) and a Permutation per sample; memory for one number per part.
class MixtureSampler final : public Sampler {
 public:
  // Errors: InvalidArgument for no parts, a part without sampler, a weight that is not a finite number above 0, a block that
  //         is shorter than there are parts or in which a part's share rounds to nothing (names the part, and a block that
  //         would do, if there is one), an epoch below 0, parts of 2^63 samples or more together.
  MixtureSampler(std::vector<MixturePart> parts, uint64_t seed, const MixtureOptions& options = {});

  int64_t num_samples() const override { return first_index_.back(); }
  int64_t epoch_size() const override { return epoch_size_; }
  int64_t At(int64_t epoch, int64_t i) const override;
  std::string ToString() const override;

  int num_parts() const { return static_cast<int>(parts_.size()); }
  int64_t block() const { return first_slot_.back(); }
  // Samples of part `k` in each block.
  int64_t quota(int k) const { return first_slot_[k + 1] - first_slot_[k]; }

 private:
  std::vector<MixturePart> parts_;
  uint64_t seed_;
  int64_t epoch_size_;
  std::vector<int64_t> first_slot_;   // of each part in a block, ascending; the block at the end
  std::vector<int64_t> first_index_;  // of each part's dataset in all of them; their number at the end
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DATA_SAMPLING_MIXTURE_H_
