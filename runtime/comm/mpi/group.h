#ifndef WEFT_RUNTIME_COMM_MPI_GROUP_H_
#define WEFT_RUNTIME_COMM_MPI_GROUP_H_

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/collective.h"
#include "runtime/comm/group_failure.h"
#include "runtime/comm/group_text.h"
#include "runtime/comm/mpi/backoff.h"
#include "runtime/comm/mpi/packet.h"
#include "runtime/comm/mpi/posting.h"
#include "runtime/comm/mpi/transport.h"

namespace weft {

// A message that a peer has offered.
struct MpiOffer {
  int64_t num_bytes = 0;
  bool has_data = false;  // the bytes are here
  std::string data;
};

// One rank's side of a group over MPI: what its peers have sent about it, the failure that ends it, and the
// MPI communicator of its members.
//
// Members are group ranks unless a name says world. What a member enters, it enters towards all its peers at
// once, and never after it has told them of its failure: so if all members have entered a collective, they
// all get to know that, and take part in moving its data even if the group fails meanwhile; and if one has
// not, nobody moves any.
//
// Threads: any; the communicator and the staging are for the one that runs the group's operation.
class MpiGroup {
 public:
  // `ranks`: world ranks, ascending, this one among them. Tells the peers.
  MpiGroup(std::shared_ptr<MpiTransport> transport, const MpiGroupKey& key, std::string name,
           std::vector<int> ranks);
  // Tells the peers.
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int member() const { return me_; }
  MpiTransport& transport() const { return *transport_; }
  const MpiGroupKey& key() const { return key_; }

  // From now on waits take no core from threads that compute. Before the first.
  void SetBlocksAtOnce() { blocks_at_once_ = true; }
  // What a wait begins with.
  Backoff::First first_wait() const {
    if (blocks_at_once_) return Backoff::First::kSleeps;
    return transport_->spin() ? Backoff::First::kSpins : Backoff::First::kYields;
  }

  // What `packet`, sent by world rank `from`, says about this group.
  void Receive(int from, MpiPacketReader packet);
  // World rank `rank`'s function has returned.
  void MarkFinished(int rank);

  // Sends `packet` about this group to all peers at once, or to one.
  // Errors: what has ended the group.
  void SendToAll(const MpiPacketWriter& packet);
  void SendTo(int peer, const MpiPacketWriter& packet);
  // The members but this one whose next posting has not come.
  std::vector<int> MissingPostings() const;
  // If there are none, moves each one's to `all` and returns true.
  bool TakePostings(std::vector<MpiPosting>& all);
  // The oldest message that `peer` has offered; the tag of the oldest `take` it has answered with.
  std::optional<MpiOffer> TakeOffer(int peer);
  std::optional<int> TakeTag(int peer);

  // How much has been received about this group: a thread that found nothing new waits for this to move.
  uint64_t num_received() const { return num_received_.load(); }

  // Whether peers have gone away (not 0); those that will not be heard of any more. What these have sent has
  // been received. A peer that has dropped the group counts a second later: if it is unwinding an error, it
  // says so next.
  int num_absent() const { return num_absent_.load(); }
  std::vector<int> Absent() const;
  // "whose rank function has returned".
  std::string AbsenceOf(int peer) const;

  // The MPI communicator of the members; null until GroupComm has made it. Freed with the group.
  MPI_Comm comm() const { return comm_; }
  void set_comm(MPI_Comm comm) { comm_ = comm; }

  // `num_bytes` to stage data in, kept for the next operation. The failed group's belong to what still runs.
  std::shared_ptr<char[]> Staging(int64_t num_bytes);

  // Ends the group, unless it has ended, and tells the peers.
  void Fail(absl::StatusCode code, const std::string& message);
  bool failed() const { return failure_.failed(); }
  void ThrowIfFailed() const { failure_.ThrowIfFailed(); }
  [[noreturn]] void Throw() const { failure_.Throw(); }

  // "group 'dp', collective #3" and "world ranks [1, 3]": for messages.
  std::string Where(CollectiveKind kind, uint64_t sequence) const {
    return OperationText(name_, kind, sequence);
  }
  std::string WorldRanks(const std::vector<int>& members) const { return WorldRanksText(ranks_, members); }

 private:
  struct Peer {
    std::deque<MpiPosting> postings;
    std::deque<MpiOffer> offers;
    std::deque<int> tags;
    bool has_ended = false;
    bool has_finished = false;
    std::optional<std::chrono::steady_clock::time_point> left_at;
  };

  int MemberOf(int world_rank) const;
  std::vector<int> MissingPostingsLocked() const;
  void FailLocked(absl::StatusCode code, const std::string& message);

  const std::shared_ptr<MpiTransport> transport_;
  const MpiGroupKey key_;
  const std::string name_;
  const std::vector<int> ranks_;
  const int me_;
  std::vector<int> peer_ranks_;  // of the world: all but this one
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::shared_ptr<char[]> staging_;
  int64_t staging_bytes_ = 0;
  bool blocks_at_once_ = false;

  mutable std::mutex mutex_;
  std::vector<Peer> peers_;  // by member
  std::atomic<uint64_t> num_received_ = 0;
  std::atomic<int> num_absent_ = 0;
  GroupFailure failure_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_GROUP_H_
