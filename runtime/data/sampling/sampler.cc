#include "runtime/data/sampling/sampler.h"

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/data/sampling/permutation.h"

namespace weft {
namespace {

void CheckSize(int64_t num_samples) {
  WEFT_REQUIRE(num_samples >= 1, "sampler: expected at least 1 sample, got ", num_samples);
}

void CheckRange(const Sampler& sampler, int64_t epoch, int64_t i) {
  WEFT_REQUIRE(epoch >= 0 && epoch < int64_t{1} << 32, "sampler: epoch: expected 0 to 2^32 - 1, got ", epoch);
  WEFT_REQUIRE(i >= 0 && i < sampler.epoch_size(), "sampler: sample ", i, " of an epoch of ",
               sampler.epoch_size());
}

}  // namespace

int64_t Sampler::AtPosition(int64_t position) const {
  WEFT_REQUIRE(position >= 0, "sampler: position: expected at least 0, got ", position);
  const int64_t size = epoch_size();
  return At(position / size, position % size);
}

SequentialSampler::SequentialSampler(int64_t num_samples) : num_samples_(num_samples) {
  CheckSize(num_samples);
}

int64_t SequentialSampler::At(int64_t epoch, int64_t i) const {
  CheckRange(*this, epoch, i);
  return i;
}

std::string SequentialSampler::ToString() const { return absl::StrCat("sequential(", num_samples_, ")"); }

ShuffledSampler::ShuffledSampler(int64_t num_samples, uint64_t seed)
    : num_samples_(num_samples), seed_(seed) {
  CheckSize(num_samples);
  WEFT_REQUIRE(num_samples <= int64_t{1} << 62, "sampler: expected at most 2^62 samples, got ", num_samples);
}

int64_t ShuffledSampler::At(int64_t epoch, int64_t i) const {
  CheckRange(*this, epoch, i);
  const Permutation order(
      num_samples_, {.seed = seed_, .stream = StreamOf("shuffled"), .step = static_cast<uint64_t>(epoch)});
  return order.At(i);
}

std::string ShuffledSampler::ToString() const {
  return absl::StrCat("shuffled(", num_samples_, ", seed ", seed_, ")");
}

ReplacementSampler::ReplacementSampler(int64_t num_samples, int64_t epoch_size, uint64_t seed)
    : num_samples_(num_samples), epoch_size_(epoch_size), seed_(seed) {
  CheckSize(num_samples);
  WEFT_REQUIRE(epoch_size >= 1, "sampler: epoch: expected at least 1 sample, got ", epoch_size);
}

int64_t ReplacementSampler::At(int64_t epoch, int64_t i) const {
  CheckRange(*this, epoch, i);
  const RandomKey key = {.seed = seed_, .stream = StreamOf("batches"), .step = static_cast<uint64_t>(epoch)};
  const PhiloxWords words = RandomWords(key, static_cast<uint64_t>(i));
  const uint64_t random = (uint64_t{words[0]} << 32) | words[1];
  // The upper half of the product is uniform on [0, num_samples) to within num_samples / 2^64.
  return static_cast<int64_t>(
      absl::Uint128High64(absl::uint128(random) * static_cast<uint64_t>(num_samples_)));
}

std::string ReplacementSampler::ToString() const {
  return absl::StrCat("with_replacement(", num_samples_, ", seed ", seed_, ", epochs of ", epoch_size_, ")");
}

}  // namespace weft
