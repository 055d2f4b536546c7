#ifndef WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_
#define WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"
#include "runtime/comm/gloo/group.h"

namespace weft {

// Reduces what comes from all peers in the collective lane with this member's own, in group rank order, part
// by part as it comes: out of the rings without a copy, by TCP through blocks that are asked for ahead.
class ReduceStream {
 public:
  static constexpr int kMostAhead = 4;

  // `ahead`: how many blocks of each TCP peer are asked for before they are reduced, 2 to kMostAhead.
  ReduceStream(GlooGroup& group, DType dtype, ReduceOp op, int ahead = 2)
      : group_(group), dtype_(dtype), op_(op), ahead_(ahead) {}

  int ahead() const { return ahead_; }
  // What a block has at most, and, of what is sent as a whole, all but the last have.
  int64_t block_bytes() const { return GlooGroup::kStagingBytes / ahead_; }

  // Starts to receive the next block from every TCP peer; of 0 bytes, nothing. At most block_bytes, and ahead()
  // of them that have not been reduced.
  // Errors: PeerLost.
  void Expect(int64_t num_bytes);

  // Reduces `own` with the same number of bytes from every peer, for TCP the oldest block that is expected.
  // `output` may be `own`.
  // Errors: as GlooGroup's waits.
  void Reduce(GlooWait& wait, const char* own, char* output, int64_t num_bytes);

  // What is reduced whole: all of it, and where its parts begin.
  struct Whole {
    GlooWait& wait;
    const char* own;
    char* output;
    int64_t num_bytes = 0;
    // `own` is also what is being sent to all peers, whole, and `output` is in the same place: a part is not
    // overwritten before it is in the rings, nor anything before it has gone by TCP (of at most ahead() blocks,
    // since no more are asked for).
    bool wait_until_sent = false;
    int64_t num_behind = 0;  // bytes that have been sent to each peer behind it
  };
  // The same for what is sent whole, one after another: ExpectWholes asks for the first blocks, which may be
  // long before ReduceWhole, once for each in their order. Peers send blocks of block_bytes; where the stream is
  // 2 ahead, that is what a channel makes of a message.
  void ExpectWholes(absl::Span<const int64_t> num_bytes);
  void ReduceWhole(const Whole& whole);

  // True while the stream waits for `peer`, by memory.
  bool Awaits(int peer) const;

 private:
  // The next block of the wholes, if there is one.
  void ExpectNext();
  // The oldest block of the TCP peers, if there are any, is the bytes from `begin` to `end`.
  void ReduceBlock(const Whole& whole, int64_t begin, int64_t end);
  void AwaitBlock(GlooWait& wait, int place);
  // How many bytes from `begin` on every ring has, at most `wanted`; waits for some.
  int64_t AwaitPart(const Whole& whole, int64_t begin, int64_t wanted);

  GlooGroup& group_;
  const DType dtype_;
  const ReduceOp op_;
  const int ahead_;
  int64_t num_expected_ = 0;  // blocks; they lie in the places of the staging memory in turn
  int64_t num_reduced_ = 0;
  std::array<std::vector<int64_t>, kMostAhead> numbers_;  // by place and peer: the ordinal of the receive
  int64_t wanted_ = 0;                                    // of every ring, now
  absl::InlinedVector<int64_t, 1> wholes_;                // bytes of each
  size_t next_whole_ = 0;                                 // and how far they have been asked for
  int64_t next_begin_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_
