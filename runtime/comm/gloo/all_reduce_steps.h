#ifndef WEFT_RUNTIME_COMM_GLOO_ALL_REDUCE_STEPS_H_
#define WEFT_RUNTIME_COMM_GLOO_ALL_REDUCE_STEPS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/comm/gloo/collective_pieces.h"
#include "runtime/comm/gloo/group.h"
#include "runtime/comm/gloo/reduce_stream.h"

namespace weft {

// One all-reduce, or several behind one header, in steps: everybody sends everybody its input of their slices,
// reduces its own slice and sends the result to all while it is in the cache. The steps of all parts are one
// row: by TCP a part's first bytes are on their way while the last ones of the part before it are reduced.
//
// Lifetime: views the group, the pieces and the stream.
class AllReduceSteps {
 public:
  AllReduceSteps(GlooGroup& group, absl::Span<const CollectivePieces> parts, ReduceStream& stream);

  // Starts what goes by TCP ahead, behind the headers.
  // Errors: PeerLost.
  void Post();

  // Errors: as GlooGroup's waits.
  void Run(GlooWait& wait);

 private:
  // The bytes of every member's slice of a part from `begin` on, `length` at most.
  struct Step {
    const CollectivePieces* part;
    int64_t begin;
    int64_t length;
  };

  Slice At(int member, size_t step) const {
    const Step& at = steps_[step];
    return PartOf(SliceOf(at.part->bytes, member, at.part->size), at.begin, at.length);
  }
  PeerChannel& channel(int peer) const { return group_.channel(peer, GlooLane::kCollective); }
  template <class Visit>
  void ForEachPeer(const Visit& visit) const {
    for (int i = 1; i < group_.size(); ++i) visit((group_.rank() + i) % group_.size());
  }

  // Each does nothing for a step behind the last.
  void Expect(size_t step);
  void SendInput(int peer, size_t step);
  void SendResult(int peer, size_t step);
  void ReceiveResult(int peer, size_t step);
  void PostBehind(size_t step);

  GlooGroup& group_;
  ReduceStream& stream_;
  std::vector<Step> steps_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_ALL_REDUCE_STEPS_H_
