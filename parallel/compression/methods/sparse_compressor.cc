#include "parallel/compression/methods/sparse_compressor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "parallel/compression/methods/values.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

static_assert(sizeof(SparseEntry) == 8);

int64_t NumEntries(int64_t size, double fraction) {
  return std::min(size, std::max<int64_t>(1, static_cast<int64_t>(fraction * static_cast<double>(size))));
}

// One bucket under way. Entries are chosen in each piece of a gradient, and indices count in it: where ranks own boxes of
// the sums the pieces are these, and what is chosen of one goes to its owner; otherwise the gradient is one piece, and
// goes to all. Messages have a piece's entries of each part.
class SparseSum {
 public:
  SparseSum(std::shared_ptr<GradientBucket> bucket, std::shared_ptr<const SparseSelection> selection,
            const SparseOptions& options, bool scatters)
      : bucket_(std::move(bucket)),
        selection_(std::move(selection)),
        options_(options),
        scatters_(scatters),
        num_entries_(scatters ? bucket_->group().size() : 1) {
    for (const GradientPart& part : bucket_->parts()) {
      const int64_t size = part.gradient.num_elements();
      WEFT_REQUIRE(size <= std::numeric_limits<int32_t>::max(), "gradient of '", part.path,
                   "': ", part.gradient.TypeString(), " has more elements than 32 bits count");
      pieces_.push_back(scatters ? part.boxes : std::vector<ElementBox>{ElementBox::Stretch(0, size)});
      for (int piece = 0; piece < num_pieces(); ++piece) {
        num_entries_[piece] += NumEntriesOf(static_cast<int>(pieces_.size()) - 1, piece);
      }
    }
    const int64_t all = std::accumulate(num_entries_.begin(), num_entries_.end(), int64_t{0});
    sent_ = bucket_->NewTensor(DType::kI64, all);
    received_ = bucket_->NewTensor(DType::kI64, num_entries_[own_piece()] * bucket_->group().size());
  }

  const std::vector<int64_t>& num_entries() const { return num_entries_; }
  const Tensor& sent() const { return sent_; }
  const Tensor& received() const { return received_; }

  void Encode() const {
    std::vector<SparseEntry*> to = SentByPiece();
    for (int part = 0; part < std::ssize(pieces_); ++part) {
      OnValues(bucket_->parts()[part].gradient, [&](auto values) { EncodePart(part, values, &to); });
    }
  }

  void Decode() const {
    std::vector<SparseEntry*> sent = SentByPiece();
    const SparseEntry* received = EntriesOf(received_);
    for (int part = 0; part < std::ssize(pieces_); ++part) {
      const bool keeps = options_.error_feedback && IsFinite(part, sent, received);
      OnValues(bucket_->parts()[part].gradient, [&](auto values) {
        if (keeps) KeepRest(part, values, sent);
      });
      for (int piece = 0; piece < num_pieces(); ++piece) sent[piece] += NumEntriesOf(part, piece);
      SumEntries(part, received);
      received += NumEntriesOf(part, own_piece());
    }
  }

 private:
  static SparseEntry* EntriesOf(const Tensor& tensor) { return static_cast<SparseEntry*>(tensor.data()); }

  int num_pieces() const { return static_cast<int>(num_entries_.size()); }
  int own_piece() const { return scatters_ ? bucket_->group().rank() : 0; }
  int64_t NumEntriesOf(int part, int piece) const {
    return NumEntries(pieces_[part][piece].num_elements(), options_.fraction);
  }

  // Where the entries of each piece begin, of the first part.
  std::vector<SparseEntry*> SentByPiece() const {
    std::vector<SparseEntry*> first;
    SparseEntry* next = EntriesOf(sent_);
    for (const int64_t count : num_entries_) {
      first.push_back(next);
      next += count;
    }
    return first;
  }

