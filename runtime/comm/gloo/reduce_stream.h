#ifndef WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_
#define WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_

#include <cstdint>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"
#include "runtime/comm/gloo/group.h"

namespace weft {

// Reduces what comes from all peers in the collective lane with this member's own, in group rank order, part
// by part as it comes: out of the rings without a copy, by TCP through two blocks a peer.
class ReduceStream {
 public:
  ReduceStream(GlooGroup& group, DType dtype, ReduceOp op) : group_(group), dtype_(dtype), op_(op) {}

  // `own`, the same number of bytes from every peer, and `output`, which may be `own`.
  // `wait_until_sent`: `own` is also what is being sent to all peers, whole, and `output` is in the same
  // place: a part is not overwritten before it is in the rings, nor anything before it has gone by TCP (of at
  // most two blocks, since no more are asked for). Errors: as GlooGroup's waits.
  void Run(GlooWait& wait, const char* own, char* output, int64_t num_bytes, bool wait_until_sent);

  // True while the stream waits for `peer`, by memory.
  bool Awaits(int peer) const;

 private:
  // What a Run works on.
  struct Job {
    GlooWait& wait;
    const char* own;
    char* output;
    int64_t num_bytes;
    bool wait_until_sent;
  };

  void ExpectBlock(const Job& job, int64_t begin);
  // Reduces the bytes from `begin` to `end`, of which the TCP peers' part has come.
  void ReduceBlock(const Job& job, int64_t begin, int64_t end);
  // How many bytes from `begin` on every ring has, at most `wanted`; waits for some.
  int64_t AwaitPart(const Job& job, int64_t begin, int64_t wanted);

  GlooGroup& group_;
  const DType dtype_;
  const ReduceOp op_;
  std::vector<std::vector<char>> staging_;  // by peer; two blocks of the TCP peers
  int64_t wanted_ = 0;                      // of every ring, now
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_REDUCE_STREAM_H_
