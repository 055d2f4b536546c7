#ifndef WEFT_RUNTIME_COMM_GLOO_MESSAGE_EXCHANGE_H_
#define WEFT_RUNTIME_COMM_GLOO_MESSAGE_EXCHANGE_H_

#include <cstdint>

#include "runtime/comm/gloo/peer_channel.h"
#include "runtime/comm/gloo/ring.h"

namespace weft {

// What the ends of a point-to-point message tell each other.
struct MessageRecord {
  int64_t num_bytes = 0;
  char type[56] = {};  // of the receiver's tensor, for the message of a mismatch
};
static_assert(sizeof(MessageRecord) == kRingLine);

// This member's end of one message. The records are sent from here and received here: it does not move.
struct MessageExchange {
  int peer = 0;
  bool sends = false;
  GlooLane lane = GlooLane::kAnnounce;  // in which the other end's record comes
  int64_t number = 0;                   // its ordinal there
  bool checked = false;
  MessageRecord mine;
  MessageRecord theirs;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_MESSAGE_EXCHANGE_H_
