#include "parallel/compression/methods/block_compressor.h"

#include <algorithm>
#include <numeric>

#include "parallel/compression/methods/values.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

// One bucket under way. Of n ranks each owns a chunk of every gradient: where ranks are to have boxes of sums, its box;
// otherwise, of m elements, chunk c begins at c ceil(m / n).
class BlockSum {
 public:
  BlockSum(std::shared_ptr<GradientBucket> bucket, std::shared_ptr<const BlockCodec> codec,
           bool error_feedback, bool scatters)
      : bucket_(std::move(bucket)),
        codec_(std::move(codec)),
        error_feedback_(error_feedback),
        num_ranks_(bucket_->group().size()),
        rank_(bucket_->group().rank()),
        message_bytes_(num_ranks_) {
    int64_t lost = 0;
    for (const GradientPart& part : bucket_->parts()) {
      chunks_.push_back(scatters ? part.boxes : Stretches(part.gradient.num_elements()));
      for (int chunk = 0; chunk < num_ranks_; ++chunk) {
        message_bytes_[chunk] += codec_->ChunkBytes(chunks_.back()[chunk].num_elements());
      }
      lost += chunks_.back()[rank_].num_elements();
    }
    const int64_t all = std::accumulate(message_bytes_.begin(), message_bytes_.end(), int64_t{0});
    sent_ = bucket_->NewTensor(DType::kU8, all);
    received_ = bucket_->NewTensor(DType::kU8, message_bytes_[rank_] * num_ranks_);
    if (scatters) return;
    own_sum_ = bucket_->NewTensor(DType::kU8, message_bytes_[rank_]);
    sums_ = bucket_->NewTensor(DType::kU8, all);
    lost_ = bucket_->NewTensor(DType::kF64, error_feedback_ ? lost : 0);
  }

  const std::vector<int64_t>& message_bytes() const { return message_bytes_; }
  const Tensor& sent() const { return sent_; }
  const Tensor& received() const { return received_; }
  const Tensor& own_sum() const { return own_sum_; }
  const Tensor& sums() const { return sums_; }

