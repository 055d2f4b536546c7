#ifndef WEFT_RUNTIME_COMM_GLOO_RING_CHANNEL_H_
#define WEFT_RUNTIME_COMM_GLOO_RING_CHANNEL_H_

#include <vector>

#include "absl/types/span.h"
#include "runtime/comm/gloo/doorbell.h"
#include "runtime/comm/gloo/peer_channel.h"
#include "runtime/comm/gloo/ring.h"

namespace weft {

// A lane through two rings in shared memory. Nothing moves but in Send, which tries, and in Pump.
//
// Lifetime: views the rings and the peer's doorbell.
class RingChannel final : public PeerChannel {
 public:
  RingChannel(const RingWriter& writer, const RingReader& reader, Doorbell* peer_bell)
      : writer_(writer), reader_(reader), peer_bell_(peer_bell) {}

  void Send(const void* data, int64_t num_bytes) override;
  void Receive(void* data, int64_t num_bytes) override;
  bool sending() const override { return next_out_ < out_.size(); }
  bool receiving() const override { return next_in_ < in_.size(); }

  // Moves what can be moved now. Returns how many bytes.
  int64_t Pump() {
    const int64_t sent = sending() ? PumpOut() : 0;
    return sent + (receiving() ? PumpIn() : 0);
  }

  // Bytes still to be put into the ring, of all messages.
  int64_t num_unsent() const { return num_unsent_; }

  // Reading without a copy, while no Receive is pending: as RingReader. A message is consumed in whole lines,
  // but for its end.
  absl::Span<const char> Front(int64_t wanted) { return reader_.Front(wanted); }
  bool IsWhole(absl::Span<const char> front, int64_t wanted) const { return reader_.IsWhole(front, wanted); }
  void Consume(int64_t num_bytes) {
    reader_.Consume(num_bytes);
    peer_bell_->Ring();
  }

 private:
  // What is still to be moved of one message.
  struct Part {
    char* data;
    int64_t num_bytes;
  };

  int64_t PumpOut();
  int64_t PumpIn();

  RingWriter writer_;
  RingReader reader_;
  Doorbell* peer_bell_;
  std::vector<Part> out_;  // from next_out_ on; emptied when all is sent
  size_t next_out_ = 0;
  std::vector<Part> in_;
  size_t next_in_ = 0;
  int64_t num_unsent_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_RING_CHANNEL_H_
