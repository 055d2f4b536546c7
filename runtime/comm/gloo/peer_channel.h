#ifndef WEFT_RUNTIME_COMM_GLOO_PEER_CHANNEL_H_
#define WEFT_RUNTIME_COMM_GLOO_PEER_CHANNEL_H_

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace weft {

// What a pair of members says to each other goes in lanes that do not wait for one another.
enum class GlooLane {
  kCollective,  // headers and data of collectives
  kAnnounce,    // point to point: what a sender has
  kAccept,      // ... and what a receiver expects
  kMessage,     // ... and the bytes
};
inline constexpr int kNumLanes = 4;

// One lane to and from one peer: messages arrive whole and in the order sent, and both ends know their sizes.
// Send and Receive start; memory is given and taken until the message is through.
//
// Threads: one at a time.
// Errors:  PeerLost.
class PeerChannel {
 public:
  virtual ~PeerChannel() = default;

  // Nothing is sent for 0 bytes, and nothing received.
  virtual void Send(const void* data, int64_t num_bytes) = 0;
  virtual void Receive(void* data, int64_t num_bytes) = 0;

  virtual bool sending() const = 0;
  virtual bool receiving() const = 0;

  // How many Receives have been started, and how many of them are through.
  int64_t num_receives() const { return num_receives_; }
  int64_t num_received() const { return num_received_; }

 protected:
  int64_t num_receives_ = 0;
  int64_t num_received_ = 0;
};

// The transport to `peer` (a group rank) has broken: thrown to whoever makes an Error of it.
class PeerLost : public std::exception {
 public:
  PeerLost(int peer, std::string reason) : peer_(peer), reason_(std::move(reason)) {}

  int peer() const { return peer_; }
  const char* what() const noexcept override { return reason_.c_str(); }

 private:
  int peer_;
  std::string reason_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_PEER_CHANNEL_H_