  // What there is to send, in the gradient's memory: what was not sent before, and this step's velocity.
  template <class T>
  void EncodePart(int index, absl::Span<T> values, std::vector<SparseEntry*>* to) const {
    const GradientPart& part = bucket_->parts()[index];
    AddResidual(part, options_.error_feedback);
    if (options_.momentum > 0) {
      const T* const velocity = part.state[1].template data<T>();
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] += static_cast<T>(options_.momentum) * velocity[i];
      }
    }
    const bool is_finite = AllFinite<T>(values);
    for (int piece = 0; piece < num_pieces(); ++piece) {
      const absl::Span<SparseEntry> entries((*to)[piece], NumEntriesOf(index, piece));
      (*to)[piece] += entries.size();
      if (!is_finite) {  // no rank takes the sum then
        std::fill(entries.begin(), entries.end(),
                  SparseEntry{.index = 0, .value = std::numeric_limits<float>::quiet_NaN()});
        continue;
      }
      const uint64_t number = bucket_->group().rank() + (scatters_ ? (piece + 1) * num_pieces() : 0);
      const RandomKey key = {
          .seed = bucket_->seed(), .stream = StreamOf(part.path, number), .step = bucket_->round()};
      selection_->Select(pieces_[index][piece].Values(values), key, entries);
    }
  }

  // Whether what decides about the residual is: of a whole sum everybody's entries, so that ranks agree; of a box's, which
  // others do not see, this rank's own.
  bool IsFinite(int part, const std::vector<SparseEntry*>& sent, const SparseEntry* received) const {
    const auto are = [](const SparseEntry* entries, int64_t count) {
      return std::all_of(entries, entries + count,
                         [](const SparseEntry& entry) { return std::isfinite(entry.value); });
    };
    bool is_finite = true;
    if (scatters_) {
      for (int piece = 0; piece < num_pieces(); ++piece) {
        is_finite &= are(sent[piece], NumEntriesOf(part, piece));
      }
      return is_finite;
    }
    for (int rank = 0; rank < bucket_->group().size(); ++rank) {
      is_finite &= are(received + rank * num_entries_[0], NumEntriesOf(part, 0));
    }
    return is_finite;
  }

  // `received`: rank 0's entries of the part.
  void SumEntries(int index, const SparseEntry* received) const {
    const GradientPart& part = bucket_->parts()[index];
    const int piece = own_piece();
    std::vector<double> sum(pieces_[index][piece].num_elements());
    for (int rank = 0; rank < bucket_->group().size(); ++rank) {
      const SparseEntry* const entries = received + rank * num_entries_[piece];
      for (int64_t i = 0; i < NumEntriesOf(index, piece); ++i) {
        const SparseEntry& entry = entries[i];
        WEFT_CHECK(entry.index >= 0 && entry.index < std::ssize(sum), part.path, ": index ", entry.index,
                   " from group rank ", rank);
        sum[entry.index] += entry.value;
      }
    }
    OnValues(scatters_ ? part.owned : part.gradient,
             [&](auto values) { std::copy(sum.begin(), sum.end(), values.begin()); });
  }

  // `values`: what there was to send.
  template <class T>
  void KeepRest(int index, absl::Span<T> values, const std::vector<SparseEntry*>& sent) const {
    const GradientPart& part = bucket_->parts()[index];
    T* const residual = part.state[0].template data<T>();
    T* const velocity = options_.momentum > 0 ? part.state[1].template data<T>() : nullptr;
    for (size_t i = 0; i < values.size() && velocity != nullptr; ++i) velocity[i] = values[i] - residual[i];
    std::copy(values.begin(), values.end(), residual);
    for (int piece = 0; piece < num_pieces(); ++piece) {
      for (int64_t i = 0; i < NumEntriesOf(index, piece); ++i) {
        const SparseEntry& entry = sent[piece][i];
        const int64_t at = pieces_[index][piece].IndexOf(entry.index);
        residual[at] = static_cast<T>(static_cast<double>(residual[at]) - entry.value);
        if (velocity != nullptr && options_.masking) velocity[at] = 0;
      }
    }
  }

  const std::shared_ptr<GradientBucket> bucket_;
  const std::shared_ptr<const SparseSelection> selection_;
  const SparseOptions options_;
  const bool scatters_;
  std::vector<std::vector<ElementBox>> pieces_;  // of each part
  std::vector<int64_t> num_entries_;             // of a rank, by piece
  Tensor sent_, received_;                       // an entry is as wide as an i64; by piece, by sender
};

}  // namespace

std::vector<CompressorState> SparseCompressor::State(const Shape& /*piece*/) const {
  std::vector<CompressorState> state = ResidualState(options_.error_feedback);
  if (options_.momentum > 0) state.push_back({.name = "velocity"});
  return state;
}

Work SparseCompressor::Reduce(const std::shared_ptr<GradientBucket>& bucket) const {
  const auto sum = std::make_shared<const SparseSum>(bucket, selection_, options_, /*scatters=*/false);
  const std::vector<int64_t> counts(bucket->group().size(), sum->num_entries()[0]);
  bucket->Run([sum] { sum->Encode(); });
  bucket->Add(bucket->group().AllGather(sum->sent(), sum->received(), counts, bucket->options()));
  bucket->Run([sum] { sum->Decode(); });
  return bucket->works().empty() ? Work() : bucket->works().back();
}

Work SparseCompressor::ReduceScatter(const std::shared_ptr<GradientBucket>& bucket) const {
  const auto sum = std::make_shared<const SparseSum>(bucket, selection_, options_, /*scatters=*/true);
  const std::vector<int64_t> received(bucket->group().size(), sum->num_entries()[bucket->group().rank()]);
  bucket->Run([sum] { sum->Encode(); });
  bucket->Add(bucket->group().AllToAll(sum->sent(), sum->num_entries(), sum->received(), received,
                                       bucket->options()));
  bucket->Run([sum] { sum->Decode(); });
  return bucket->works().empty() ? Work() : bucket->works().back();
}

MethodArgument FractionArgument() {
  return {.name = "fraction", .least = 0, .most = 1, .excludes_least = true, .is_required = true};
}

}  // namespace weft
