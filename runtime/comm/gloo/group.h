#ifndef WEFT_RUNTIME_COMM_GLOO_GROUP_H_
#define WEFT_RUNTIME_COMM_GLOO_GROUP_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "runtime/comm/collective.h"
#include "runtime/comm/gloo/header.h"
#include "runtime/comm/gloo/hub.h"
#include "runtime/comm/gloo/meeting.h"
#include "runtime/comm/gloo/message_exchange.h"
#include "runtime/comm/gloo/ring_channel.h"
#include "runtime/comm/group_failure.h"
#include "runtime/comm/group_text.h"
#include "runtime/comm/link_turns.h"

namespace weft {

// What one operation waits for, for as long as it runs: the deadline moves on with every byte.
struct GlooWait {
  std::chrono::milliseconds timeout;
  absl::FunctionRef<std::string()> what;          // "group 'dp', collective #3, barrier()"
  absl::FunctionRef<std::vector<int>()> missing;  // the group ranks still awaited; ascending
  std::chrono::steady_clock::time_point progressed = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point looked = progressed;  // after members that have left by TCP
};

// One member's end of a `gloo` group: its channels to every peer, waiting on them, and the failure that ends
// the group.
//
// A peer that waits is told why: a member that fails a group says so on its board in shared memory, leaves
// the reason in the store and then breaks its connections, which reaches whoever is connected to it. A member
// that finds a connection broken looks into the store for the reason before it makes its own.
//
// Threads: the member's, one at a time; Fail, Abort and Depart from any.
class GlooGroup final : public GlooHub::Member {
 public:
  // Meets the other members: see Meet.
  GlooGroup(std::shared_ptr<GlooHub> hub, std::string name, std::vector<int> ranks, int rank);
  ~GlooGroup() override;

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  // The peers by how they are reached; ascending group ranks.
  const std::vector<int>& ring_peers() const { return ring_peers_; }
  const std::vector<int>& tcp_peers() const { return tcp_peers_; }
  // Some pair of the group, not only of this member, goes by TCP: the same answer on every member.
  bool has_tcp() const { return meeting_.mesh != nullptr; }
  const std::string& why_not_shared() const { return meeting_.why_not_shared; }
  // To ask for patience while several messages are started; null: nothing goes by TCP.
  GlooEventThread* event_thread() const { return has_tcp() ? meeting_.mesh->event_thread() : nullptr; }

  bool by_memory(int peer) const { return meeting_.peers[peer] != nullptr; }

  PeerChannel& channel(int peer, GlooLane lane) const { return *posted_->channels[Index(peer, lane)]; }
  RingChannel& ring(int peer, GlooLane lane) const { return static_cast<RingChannel&>(channel(peer, lane)); }
  TcpChannel& tcp(int peer, GlooLane lane) const { return static_cast<TcpChannel&>(channel(peer, lane)); }

  // The headers of the current collective: what this member tells each, and its own; and what peers tell it.
  GlooHeader& header_to(int member) { return posted_->headers_to[member]; }
  GlooHeader& header_from(int peer) { return posted_->headers_from[peer]; }
  // Where blocks that come from TCP `peer` wait to be reduced: of this many bytes, kept for the next ones.
  static constexpr int64_t kStagingBytes = 2 * TcpChannel::kBlock;
  char* staging(int peer);
  // Of the current batch of messages; whoever begins one finds none, and takes them away when nothing is on its way any more.
  std::deque<MessageExchange>& exchanges() { return posted_->exchanges; }
  // What is sent of it: a message that is awaited ahead has one size.
  int64_t HeaderBytes(const GlooHeader& header, int peer) const {
    return by_memory(peer) ? header.num_bytes() : header.max_bytes();
  }
  // Starts to receive the next headers that come by TCP, unless it has.
  // Errors: PeerLost.
  void ExpectHeaders();
  // True once the header of TCP `peer` has come.
  bool HasTcpHeader(int peer) const {
    return channel(peer, GlooLane::kCollective).num_received() >= header_numbers_[peer];
  }
  // The collective is over: starts to receive the next ones, which saves them a way there and back. A peer
  // that has gone meanwhile is no error yet.
  void TakeHeaders();

  // From now on waits for shared memory take no core from threads that compute: they neither spin nor yield. Before the first.
  void SetBlocksAtOnce() { blocks_at_once_ = true; }

