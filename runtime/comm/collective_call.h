#ifndef WEFT_RUNTIME_COMM_COLLECTIVE_CALL_H_
#define WEFT_RUNTIME_COMM_COLLECTIVE_CALL_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/types/span.h"
#include "runtime/comm/collective.h"
#include "runtime/comm/flight_clock.h"
#include "runtime/comm/link_turns.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// One message of a SendRecv batch.
struct Message {
  int peer = 0;   // group rank; the rank itself is allowed
  Tensor tensor;  // contiguous; sent from or received into
};

// One of a list of collectives of one kind: the arguments of AllReduce, AllGather or ReduceScatter.
struct CollectivePart {
  Tensor input;
  Tensor output;
  CollectiveDescriptor::Counts counts = {};  // one per member; none of an all-reduce
};

// One member's part in a collective, as backends run it. Views the caller's data. An undefined tensor: this
// member has none.
struct CollectiveCall {
  const CollectiveDescriptor& descriptor;
  const Tensor& input;
  const Tensor& output;
  absl::Span<const int64_t> receive_counts;  // all-to-all
  uint64_t sequence = 0;
  std::chrono::milliseconds timeout;
  // Where a backend that can tell leaves the time (FlightClock) at which it saw that all members had entered,
  // unless something stands there already; null: nobody asks.
  std::atomic<int64_t>* all_entered_ns = nullptr;
  // Of a rank whose operations take turns: what the backend passes between chunks; null: they do not.
  LinkTurns::Turn* turn = nullptr;

  // The same under another descriptor, which outlives what is returned.
  CollectiveCall Under(const CollectiveDescriptor& other) const {
    return {other, input, output, receive_counts, sequence, timeout, all_entered_ns, turn};
  }
};

// Called by a backend once all members have entered `call`.
inline void NoteAllEntered(const CollectiveCall& call) {
  if (call.all_entered_ns != nullptr && *call.all_entered_ns == 0) *call.all_entered_ns = FlightClock();
  if (call.turn != nullptr) call.turn->Begin();
}

// One member's batch of messages, as backends run it. Views the caller's data. Messages to the member itself
// pair up.
struct SendRecvCall {
  absl::Span<const Message> sends;
  absl::Span<const Message> receives;
  uint64_t sequence = 0;
  std::chrono::milliseconds timeout;
  // As a collective's. Messages are not cut: the batch moves while all of its messages have both of their ends, and holds others.
  LinkTurns::Turn* turn = nullptr;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_COLLECTIVE_CALL_H_