  // Round one: chunk c of every part for rank c.
  void EncodeTerms() const {
    for (const GradientPart& part : bucket_->parts()) AddResidual(part, error_feedback_);
    uint8_t* to = sent_.data<uint8_t>();
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      for (int i = 0; i < num_parts(); ++i) {
        const std::vector<double> term = ValuesOf(i, chunk);
        to = Encode(term, KeyOf(i, chunk, /*round=*/0), to);
      }
    }
  }

  // Round two: the sum of everybody's chunk of this rank.
  void EncodeSums() const {
    uint8_t* to = own_sum_.data<uint8_t>();
    const uint8_t* from = received_.data<uint8_t>();
    double* lost = lost_.data<double>();
    for (int i = 0; i < num_parts(); ++i) {
      const std::vector<double> sum = SumOfTerms(i, &from);
      const uint8_t* encoded = to;
      to = Encode(sum, KeyOf(i, rank_, /*round=*/1), to);
      if (!error_feedback_) continue;
      const std::vector<double> decoded = Decode(sum.size(), &encoded);
      for (size_t at = 0; at < sum.size(); ++at) *lost++ = sum[at] - decoded[at];
    }
  }

  void DecodeSums() const {
    const double* lost = lost_.data<double>();
    std::vector<const uint8_t*> sums = FirstOf(sums_), terms = FirstOf(sent_);
    for (int i = 0; i < num_parts(); ++i) {
      const std::vector<const uint8_t*> sums_of_part = sums;
      Skip(i, &sums);
      if (error_feedback_ && IsFinite(i, sums_of_part)) {
        KeepRest(i, terms, lost);
      }
      Skip(i, &terms);
      if (error_feedback_) lost += chunks_[i][rank_].num_elements();
      TakeSums(i, sums_of_part);
    }
  }

  // In place of round two, where each rank keeps its chunk of the sum: nothing is lost of it, since it is not encoded.
  void KeepOwnSums() const {
    std::vector<const uint8_t*> terms = FirstOf(sent_);
    const uint8_t* from = received_.data<uint8_t>();
    for (int i = 0; i < num_parts(); ++i) {
      if (error_feedback_ && IsFinite(i, terms)) KeepRest(i, terms, /*lost=*/nullptr);
      Skip(i, &terms);
      const std::vector<double> sum = SumOfTerms(i, &from);
      OnValues(bucket_->parts()[i].owned,
               [&](auto values) { std::copy(sum.begin(), sum.end(), values.begin()); });
    }
  }

 private:
  int num_parts() const { return static_cast<int>(chunks_.size()); }

  std::vector<ElementBox> Stretches(int64_t size) const {
    const int64_t chunk = (size + num_ranks_ - 1) / num_ranks_;
    std::vector<ElementBox> chunks;
    for (int i = 0; i < num_ranks_; ++i) {
      const int64_t begin = std::min(size, i * chunk);
      chunks.push_back(ElementBox::Stretch(begin, std::min(size, begin + chunk) - begin));
    }
    return chunks;
  }

  std::vector<double> ValuesOf(int part, int chunk) const {
    return OnValues(bucket_->parts()[part].gradient,
                    [&](auto values) { return chunks_[part][chunk].Values(values); });
  }

  // Of what this rank encodes of a chunk, in either round.
  RandomKey KeyOf(int part, int chunk, int round) const {
    const uint64_t number = (static_cast<uint64_t>(rank_) * num_ranks_ + chunk) * 2 + round;
    return {.seed = bucket_->seed(),
            .stream = StreamOf(bucket_->parts()[part].path, number),
            .step = bucket_->round()};
  }

  // Returns what comes behind.
  uint8_t* Encode(absl::Span<const double> chunk, const RandomKey& key, uint8_t* to) const {
    const auto block = static_cast<size_t>(codec_->block());
    for (size_t begin = 0; begin < chunk.size(); begin += block) {
      const absl::Span<const double> some = chunk.subspan(begin, block);
      codec_->Encode(some, key, static_cast<int64_t>(begin / block), to);
      to += codec_->BlockBytes(std::ssize(some));
    }
    return to;
  }

  // Of a chunk of so many elements, at `*from`, which it moves on.
  std::vector<double> Decode(size_t size, const uint8_t** from) const {
    const auto block = static_cast<size_t>(codec_->block());
    std::vector<double> chunk(size);
    for (size_t begin = 0; begin < size; begin += block) {
      const absl::Span<double> some = absl::MakeSpan(chunk).subspan(begin, block);
      codec_->Decode(*from, some);
      *from += codec_->BlockBytes(std::ssize(some));
    }
    return chunk;
  }

  // Of this rank's chunk of a part, whose first term is at `*from`: in f64, in rank order.
  std::vector<double> SumOfTerms(int part, const uint8_t** from) const {
    const int64_t size = chunks_[part][rank_].num_elements();
    std::vector<double> sum(size);
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const uint8_t* encoded = *from + rank * message_bytes_[rank_];
      const std::vector<double> term = Decode(size, &encoded);
      for (int64_t i = 0; i < size; ++i) sum[i] += term[i];
    }
    *from += codec_->ChunkBytes(size);
    return sum;
  }

  // Of each chunk, where its first part begins in `encoded`, which has all chunks.
  std::vector<const uint8_t*> FirstOf(const Tensor& encoded) const {
    std::vector<const uint8_t*> first;
    const uint8_t* chunk = encoded.data<uint8_t>();
    for (const int64_t num_bytes : message_bytes_) {
      first.push_back(chunk);
      chunk += num_bytes;
    }
    return first;
  }
  void Skip(int part, std::vector<const uint8_t*>* encoded) const {
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      (*encoded)[chunk] += codec_->ChunkBytes(chunks_[part][chunk].num_elements());
    }
  }

  // What was lost becomes the residual, unless something is not finite: then the sum is not either, no optimizer takes
  // it, and the residual stays as it was. `lost`: by the encoding of this rank's chunk of the sum.
  void KeepRest(int part, std::vector<const uint8_t*> terms, const double* lost) const {
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      std::vector<double> left = ValuesOf(part, chunk);
      const std::vector<double> term = Decode(left.size(), &terms[chunk]);
      for (size_t i = 0; i < left.size(); ++i) left[i] -= term[i];
      if (chunk == rank_ && lost != nullptr) {
        for (size_t i = 0; i < left.size(); ++i) left[i] += lost[i];
      }
      OnValues(bucket_->parts()[part].state[0], [&](auto residual) { Put(left, part, chunk, residual); });
    }
  }

  // The part's sum replaces its gradient.
  void TakeSums(int part, std::vector<const uint8_t*> sums) const {
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      const std::vector<double> sum = Decode(chunks_[part][chunk].num_elements(), &sums[chunk]);
      OnValues(bucket_->parts()[part].gradient, [&](auto values) { Put(sum, part, chunk, values); });
    }
  }

  template <class T>
  void Put(const std::vector<double>& from, int part, int chunk, absl::Span<T> whole) const {
    auto next = from.begin();
    chunks_[part][chunk].ForEachRun([&](int64_t begin, int64_t length) {
      std::copy_n(next, length, whole.begin() + begin);
      next += length;
    });
  }

  bool IsFinite(int part, std::vector<const uint8_t*> encoded) const {
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      for (int64_t left = chunks_[part][chunk].num_elements(); left > 0; left -= codec_->block()) {
        const int64_t count = std::min(codec_->block(), left);
        if (!codec_->IsFinite(encoded[chunk], count)) return false;
        encoded[chunk] += codec_->BlockBytes(count);
      }
    }
    return true;
  }

  const std::shared_ptr<GradientBucket> bucket_;
  const std::shared_ptr<const BlockCodec> codec_;
  const bool error_feedback_;
  const int num_ranks_, rank_;
  std::vector<std::vector<ElementBox>> chunks_;  // of each part, by owner
  std::vector<int64_t> message_bytes_;           // of everybody's chunk c
  Tensor sent_, received_;                       // encoded chunks: by receiver, by sender
  Tensor own_sum_, sums_;                        // encoded sums: of this rank's chunks, of all
  Tensor lost_;                                  // by the encoding of own_sum_
};