  // The lanes that the next waits move, and whose turn they wait for and fill with what goes through the rings; null: nobody's.
  void UseLanes(GlooLane first, GlooLane last, LinkTurns::Turn* turn) {
    first_lane_ = first, last_lane_ = last, turn_ = turn;
  }
  // Around bytes that waits do not move: before them, and once they have been moved.
  void HoldTurn() {
    if (turn_ != nullptr) turn_->Hold();
  }
  void FillTurn(int64_t num_bytes) {
    if (turn_ != nullptr) turn_->Fill(num_bytes);
  }

  // Moves what can be moved through the rings now. True if anything was.
  bool Pump();

  // Moves bytes through the rings until `done`.
  // Errors: DeadlineExceeded after `wait.timeout` without progress, which ends the group; Aborted if a peer
  //         that is awaited has left or ended; what has ended the group. PeerLost.
  void Await(absl::FunctionRef<bool()> done, GlooWait& wait);

  // The same for the sends or the receives to or from one TCP peer.
  void AwaitTcpSends(int peer, GlooLane lane, absl::FunctionRef<bool()> done, GlooWait& wait);
  void AwaitTcpReceives(int peer, GlooLane lane, absl::FunctionRef<bool()> done, GlooWait& wait);

  // Waits until nothing is on its way in the lanes in use: through the rings, and at all.
  void AwaitRings(GlooWait& wait);
  void AwaitIdle(GlooWait& wait);

  // True if something is on its way to or from `peer` in the lanes in use.
  bool IsBusy(int peer) const;

  // Ends the group, unless it has ended.
  void Fail(absl::StatusCode code, const std::string& message);
  void Abort(const std::string& reason) override;
  // Throws what has ended the group, here or on a peer that shares memory.
  void ThrowIfFailed();
  // Throws what has ended it, when no transport touches this member's tensors any more.
  [[noreturn]] void Leave();

  // Makes of a broken connection the group's failure: the reason that a peer has left in the store, or that
  // this peer has closed its connection. Throws it.
  [[noreturn]] void FailLost(const PeerLost& lost, const std::string& where);

  void Depart() override;

  // "group 'dp', collective #3" and "world ranks [1, 3]": for messages.
  std::string Where(CollectiveKind kind, uint64_t sequence) const {
    return OperationText(name_, kind, sequence);
  }
  std::string WorldRanks(const std::vector<int>& members) const { return WorldRanksText(ranks_, members); }

 private:
  int Index(int peer, GlooLane lane) const { return peer * kNumLanes + static_cast<int>(lane); }
  MemberMemory::Board& board_of(int peer) const { return meeting_.peers[peer]->board(); }

  // One turn of waiting blocked. True if `done`.
  bool Sleep(absl::FunctionRef<bool()> done, GlooWait& wait);
  void AwaitTcp(int peer, GlooLane lane, bool sends, absl::FunctionRef<bool()> done, GlooWait& wait);
  // What else may have happened while waiting; each throws.
  void CheckBoards();
  void CheckRingPeers(absl::FunctionRef<bool()> done, GlooWait& wait);
  void CheckTcpPeers(GlooWait& wait);
  void CheckDeadline(GlooWait& wait);
  // Takes what has come through by TCP from or to `peer` without waiting. True if there was anything.
  bool Settle(int peer);
  // A peer is gone: throws the reason if somebody tells it in time.
  void AwaitReason();
  [[noreturn]] void FailGone(int peer, bool has_left, GlooWait& wait);

  const std::shared_ptr<GlooHub> hub_;
  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  Meeting meeting_;
  std::vector<int> ring_peers_;
  std::vector<int> tcp_peers_;
  // Shared with the hub once this member has left. By peer and lane; null for this member.
  struct Posted {
    std::vector<GlooHeader> headers_to;
    std::vector<GlooHeader> headers_from;
    std::vector<std::unique_ptr<char[]>> staging;        // by peer; null until it is used
    std::deque<MessageExchange> exchanges;               // nothing moves
    std::vector<std::unique_ptr<PeerChannel>> channels;  // end before what they receive
  };
  const std::shared_ptr<Posted> posted_;
  std::vector<bool> expects_header_;     // by TCP, since the last collective
  std::vector<int64_t> header_numbers_;  // the ordinal of the receive from that peer
  GlooLane first_lane_ = GlooLane::kCollective;
  GlooLane last_lane_ = GlooLane::kCollective;
  LinkTurns::Turn* turn_ = nullptr;  // of the operation that runs
  int num_spins_ = 0;
  bool blocks_at_once_ = false;
  GroupFailure failure_;
  std::atomic<bool> departed_ = false;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_GROUP_H_
