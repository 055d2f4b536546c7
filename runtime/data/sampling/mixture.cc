#include "runtime/data/sampling/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/data/sampling/permutation.h"

namespace weft {
namespace {

// How a block is shared out: the whole part of each exact share, and what is left to the largest remainders; of equal ones
// the first.
std::vector<int64_t> Quotas(const std::vector<MixturePart>& parts, int64_t block) {
  double largest = 0;
  for (const MixturePart& part : parts) largest = std::max(largest, part.weight);
  // Divided by a power of two, which changes no share, so that the sum of any weights is finite.
  const int exponent = std::ilogb(largest);
  std::vector<double> weights;
  for (const MixturePart& part : parts) weights.push_back(std::ldexp(part.weight, -exponent));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> quotas;
  std::vector<double> remainders;
  for (const double weight : weights) {
    const double share = weight / total * static_cast<double>(block);
    quotas.push_back(static_cast<int64_t>(std::floor(share)));
    remainders.push_back(share - std::floor(share));
  }
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  int64_t left = block - std::accumulate(quotas.begin(), quotas.end(), int64_t{0});
  for (size_t k = 0; left > 0; k = (k + 1) % order.size(), --left) ++quotas[order[k]];
  for (size_t k = 0; k < parts.size(); ++k) {
    const double enough = std::ceil(total / weights[k]);
    const bool has_block = enough <= 0x1p62;  // the longest that Permutation takes
    WEFT_REQUIRE(quotas[k] > 0, "mixture: part ", k, " has weight ", parts[k].weight, " of ",
                 std::ldexp(total, exponent), ": less than one sample in a block of ", block, "; ",
                 has_block ? absl::StrCat("a block of ", static_cast<int64_t>(enough)) : "no block",
                 " has one");
  }
  return quotas;
}

}  // namespace

MixtureSampler::MixtureSampler(std::vector<MixturePart> parts, uint64_t seed, const MixtureOptions& options)
    : parts_(std::move(parts)), seed_(seed), epoch_size_(options.epoch_size) {
  WEFT_REQUIRE(!parts_.empty(), "mixture: expected at least one part");
  WEFT_REQUIRE(options.block >= static_cast<int64_t>(parts_.size()), "mixture: block: expected at least ",
               parts_.size(), ", as many as there are parts, got ", options.block);
  WEFT_REQUIRE(options.epoch_size >= 0, "mixture: epoch: expected at least 0 samples, got ",
               options.epoch_size);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t together = 0;
  first_index_ = {0};
  for (size_t k = 0; k < parts_.size(); ++k) {
    WEFT_REQUIRE(parts_[k].sampler != nullptr, "mixture: part ", k, " has no sampler");
    WEFT_REQUIRE(std::isfinite(parts_[k].weight) && parts_[k].weight > 0, "mixture: part ", k,
                 ": weight: expected a number above 0, got ", parts_[k].weight);
    const int64_t num_samples = parts_[k].sampler->num_samples();
    WEFT_REQUIRE(num_samples <= kMost - first_index_.back(), "mixture: part ", k, " has ", num_samples,
                 " samples after ", first_index_.back(), ": expected less than 2^63 together");
    first_index_.push_back(first_index_.back() + num_samples);
    // An epoch may be without end: its length is a name alone.
    together += std::min(parts_[k].sampler->epoch_size(), kMost - together);
  }
  if (epoch_size_ == 0) epoch_size_ = together;
  first_slot_ = {0};
  for (const int64_t quota : Quotas(parts_, options.block)) first_slot_.push_back(first_slot_.back() + quota);
}

int64_t MixtureSampler::At(int64_t epoch, int64_t i) const {
  WEFT_REQUIRE(epoch >= 0 && epoch < int64_t{1} << 32, "sampler: epoch: expected 0 to 2^32 - 1, got ", epoch);
  WEFT_REQUIRE(i >= 0 && i < epoch_size_, "sampler: sample ", i, " of an epoch of ", epoch_size_);
  WEFT_REQUIRE(epoch <= (std::numeric_limits<int64_t>::max() - i) / epoch_size_, "sampler: epoch ", epoch,
               " of ", epoch_size_, " samples is beyond 2^63 samples");
  const int64_t position = epoch * epoch_size_ + i;
  const int64_t number = position / block();
  // A key holds 32 bits of the block's number as its step; the others are in the stream.
  const Permutation order(block(), {.seed = seed_,
                                    .stream = StreamOf("mixture", static_cast<uint64_t>(number >> 32)),
                                    .step = static_cast<uint64_t>(number & 0xffffffff)});
  const int64_t slot = order.At(position % block());
  const auto k = static_cast<int>(std::upper_bound(first_slot_.begin(), first_slot_.end(), slot) -
                                  first_slot_.begin() - 1);
  const int64_t draw = number * quota(k) + slot - first_slot_[k];
  return first_index_[k] + parts_[k].sampler->AtPosition(draw);
}

std::string MixtureSampler::ToString() const {
  std::string text = absl::StrCat("mixture(block ", block(), ", seed ", seed_);
  for (int k = 0; k < num_parts(); ++k) {
    absl::StrAppend(&text, ", ", quota(k), " of ", parts_[k].sampler->ToString());
  }
  return absl::StrCat(text, ")");
}

}  // namespace weft