// Encodes every term and brings it to the chunk's owner.
void SendTerms(const std::shared_ptr<const BlockSum>& sum, GradientBucket& bucket) {
  const std::vector<int64_t> received(bucket.group().size(), sum->message_bytes()[bucket.group().rank()]);
  bucket.Run([sum] { sum->EncodeTerms(); });
  bucket.Add(bucket.group().AllToAll(sum->sent(), sum->message_bytes(), sum->received(), received,
                                     bucket.options()));
}

}  // namespace

std::vector<CompressorState> BlockCompressor::State(const Shape& /*piece*/) const {
  return ResidualState(error_feedback_);
}

Work BlockCompressor::Reduce(const std::shared_ptr<GradientBucket>& bucket) const {
  const auto sum = std::make_shared<const BlockSum>(bucket, codec_, error_feedback_, /*scatters=*/false);
  SendTerms(sum, *bucket);
  bucket->Run([sum] { sum->EncodeSums(); });
  bucket->Add(
      bucket->group().AllGather(sum->own_sum(), sum->sums(), sum->message_bytes(), bucket->options()));
  bucket->Run([sum] { sum->DecodeSums(); });
  return bucket->works().empty() ? Work() : bucket->works().back();
}

Work BlockCompressor::ReduceScatter(const std::shared_ptr<GradientBucket>& bucket) const {
  const auto sum = std::make_shared<const BlockSum>(bucket, codec_, error_feedback_, /*scatters=*/true);
  SendTerms(sum, *bucket);
  bucket->Run([sum] { sum->KeepOwnSums(); });
  return bucket->works().empty() ? Work() : bucket->works().back();
}

}  // namespace weft
