#ifndef WEFT_RUNTIME_COMM_MPI_TRANSPORT_H_
#define WEFT_RUNTIME_COMM_MPI_TRANSPORT_H_

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/types/span.h"
#include "runtime/base/dtype.h"
#include "runtime/comm/mpi/channel.h"
#include "runtime/comm/mpi/leftovers.h"
#include "runtime/comm/mpi/packet.h"

namespace weft {

// The same on every rank.
struct MpiOptions {
  // Large reductions go in blocks of so many bytes of the tensor, two of them staged at once.
  int64_t block_bytes = int64_t{4} << 20;
  // The most elements that one call of MPI is given: it counts and offsets in ints.
  int64_t max_count = std::numeric_limits<int>::max();
};

// What a rank's groups have in common of MPI: the channel for packets, a communicator for messages, one to
// make communicators from, element types.
//
// Lifetime: shared by the hub and its groups. The MpiEnvironment closes it; what then is left can only be let go of.
// Threads:  any.
class MpiTransport {
 public:
  using Handler = std::function<void(int from, MpiPacketReader packet)>;

  // Takes over `parent`, whose ranks are those of the job. Collective over it.
  // `spin`: false if the ranks here may outnumber the cores.
  MpiTransport(MPI_Comm parent, bool spin, const MpiOptions& options,
               std::shared_ptr<MpiLeftovers> leftovers);
  ~MpiTransport();
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool spin() const { return spin_; }
  const MpiOptions& options() const { return options_; }
  MpiLeftovers& leftovers() const { return *leftovers_; }
  MPI_Comm parent() const { return parent_; }
  MPI_Comm messages() const { return messages_; }
  MPI_Datatype type(DType dtype) const { return types_[ItemSize(dtype)]; }

  // A tag of messages() that no other message to this rank uses.
  int NewTag() { return static_cast<int>(num_tags_.fetch_add(1) % kNumTags); }

  // Called for each packet that has arrived, within Poll. Set once, before the first Poll.
  void set_handler(Handler handler) { handler_ = std::move(handler); }

  // Handles what has arrived, and answers questions, unless another thread is just doing that.
  void Poll();

  // Errors: FailedPrecondition after SendLast.
  void Send(absl::Span<const int> ranks, const MpiPacketWriter& packet);
  // To everyone else; nothing is sent afterwards.
  void SendLast(const MpiPacketWriter& packet);
  bool has_ended() const { return has_ended_.load(); }

  // Those of `ranks` that do not answer within `patience`: no thread of theirs polls. Polls meanwhile.
  std::vector<int> Silent(absl::Span<const int> ranks, std::chrono::milliseconds patience);

  // Gives back to MPI all that this holds of it, and calls it no more. No operation is under way.
  void Close();
  bool is_closed() const { return channel_ == nullptr; }

  // Every peer has sent its last: nothing is on its way any more, so MPI may forget the communicators.
  void set_quiet() { quiet_.store(true); }

 private:
  void Handle(int from, MpiPacketReader packet);

  // MPI has tags 0 to 32767 at least.
  static constexpr uint64_t kNumTags = 32767;

  const MPI_Comm parent_;
  const bool spin_;
  const MpiOptions options_;
  const std::shared_ptr<MpiLeftovers> leftovers_;
  int rank_ = 0;
  int size_ = 0;
  MPI_Comm packets_ = MPI_COMM_NULL;
  MPI_Comm messages_ = MPI_COMM_NULL;
  MPI_Datatype types_[9];  // by item size
  std::unique_ptr<MpiChannel> channel_;
  std::atomic<uint64_t> num_tags_ = 0;
  std::mutex poll_mutex_;
  Handler handler_;
  std::atomic<uint64_t> num_questions_ = 0;
  std::unique_ptr<std::atomic<uint64_t>[]> answers_;  // by rank: the last question answered
  std::atomic<bool> has_ended_ = false;
  std::atomic<bool> quiet_ = false;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_TRANSPORT_H_
