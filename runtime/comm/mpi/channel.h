#ifndef WEFT_RUNTIME_COMM_MPI_CHANNEL_H_
#define WEFT_RUNTIME_COMM_MPI_CHANNEL_H_

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/comm/mpi/leftovers.h"

namespace weft {

// Packets among the processes of one MPI communicator. Each is sent in frames of at most 1 KiB, which MPI
// delivers eagerly: so sending never waits for the receiver, whatever the receiver does, and a frame that has
// begun to arrive is there.
//
// Lifetime: `comm` is the caller's, outlives it and carries nothing else under tag 0. Frames that are still
//           being sent when it dies stay in `leftovers`.
// Threads: Send: any. Poll: one at a time.
class MpiChannel {
 public:
  MpiChannel(MPI_Comm comm, std::shared_ptr<MpiLeftovers> leftovers);
  ~MpiChannel();
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  // Sends `packet` to each of `ranks`. Packets of two threads arrive one after the other.
  void Send(absl::Span<const int> ranks, absl::string_view packet);

  // Calls `deliver` with the sender and the bytes of each packet that has arrived, those of one sender in the
  // order sent. `deliver` may Send.
  void Poll(absl::FunctionRef<void(int from, absl::string_view packet)> deliver);

 private:
  static constexpr int kFrameBytes = 1024;
  struct Frame {
    bool more = false;  // the packet goes on in the sender's next frame
    char bytes[kFrameBytes - 1];
  };
  static_assert(sizeof(Frame) == kFrameBytes);
  struct Sending {
    MPI_Request request = MPI_REQUEST_NULL;
    Frame frame;

    bool Done();
  };
  struct Unsent;  // a leftover

  void SendFrame(int to, absl::string_view bytes, bool more);
  void ReapSent();

  const MPI_Comm comm_;
  const std::shared_ptr<MpiLeftovers> leftovers_;
  std::mutex send_mutex_;
  std::list<Sending> sending_;            // not yet out of their frames
  std::list<Sending> free_;               // frames for reuse: one as a rule
  std::atomic<bool> is_sending_ = false;  // sending_ is not empty
  Frame received_;
  MPI_Request receive_ = MPI_REQUEST_NULL;  // into received_, persistent
  std::map<int, std::string> begun_;        // the frames so far of packets that go on, by sender
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_CHANNEL_H_
