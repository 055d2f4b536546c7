#ifndef WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_
#define WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"
#include "runtime/comm/gloo/group.h"

namespace weft {

// Reduces what comes from all peers in the collective lane with this member's own, in group rank order, part
// by part as it comes: out of the rings without a copy, by TCP through blocks that are asked for ahead.
class ReduceStream {
 public:
  // Blocks of each TCP peer that are asked for before they are reduced.
  static constexpr int kAhead = 2;

  ReduceStream(GlooGroup& group, DType dtype, ReduceOp op) : group_(group), dtype_(dtype), op_(op) {}

  // Starts to receive the next block from every TCP peer; of 0 bytes, nothing. At most TcpChannel::kBlock,
  // and kAhead of them that have not been reduced.
  // Errors: PeerLost.
  void Expect(int64_t num_bytes);

  // Reduces `own` with the same number of bytes from every peer, for TCP the oldest block that is expected.
  // `output` may be `own`.
  // Errors: as GlooGroup's waits.
  void Reduce(GlooWait& wait, const char* own, char* output, int64_t num_bytes);

  // The same for what is sent as one message: ExpectWhole its first blocks, which may be long before
  // ReduceWhole.
  // `wait_until_sent`: `own` is also what is being sent to all peers, whole, and `output` is in the same
  // place: a part is not overwritten before it is in the rings, nor anything before it has gone by TCP (of at
  // most kAhead blocks, since no more are asked for).
  void ExpectWhole(int64_t num_bytes);
  void ReduceWhole(GlooWait& wait, const char* own, char* output, int64_t num_bytes, bool wait_until_sent);

  // True while the stream waits for `peer`, by memory.
  bool Awaits(int peer) const;

 private:
  // Of what is reduced: all of it, and where in it the bytes begin.
  struct Job {
    GlooWait& wait;
    const char* own;
    char* output;
    int64_t num_bytes;
    bool wait_until_sent;
  };

  // The oldest block of the TCP peers, if there are any, is the bytes from `begin` to `end`.
  void ReduceBlock(const Job& job, int64_t begin, int64_t end);
  void AwaitBlock(GlooWait& wait, int place);
  // How many bytes from `begin` on every ring has, at most `wanted`; waits for some.
  int64_t AwaitPart(const Job& job, int64_t begin, int64_t wanted);

  GlooGroup& group_;
  const DType dtype_;
  const ReduceOp op_;
  int64_t num_expected_ = 0;  // blocks; they lie in the places of the staging memory in turn
  int64_t num_reduced_ = 0;
  std::array<std::vector<int64_t>, kAhead> numbers_;  // by place and peer: the ordinal of the receive
  int64_t wanted_ = 0;                                // of every ring, now
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_
