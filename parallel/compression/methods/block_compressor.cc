#include "parallel/compression/methods/block_compressor.h"

#include <algorithm>
#include <numeric>

#include "parallel/compression/methods/values.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

// One bucket under way. Chunk c of a gradient of m elements begins at c ceil(m / n).
class BlockSum {
 public:
  BlockSum(std::shared_ptr<GradientBucket> bucket, std::shared_ptr<const BlockCodec> codec,
           bool error_feedback)
      : bucket_(std::move(bucket)),
        codec_(std::move(codec)),
        error_feedback_(error_feedback),
        num_ranks_(bucket_->group().size()),
        rank_(bucket_->group().rank()),
        message_bytes_(num_ranks_) {
    int64_t lost = 0;
    for (const GradientPart& part : bucket_->parts()) {
      for (int chunk = 0; chunk < num_ranks_; ++chunk) {
        message_bytes_[chunk] += codec_->ChunkBytes(ChunkSize(part, chunk));
      }
      lost += ChunkSize(part, rank_);
    }
    const int64_t all = std::accumulate(message_bytes_.begin(), message_bytes_.end(), int64_t{0});
    sent_ = bucket_->NewTensor(DType::kU8, all);
    received_ = bucket_->NewTensor(DType::kU8, message_bytes_[rank_] * num_ranks_);
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
      for (const GradientPart& part : bucket_->parts()) {
        to = OnValues(part.gradient, [&](auto values) { return EncodeTerm(part, values, chunk, to); });
      }
    }
  }

  // Round two: the sum of everybody's chunk of this rank.
  void EncodeSums() const {
    std::vector<double> sum(codec_->block()), term(codec_->block());
    uint8_t* to = own_sum_.data<uint8_t>();
    const uint8_t* from = received_.data<uint8_t>();
    double* lost = lost_.data<double>();
    for (const GradientPart& part : bucket_->parts()) {
      const RandomKey key = KeyOf(part, rank_, /*round=*/1);
      const int64_t size = ChunkSize(part, rank_);
      for (int64_t begin = 0; begin < size; begin += codec_->block()) {
        const int64_t count = std::min(codec_->block(), size - begin);
        std::fill_n(sum.begin(), count, 0.0);
        for (int rank = 0; rank < num_ranks_; ++rank) {
          codec_->Decode(from + rank * message_bytes_[rank_], absl::MakeSpan(term.data(), count));
          for (int64_t i = 0; i < count; ++i) sum[i] += term[i];
        }
        codec_->Encode(absl::MakeConstSpan(sum.data(), count), key, begin / codec_->block(), to);
        if (error_feedback_) {
          codec_->Decode(to, absl::MakeSpan(term.data(), count));
          for (int64_t i = 0; i < count; ++i) *lost++ = sum[i] - term[i];
        }
        from += codec_->BlockBytes(count);
        to += codec_->BlockBytes(count);
      }
    }
  }

  void DecodeSums() const {
    const double* lost = lost_.data<double>();
    std::vector<const uint8_t*> sums(num_ranks_), terms(num_ranks_);  // of each chunk, what comes next
    const uint8_t* sum = sums_.data<uint8_t>();
    const uint8_t* term = sent_.data<uint8_t>();
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      sums[chunk] = sum;
      terms[chunk] = term;
      sum += message_bytes_[chunk];
      term += message_bytes_[chunk];
    }
    for (const GradientPart& part : bucket_->parts()) {
      OnValues(part.gradient, [&](auto values) { DecodePart(part, values, &sums, &terms, lost); });
      if (error_feedback_) lost += ChunkSize(part, rank_);
    }
  }

 private:
  int64_t ChunkBegin(const GradientPart& part, int chunk) const {
    const int64_t size = part.gradient.num_elements();
    return std::min(size, chunk * ((size + num_ranks_ - 1) / num_ranks_));
  }
  int64_t ChunkSize(const GradientPart& part, int chunk) const {
    return ChunkBegin(part, chunk + 1) - ChunkBegin(part, chunk);
  }

  // Of what this rank encodes of a chunk, in either round.
  RandomKey KeyOf(const GradientPart& part, int chunk, int round) const {
    const uint64_t number = (static_cast<uint64_t>(rank_) * num_ranks_ + chunk) * 2 + round;
    return {.seed = bucket_->seed(), .stream = StreamOf(part.path, number), .step = bucket_->round()};
  }

  template <class T>
  uint8_t* EncodeTerm(const GradientPart& part, absl::Span<T> values, int chunk, uint8_t* to) const {
    std::vector<double> block(codec_->block());
    const RandomKey key = KeyOf(part, chunk, /*round=*/0);
    const absl::Span<T> own = values.subspan(ChunkBegin(part, chunk), ChunkSize(part, chunk));
    for (size_t begin = 0; begin < own.size(); begin += block.size()) {
      const absl::Span<T> some = own.subspan(begin, block.size());
      std::copy(some.begin(), some.end(), block.begin());
      codec_->Encode(absl::MakeConstSpan(block.data(), some.size()), key, begin / block.size(), to);
      to += codec_->BlockBytes(some.size());
    }
    return to;
  }

  // The part's sum replaces its gradient; what was lost becomes its residual, unless something is not finite: then the
  // sum is not either, no optimizer takes it, and the residual stays as it was.
  template <class T>
  void DecodePart(const GradientPart& part, absl::Span<T> values, std::vector<const uint8_t*>* sums,
                  std::vector<const uint8_t*>* terms, const double* lost) const {
    const bool keeps = error_feedback_ && IsFinite(part, *sums);
    T* const residual = keeps ? part.state[0].template data<T>() : nullptr;
    std::vector<double> term(codec_->block()), sum(codec_->block());
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      const int64_t end = ChunkBegin(part, chunk + 1);
      for (int64_t begin = ChunkBegin(part, chunk); begin < end; begin += codec_->block()) {
        const int64_t count = std::min(codec_->block(), end - begin);
        codec_->Decode((*sums)[chunk], absl::MakeSpan(sum.data(), count));
        if (keeps) {
          codec_->Decode((*terms)[chunk], absl::MakeSpan(term.data(), count));
          for (int64_t i = 0; i < count; ++i) {
            const double left = static_cast<double>(values[begin + i]) - term[i];
            residual[begin + i] = static_cast<T>(chunk == rank_ ? left + *lost++ : left);
          }
        }
        std::copy_n(sum.begin(), count, values.begin() + begin);
        (*sums)[chunk] += codec_->BlockBytes(count);
        (*terms)[chunk] += codec_->BlockBytes(count);
      }
    }
  }

  bool IsFinite(const GradientPart& part, std::vector<const uint8_t*> sums) const {
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      for (int64_t left = ChunkSize(part, chunk); left > 0; left -= codec_->block()) {
        const int64_t count = std::min(codec_->block(), left);
        if (!codec_->IsFinite(sums[chunk], count)) return false;
        sums[chunk] += codec_->BlockBytes(count);
      }
    }
    return true;
  }

  const std::shared_ptr<GradientBucket> bucket_;
  const std::shared_ptr<const BlockCodec> codec_;
  const bool error_feedback_;
  const int num_ranks_, rank_;
  std::vector<int64_t> message_bytes_;  // of everybody's chunk c
  Tensor sent_, received_;              // encoded chunks: by receiver, by sender
  Tensor own_sum_, sums_;               // encoded sums: of this rank's chunks, of all
  Tensor lost_;                         // by the encoding of own_sum_
};

}  // namespace

std::vector<CompressorState> BlockCompressor::State(const Shape& /*piece*/) const {
  return ResidualState(error_feedback_);
}

Work BlockCompressor::Reduce(const std::shared_ptr<GradientBucket>& bucket) const {
  const auto sum = std::make_shared<const BlockSum>(bucket, codec_, error_feedback_);
  const std::vector<int64_t> received(bucket->group().size(), sum->message_bytes()[bucket->group().rank()]);
  bucket->Run([sum] { sum->EncodeTerms(); });
  bucket->Add(bucket->group().AllToAll(sum->sent(), sum->message_bytes(), sum->received(), received,
                                       bucket->options()));
  bucket->Run([sum] { sum->EncodeSums(); });
  bucket->Add(
      bucket->group().AllGather(sum->own_sum(), sum->sums(), sum->message_bytes(), bucket->options()));
  bucket->Run([sum] { sum->DecodeSums(); });
  return bucket->works().empty() ? Work() : bucket->works().back();
}

}  // namespace weft
