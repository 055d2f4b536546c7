#ifndef WEFT_RUNTIME_COMM_GLOO_HEADER_EXCHANGE_H_
#define WEFT_RUNTIME_COMM_GLOO_HEADER_EXCHANGE_H_

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/gloo/group.h"

namespace weft {

// How members enter a collective: the header of each to each, and the verdict on all of them. Who knows the data
// fills and sends this member's headers, in the collective lane and before anything else.
class HeaderExchange {
 public:
  explicit HeaderExchange(GlooGroup& group) : group_(group), stage_(group.size()) {}

  // Starts to receive the peers' headers, unless that has begun.
  // Errors: PeerLost.
  void Expect();

  // Waits for all. `behind(peer)` is called when that of a peer that shares memory has come: it starts to
  // receive what comes behind it.
  // Errors: as GlooGroup's waits.
  void Await(GlooWait& wait, absl::FunctionRef<void(int peer)> behind);

  bool HasCome(int peer) const {
    return group_.by_memory(peer) ? stage_[peer] == 2 : group_.HasTcpHeader(peer);
  }
  bool AllHaveCome() const { return num_come_ == group_.size() - 1; }

  // All members come to the same verdict, since all look at the same headers in the same order.
  // Errors: InvalidArgument that names both sides; it ends the group.
  void Agree();

 private:
  const GlooHeader& HeaderOf(int member) const {
    return member == group_.rank() ? group_.header_to(member) : group_.header_from(member);
  }
  bool FromRing(int peer, absl::FunctionRef<void(int peer)> behind);
  [[noreturn]] void Disagree(int a, int b, const std::string& what);

  GlooGroup& group_;
  int num_come_ = 0;
  // Of ring peers: 0: the first line is awaited, 1: the rest, 2: it has come.
  absl::InlinedVector<char, 16> stage_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_HEADER_EXCHANGE_H_
