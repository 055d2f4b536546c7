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
      for (int part = 0; part < num_parts(); ++part) {
        const RandomKey key = KeyOf(part, chunk, /*round=*/0);
        ForEachBlock(part, chunk, [&](int64_t begin, absl::Span<double> block) {
          Get(part, chunk, begin, block);
          codec_->Encode(block, key, begin / codec_->block(), to);
          to += codec_->BlockBytes(std::ssize(block));
        });
      }
    }
  }

  // Round two: the sum of everybody's chunk of this rank.
  void EncodeSums() const {
    uint8_t* to = own_sum_.data<uint8_t>();
    const uint8_t* from = received_.data<uint8_t>();
    double* lost = lost_.data<double>();
    std::vector<double> term(codec_->block());
    for (int part = 0; part < num_parts(); ++part) {
      const RandomKey key = KeyOf(part, rank_, /*round=*/1);
      ForEachBlock(part, rank_, [&](int64_t begin, absl::Span<double> sum) {
        SumTerms(&from, absl::MakeSpan(term.data(), sum.size()), sum);
        codec_->Encode(sum, key, begin / codec_->block(), to);
        if (error_feedback_) {
          codec_->Decode(to, absl::MakeSpan(term.data(), sum.size()));
          for (size_t i = 0; i < sum.size(); ++i) *lost++ = sum[i] - term[i];
        }
        to += codec_->BlockBytes(std::ssize(sum));
      });
    }
  }

  void DecodeSums() const {
    const double* lost = lost_.data<double>();
    std::vector<const uint8_t*> sums = FirstOf(sums_), terms = FirstOf(sent_);
    for (int part = 0; part < num_parts(); ++part) {
      if (error_feedback_ && IsFinite(part, sums)) KeepRest(part, terms, lost);
      if (error_feedback_) lost += chunks_[part][rank_].num_elements();
      for (int chunk = 0; chunk < num_ranks_; ++chunk) {  // the sum replaces the gradient
        ForEachBlock(part, chunk, [&, from = sums[chunk]](int64_t begin, absl::Span<double> sum) mutable {
          codec_->Decode(from, sum);
          from += codec_->BlockBytes(std::ssize(sum));
          Put(part, chunk, begin, sum, bucket_->parts()[part].gradient);
        });
      }
      Skip(part, &sums);
      Skip(part, &terms);
    }
  }

  // In place of round two, where each rank keeps its chunk of the sum: nothing is lost of it, since it is not encoded.
  void KeepOwnSums() const {
    std::vector<const uint8_t*> terms = FirstOf(sent_);
    const uint8_t* from = received_.data<uint8_t>();
    std::vector<double> term(codec_->block());
    for (int part = 0; part < num_parts(); ++part) {
      if (error_feedback_ && IsFinite(part, terms)) KeepRest(part, terms, /*lost=*/nullptr);
      Skip(part, &terms);
      ForEachBlock(part, rank_, [&](int64_t begin, absl::Span<double> sum) {
        SumTerms(&from, absl::MakeSpan(term.data(), sum.size()), sum);
        OnValues(bucket_->parts()[part].owned,
                 [&](auto values) { std::copy(sum.begin(), sum.end(), values.begin() + begin); });
      });
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

  // Calls `function` with where each block of a chunk begins in it, and with room for the block.
  template <class Function>
  void ForEachBlock(int part, int chunk, Function function) const {
    std::vector<double> block(codec_->block());
    const int64_t size = chunks_[part][chunk].num_elements();
    for (int64_t begin = 0; begin < size; begin += codec_->block()) {
      function(begin, absl::MakeSpan(block.data(), std::min(codec_->block(), size - begin)));
    }
  }

  // Elements of a chunk, from `begin` on.
  void Get(int part, int chunk, int64_t begin, absl::Span<double> to) const {
    OnValues(bucket_->parts()[part].gradient, [&](auto values) {
      auto next = to.begin();
      chunks_[part][chunk].ForEachRun(begin, std::ssize(to), [&](int64_t first, int64_t length) {
        next = std::copy_n(values.begin() + first, length, next);
      });
    });
  }
  void Put(int part, int chunk, int64_t begin, absl::Span<const double> from, const Tensor& whole) const {
    OnValues(whole, [&](auto values) {
      auto next = from.begin();
      chunks_[part][chunk].ForEachRun(begin, std::ssize(from), [&](int64_t first, int64_t length) {
        std::copy_n(next, length, values.begin() + first);
        next += length;
      });
    });
  }

  // Of what this rank encodes of a chunk, in either round.
  RandomKey KeyOf(int part, int chunk, int round) const {
    const uint64_t number = (static_cast<uint64_t>(rank_) * num_ranks_ + chunk) * 2 + round;
    return {.seed = bucket_->seed(),
            .stream = StreamOf(bucket_->parts()[part].path, number),
            .step = bucket_->round()};
  }

  // A block of this rank's chunk, whose first term is at `*from`: in f64, in rank order.
  void SumTerms(const uint8_t** from, absl::Span<double> term, absl::Span<double> sum) const {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int rank = 0; rank < num_ranks_; ++rank) {
      codec_->Decode(*from + rank * message_bytes_[rank_], term);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
    }
    *from += codec_->BlockBytes(std::ssize(sum));
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
  void KeepRest(int part, const std::vector<const uint8_t*>& terms, const double* lost) const {
    std::vector<double> term(codec_->block());
    for (int chunk = 0; chunk < num_ranks_; ++chunk) {
      ForEachBlock(part, chunk, [&, from = terms[chunk]](int64_t begin, absl::Span<double> left) mutable {
        Get(part, chunk, begin, left);
        codec_->Decode(from, absl::MakeSpan(term.data(), left.size()));
        from += codec_->BlockBytes(std::ssize(left));
        for (size_t i = 0; i < left.size(); ++i) left[i] -= term[i];
        if (chunk == rank_ && lost != nullptr) {
          for (size_t i = 0; i < left.size(); ++i) left[i] += lost[begin + static_cast<int64_t>(i)];
        }
        Put(part, chunk, begin, left, bucket_->parts()[part].state[0]);
      });
    }
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
