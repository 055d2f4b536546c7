#include "parallel/compression/methods/sparse_compressor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/compression/methods/values.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

static_assert(sizeof(SparseEntry) == 8);

int64_t NumEntries(const GradientPart& part, double fraction) {
  const int64_t size = part.gradient.num_elements();
  return std::min(size, std::max<int64_t>(1, static_cast<int64_t>(fraction * static_cast<double>(size))));
}

// One bucket under way.
class SparseSum {
 public:
  SparseSum(std::shared_ptr<GradientBucket> bucket, std::shared_ptr<const SparseSelection> selection,
            const SparseOptions& options)
      : bucket_(std::move(bucket)), selection_(std::move(selection)), options_(options) {
    for (const GradientPart& part : bucket_->parts()) {
      WEFT_REQUIRE(part.gradient.num_elements() <= std::numeric_limits<int32_t>::max(), "gradient of '",
                   part.path, "': ", part.gradient.TypeString(), " has more elements than 32 bits count");
      num_entries_ += NumEntries(part, options_.fraction);
    }
    const int num_ranks = bucket_->group().size();
    sent_ = bucket_->NewTensor(DType::kI64, num_entries_);
    received_ = bucket_->NewTensor(DType::kI64, num_entries_ * num_ranks);
  }

  int64_t num_entries() const { return num_entries_; }
  const Tensor& sent() const { return sent_; }
  const Tensor& received() const { return received_; }

  void Encode() const {
    SparseEntry* to = EntriesOf(sent_);
    for (const GradientPart& part : bucket_->parts()) {
      const absl::Span<SparseEntry> entries(to, NumEntries(part, options_.fraction));
      OnValues(part.gradient, [&](auto values) { EncodePart(part, values, entries); });
      to += entries.size();
    }
  }

  void Decode() const {
    int64_t first = 0;
    for (const GradientPart& part : bucket_->parts()) {
      OnValues(part.gradient, [&](auto values) { DecodePart(part, values, first); });
      first += NumEntries(part, options_.fraction);
    }
  }

 private:
  static SparseEntry* EntriesOf(const Tensor& tensor) { return static_cast<SparseEntry*>(tensor.data()); }

  // What there is to send, in the gradient's memory: what was not sent before, and this step's velocity.
  template <class T>
  void EncodePart(const GradientPart& part, absl::Span<T> values, absl::Span<SparseEntry> entries) const {
    AddResidual(part, options_.error_feedback);
    if (options_.momentum > 0) {
      const T* const velocity = part.state[1].template data<T>();
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] += static_cast<T>(options_.momentum) * velocity[i];
      }
    }
    if (!AllFinite<T>(values)) {  // no rank takes the sum then
      std::fill(entries.begin(), entries.end(),
                SparseEntry{.index = 0, .value = std::numeric_limits<float>::quiet_NaN()});
      return;
    }
    const std::vector<double> wide(values.begin(), values.end());
    const RandomKey key = {.seed = bucket_->seed(),
                           .stream = StreamOf(part.path, bucket_->group().rank()),
                           .step = bucket_->round()};
    selection_->Select(wide, key, entries);
  }

  template <class T>
  void DecodePart(const GradientPart& part, absl::Span<T> values, int64_t first) const {
    const int64_t count = NumEntries(part, options_.fraction);
    std::vector<double> sum(values.size());
    bool is_finite = true;
    for (int rank = 0; rank < bucket_->group().size(); ++rank) {
      const SparseEntry* const entries = EntriesOf(received_) + rank * num_entries_ + first;
      for (int64_t i = 0; i < count; ++i) {
        const SparseEntry& entry = entries[i];
        WEFT_CHECK(entry.index >= 0 && entry.index < std::ssize(values), part.path, ": index ", entry.index,
                   " from group rank ", rank);
        sum[entry.index] += entry.value;
        is_finite &= std::isfinite(entry.value);
      }
    }
    if (options_.error_feedback && is_finite) KeepRest(part, values, first);
    std::copy(sum.begin(), sum.end(), values.begin());
  }

  // `values`: what there was to send.
  template <class T>
  void KeepRest(const GradientPart& part, absl::Span<T> values, int64_t first) const {
    T* const residual = part.state[0].template data<T>();
    T* const velocity = options_.momentum > 0 ? part.state[1].template data<T>() : nullptr;
    for (size_t i = 0; i < values.size() && velocity != nullptr; ++i) velocity[i] = values[i] - residual[i];
    std::copy(values.begin(), values.end(), residual);
    const SparseEntry* const entries = EntriesOf(sent_) + first;
    for (int64_t i = 0; i < NumEntries(part, options_.fraction); ++i) {
      const int32_t index = entries[i].index;
      residual[index] = static_cast<T>(static_cast<double>(residual[index]) - entries[i].value);
      if (velocity != nullptr && options_.masking) velocity[index] = 0;
    }
  }

  const std::shared_ptr<GradientBucket> bucket_;
  const std::shared_ptr<const SparseSelection> selection_;
  const SparseOptions options_;
  int64_t num_entries_ = 0;  // of a rank
  Tensor sent_, received_;   // an entry is as wide as an i64
};

}  // namespace

std::vector<CompressorState> SparseCompressor::State(const Shape& /*piece*/) const {
  std::vector<CompressorState> state = ResidualState(options_.error_feedback);
  if (options_.momentum > 0) state.push_back({.name = "velocity"});
  return state;
}

Work SparseCompressor::Reduce(const std::shared_ptr<GradientBucket>& bucket) const {
  const auto sum = std::make_shared<const SparseSum>(bucket, selection_, options_);
  const std::vector<int64_t> counts(bucket->group().size(), sum->num_entries());
  bucket->Run([sum] { sum->Encode(); });
  bucket->Add(bucket->group().AllGather(sum->sent(), sum->received(), counts, bucket->options()));
  bucket->Run([sum] { sum->Decode(); });
  return bucket->works().empty() ? Work() : bucket->works().back();
}

MethodArgument FractionArgument() {
  return {.name = "fraction", .least = 0, .most = 1, .excludes_least = true, .is_required = true};
}

}  // namespace weft
