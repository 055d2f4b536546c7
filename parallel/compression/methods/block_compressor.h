// Methods that encode a gradient block by block: every element in fewer bits.

#ifndef WEFT_PARALLEL_COMPRESSION_METHODS_BLOCK_COMPRESSOR_H_
#define WEFT_PARALLEL_COMPRESSION_METHODS_BLOCK_COMPRESSOR_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "parallel/compression/compressor.h"
#include "runtime/base/random_key.h"

namespace weft {

// How a block is encoded. What is not finite is decoded as what is not finite.
class BlockCodec {
 public:
  virtual ~BlockCodec() = default;
  virtual int64_t block() const = 0;  // elements of a block; the last of a chunk may have fewer
  virtual int64_t BlockBytes(int64_t num_elements) const = 0;
  // `index`: the block's number in its chunk, whose random bits `key` names.
  virtual void Encode(absl::Span<const double> values, const RandomKey& key, int64_t index,
                      uint8_t* bytes) const = 0;
  virtual void Decode(const uint8_t* bytes, absl::Span<double> values) const = 0;
  // Whether all that Decode gives is finite.
  virtual bool IsFinite(const uint8_t* bytes, int64_t num_elements) const = 0;

  // Of a chunk of so many elements.
  int64_t ChunkBytes(int64_t num_elements) const {
    const int64_t rest = num_elements % block();
    return num_elements / block() * BlockBytes(block()) + (rest > 0 ? BlockBytes(rest) : 0);
  }
};

// Sums in two rounds, each of encoded chunks. Of n ranks each owns a chunk of every gradient: it gets everybody's, decodes
// and adds them up in f64, in rank order, and encodes the sum for all. So nothing is added in the narrow format, and no
// rank sends more than 2 (n-1)/n of the encoded gradient. With error feedback a rank keeps what its encoding lost, and
// the owner of a chunk also what the encoding of its sum lost: the residuals' sum is all that is lost.
//
// Where ranks own boxes of the sums, these are the chunks, and the first round is all: the owner keeps its sum as it is.
//
// Cost:   an all-to-all and an all-gather, of (n-1) S bytes each, S the bytes of all chunks encoded; ReduceScatter: the
//         all-to-all.
// Source: the two rounds of Tang et al., "DoubleSqueeze", 2019, and of 1-bit Adam, 2021.
class BlockCompressor final : public Compressor {
 public:
  BlockCompressor(std::unique_ptr<const BlockCodec> codec, bool error_feedback)
      : codec_(std::move(codec)), error_feedback_(error_feedback) {}

  std::vector<CompressorState> State(const Shape& piece) const override;
  Work Reduce(const std::shared_ptr<GradientBucket>& bucket) const override;
  Work ReduceScatter(const std::shared_ptr<GradientBucket>& bucket) const override;

 private:
  const std::shared_ptr<const BlockCodec> codec_;
  const bool error_feedback_;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_METHODS_BLOCK_COMPRESSOR_H_
