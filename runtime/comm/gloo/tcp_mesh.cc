#include "runtime/comm/gloo/tcp_mesh.h"

#include <algorithm>

namespace weft {
namespace {

constexpr uint64_t kFarewellSlot = ~uint64_t{0};

// Gloo throws several kinds of exception, and what they say is for those who know Gloo.
template <class Function>
auto OrPeerLost(int peer, const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    throw PeerLost(peer, error.what());
  }
}

}  // namespace

TcpMesh::TcpMesh(std::shared_ptr<gloo::transport::Device> device, gloo::rendezvous::Store& store, int rank,
                 int size, std::chrono::milliseconds timeout, GlooEventThread* event_thread,
                 GlooTicker* ticker)
    : context_(std::make_shared<gloo::rendezvous::Context>(rank, size)),
      event_thread_(event_thread),
      ticker_(ticker),
      farewells_(size) {
  // Gloo waits five times as long for a connection.
  context_->setTimeout(std::max(std::chrono::milliseconds(1000), timeout / 5));
  context_->connectFullMesh(store, device);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    Farewell& farewell = farewells_[peer];
    farewell.receive = StartReceive(peer, &farewell.received, sizeof(farewell.received), kFarewellSlot);
  }
}

// The buffers first: they are posted in the context.
TcpMesh::~TcpMesh() { farewells_.clear(); }

TcpMesh::Buffer TcpMesh::StartSend(int peer, const void* data, int64_t num_bytes, uint64_t slot) {
  return OrPeerLost(peer, [&] {
    Buffer buffer = context_->createUnboundBuffer(const_cast<void*>(data), num_bytes);
    const GlooEventThread::Patience while_locked(event_thread_);
    buffer->send(peer, slot);
    return buffer;
  });
}

TcpMesh::Buffer TcpMesh::StartReceive(int peer, void* data, int64_t num_bytes, uint64_t slot) {
  return OrPeerLost(peer, [&] {
    Buffer buffer = context_->createUnboundBuffer(data, num_bytes);
    const GlooEventThread::Patience while_locked(event_thread_);
    buffer->recv(peer, slot);
    return buffer;
  });
}

void TcpMesh::SayFarewell() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Farewell& farewell = farewells_[peer];
    try {
      farewell.send = StartSend(peer, &farewell.sent, sizeof(farewell.sent), kFarewellSlot);
    } catch (const PeerLost&) {  // then it need not be told
    }
  }
}

// Its own receive, which is always posted: Gloo tells of a broken connection only those operations that have
// not begun, so of a message half through it would never tell.
bool TcpMesh::HasLeft(int peer) {
  Farewell& farewell = farewells_[peer];
  if (!farewell.has_left) {
    farewell.has_left =
        OrPeerLost(peer, [&] { return ticker_->AwaitReceive(*farewell.receive, GlooTicker::Pace::kSoon); });
  }
  return farewell.has_left;
}

void TcpMesh::AwaitFarewells(std::chrono::steady_clock::time_point deadline) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Farewell& farewell = farewells_[peer];
    try {
      while (farewell.send != nullptr && !ticker_->AwaitSend(*farewell.send)) {
        if (std::chrono::steady_clock::now() > deadline) break;
      }
      while (!farewell.has_left && std::chrono::steady_clock::now() <= deadline) {
        farewell.has_left = ticker_->AwaitReceive(*farewell.receive);
      }
    } catch (const std::exception&) {  // it is gone
    }
  }
}

void TcpMesh::Close() noexcept {
  try {
    context_->closeConnections();
  } catch (const std::exception&) {  // closed already
  }
}

uint64_t TcpChannel::Slot(uint64_t number, int64_t num_bytes) const {
  return static_cast<uint64_t>(lane_) << 60 | (number & 0x7ffffffff) << 24 | static_cast<uint64_t>(num_bytes);
}
static_assert(TcpChannel::kBlock < 1 << 24 && kNumLanes <= 8, "they have their places in the slot");

void TcpChannel::Send(const void* data, int64_t num_bytes) {
  for (int64_t begin = 0; begin < num_bytes; begin += kBlock) {
    const int64_t length = std::min(kBlock, num_bytes - begin);
    sends_.push_back({mesh_->StartSend(peer_, static_cast<const char*>(data) + begin, length,
                                       Slot(num_sent_blocks_++, length)),
                      begin + length == num_bytes});
  }
}

void TcpChannel::Receive(void* data, int64_t num_bytes) {
  if (num_bytes == 0) return;
  ++num_receives_;
  for (int64_t begin = 0; begin < num_bytes; begin += kBlock) {
    const int64_t length = std::min(kBlock, num_bytes - begin);
    receives_.push_back({mesh_->StartReceive(peer_, static_cast<char*>(data) + begin, length,
                                             Slot(num_received_blocks_++, length)),
                         begin + length == num_bytes});
  }
}

bool TcpChannel::AwaitSend(GlooTicker::Pace pace) {
  if (!OrPeerLost(peer_, [&] { return mesh_->ticker().AwaitSend(*sends_.front().buffer, pace); }))
    return false;
  sends_.pop_front();
  return true;
}

bool TcpChannel::AwaitReceive(GlooTicker::Pace pace) {
  if (!OrPeerLost(peer_, [&] { return mesh_->ticker().AwaitReceive(*receives_.front().buffer, pace); })) {
    return false;
  }
  num_received_ += receives_.front().is_last ? 1 : 0;
  receives_.pop_front();
  return true;
}

}  // namespace weft
