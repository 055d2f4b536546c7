#include "runtime/comm/local/run_send_recv.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace weft {
namespace {

void CopyMessage(const void* from, const Tensor& to) {
  if (to.num_bytes() > 0 && from != to.data()) std::memmove(to.data(), from, to.num_bytes());
}

// A batch in progress.
class Batch {
 public:
  Batch(LocalGroup& group, int member, const SendRecvCall& call)
      : group_(group), me_(member), sequence_(call.sequence), turn_(call.turn) {}

  void Post(absl::Span<const Message> sends) {
    for (const Message& send : sends) {
      if (send.peer != me_) receivers_.push_back(send.peer);
    }
    read_ = std::make_unique<std::atomic<bool>[]>(receivers_.size());
    size_t next = 0;
    for (const Message& send : sends) {
      if (send.peer == me_) continue;
      group_.mailbox(send.peer).Post({me_, send.tensor.data(), send.tensor.num_bytes(), &read_[next++]});
      group_.NotifyAll();
    }
  }

  // Receives what has arrived; keeps the rest in `expected`, whose messages from one sender stay in order.
  void TakeArrived(std::deque<Message>& expected) {
    const LocalGroup::Access access(group_, me_);
    std::vector<bool> is_behind(group_.size());  // of a message that has not come
    for (size_t left = expected.size(); left > 0; --left) {
      const Message receive = expected.front();
      expected.pop_front();
      std::optional<Parcel> parcel;
      if (!is_behind[receive.peer]) parcel = group_.mailbox(me_).Take(receive.peer);
      if (!parcel.has_value()) {
        is_behind[receive.peer] = true;
        expected.push_back(receive);
        continue;
      }
      if (parcel->num_bytes != receive.tensor.num_bytes()) {
        mismatch_ = absl::StrCat("rank ", group_.ranks()[receive.peer], " sent ", parcel->num_bytes,
                                 " bytes to rank ", group_.ranks()[me_], ", which expected ",
                                 receive.tensor.num_bytes(), " bytes (", receive.tensor.TypeString(), ")");
        return;
      }
      if (turn_ != nullptr) turn_->Begin();
      CopyMessage(parcel->data, receive.tensor);
      if (turn_ != nullptr) turn_->End();
      parcel->read->store(true);  // the sender may be gone after this
      group_.NotifyAll();
    }
  }

  void Run(std::deque<Message> expected, std::chrono::milliseconds timeout) {
    Mailbox& mailbox = group_.mailbox(me_);
    for (;;) {
      const uint64_t num_seen = mailbox.num_posted();
      if (!expected.empty()) TakeArrived(expected);
      if (mismatch_.has_value()) {
        group_.Fail(absl::StatusCode::kInvalidArgument, absl::StrCat(Where(), ": ", *mismatch_));
        group_.Leave(me_);
      }
      if (expected.empty() && AllRead()) return;
      // With nothing left to receive, only the peers' reading is awaited.
      const auto ready = [&] { return expected.empty() ? AllRead() : mailbox.num_posted() != num_seen; };
      const auto missing = [&] { return Missing(expected); };
      group_.AwaitReady(
          me_, ready, missing, [this] { return Where(); }, timeout);
    }
  }

 private:
  bool AllRead() const {
    for (size_t i = 0; i < receivers_.size(); ++i) {
      if (!read_[i].load()) return false;
    }
    return true;
  }

  // The senders of what is expected, or else the receivers that have not read; ascending.
  std::vector<int> Missing(const std::deque<Message>& expected) const {
    std::set<int> peers;
    for (const Message& receive : expected) peers.insert(receive.peer);
    for (size_t i = 0; expected.empty() && i < receivers_.size(); ++i) {
      if (!read_[i].load()) peers.insert(receivers_[i]);
    }
    return {peers.begin(), peers.end()};
  }

  std::string Where() const { return group_.Where(CollectiveKind::kSendRecv, sequence_); }

  LocalGroup& group_;
  const int me_;
  const uint64_t sequence_;
  LinkTurns::Turn* const turn_;
  std::vector<int> receivers_;                 // of the sends to others
  std::unique_ptr<std::atomic<bool>[]> read_;  // whether each has copied its message
  std::optional<std::string> mismatch_;
};

}  // namespace

void RunLocalSendRecv(LocalGroup& group, int member, const SendRecvCall& call) {
  Batch batch(group, member, call);
  batch.Post(call.sends);
  // Messages to itself meet in order; the communicator has checked that they pair up.
  std::deque<Message> expected;
  size_t next_own = 0;
  for (const Message& receive : call.receives) {
    if (receive.peer != member) {
      expected.push_back(receive);
      continue;
    }
    while (call.sends[next_own].peer != member) ++next_own;
    CopyMessage(call.sends[next_own++].tensor.data(), receive.tensor);
  }
  batch.Run(std::move(expected), call.timeout);
}

}  // namespace weft
