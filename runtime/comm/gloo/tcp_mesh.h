#ifndef WEFT_RUNTIME_COMM_GLOO_TCP_MESH_H_
#define WEFT_RUNTIME_COMM_GLOO_TCP_MESH_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "runtime/comm/gloo/event_thread.h"
#include "runtime/comm/gloo/peer_channel.h"
#include "runtime/comm/gloo/ticker.h"

namespace weft {

// The TCP connections of one group: a Gloo context, and what tells a member that has left from one that has
// died. Gloo names no slot that a peer has not posted too, so every message carries its lane, number and size
// in the slot: messages that do not match never meet.
//
// Lifetime: shared by the group and, once the member has left, by the hub. Outlived by the ticker and what
//           knows the device's thread.
// Threads: the owner's, but for Close: any.
class TcpMesh {
 public:
  // Meets the other members through `store` and connects to all of them.
  // Errors: Gloo's, or the store's.
  TcpMesh(std::shared_ptr<gloo::transport::Device> device, gloo::rendezvous::Store& store, int rank, int size,
          std::chrono::milliseconds timeout, GlooEventThread* event_thread, GlooTicker* ticker);
  // Closes after what was sent: what a peer has been promised still arrives.
  ~TcpMesh();

  int rank() const { return context_->rank; }
  int size() const { return context_->size; }
  GlooTicker& ticker() { return *ticker_; }
  GlooEventThread* event_thread() { return event_thread_; }

  // Errors: PeerLost from the two that start something.
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
  Buffer StartSend(int peer, const void* data, int64_t num_bytes, uint64_t slot);
  Buffer StartReceive(int peer, void* data, int64_t num_bytes, uint64_t slot);

  // Tells the peers that this member has left.
  void SayFarewell();

  // True if `peer` has said farewell.
  // Errors: PeerLost if its connection is broken.
  bool HasLeft(int peer);

  // Waits until the others have said farewell too, have died, or `deadline` has come: their last messages are
  // read then, so closing resets no connection.
  void AwaitFarewells(std::chrono::steady_clock::time_point deadline);

  // Breaks all connections now. Any thread.
  void Close() noexcept;

 private:
  struct Farewell {
    uint64_t sent = 0;
    uint64_t received = 0;
    bool has_left = false;
    Buffer send;
    Buffer receive;
  };

  std::shared_ptr<gloo::rendezvous::Context> context_;
  GlooEventThread* const event_thread_;
  GlooTicker* const ticker_;
  std::vector<Farewell> farewells_;  // by peer; the addresses are Gloo's
};

// A lane through a TcpMesh. Large messages go in blocks, so that progress can be seen.
class TcpChannel final : public PeerChannel {
 public:
  static constexpr int64_t kBlock = 512 << 10;

  TcpChannel(std::shared_ptr<TcpMesh> mesh, int peer, GlooLane lane)
      : mesh_(std::move(mesh)), peer_(peer), lane_(lane) {}

  void Send(const void* data, int64_t num_bytes) override;
  void Receive(void* data, int64_t num_bytes) override;
  bool sending() const override { return !sends_.empty(); }
  bool receiving() const override { return !receives_.empty(); }

  // Wait for the oldest block that is pending; true if it is through, false if the ticker has ended the wait.
  // Errors: PeerLost.
  bool AwaitSend(GlooTicker::Pace pace = GlooTicker::Pace::kTick);
  bool AwaitReceive(GlooTicker::Pace pace = GlooTicker::Pace::kTick);

  // Takes back the memory of what is pending, for good. The mesh has been closed.
  void Drop() {
    sends_.clear();
    receives_.clear();
  }

 private:
  struct Block {
    TcpMesh::Buffer buffer;
    bool is_last;  // of its message
  };

  uint64_t Slot(uint64_t number, int64_t num_bytes) const;

  const std::shared_ptr<TcpMesh> mesh_;
  const int peer_;
  const GlooLane lane_;
  uint64_t num_sent_blocks_ = 0;
  uint64_t num_received_blocks_ = 0;
  std::deque<Block> sends_;
  std::deque<Block> receives_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_TCP_MESH_H_
