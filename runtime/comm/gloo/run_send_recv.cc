#include "runtime/comm/gloo/run_send_recv.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

void CopyMessage(const Tensor& from, const Tensor& to) {
  if (to.num_bytes() > 0 && from.data() != to.data()) std::memmove(to.data(), from.data(), to.num_bytes());
}

// A batch in progress.
class Batch {
 public:
  Batch(GlooGroup& group, const SendRecvCall& call)
      : group_(group), sequence_(call.sequence), turn_(call.turn), exchanges_(group.exchanges()) {}

  void Send(const Message& message) {
    MessageExchange& exchange = Begin(message, GlooLane::kAnnounce, GlooLane::kAccept);
    exchange.sends = true;
    group_.channel(message.peer, GlooLane::kMessage).Send(message.tensor.data(), message.tensor.num_bytes());
  }

  void Receive(const Message& message) {
    Begin(message, GlooLane::kAccept, GlooLane::kAnnounce);
    group_.channel(message.peer, GlooLane::kMessage)
        .Receive(message.tensor.data(), message.tensor.num_bytes());
  }

  void Finish(std::chrono::milliseconds timeout) {
    const auto what = [this] { return group_.Where(CollectiveKind::kSendRecv, sequence_); };
    const auto missing = [this] {
      std::vector<int> members;
      for (int peer = 0; peer < group_.size(); ++peer) {
        if (peer != group_.rank() && group_.IsBusy(peer)) members.push_back(peer);
      }
      return members;
    };
    GlooWait wait{timeout, what, missing};
    // By memory, records and bytes come as they like, and a mismatch is told as soon as its record has come:
    // its bytes may never do. By TCP all is under way by itself.
    if (!group_.ring_peers().empty()) group_.Await([this] { return CheckRings(); }, wait);
    for (MessageExchange& exchange : exchanges_) {
      if (group_.by_memory(exchange.peer)) continue;
      const PeerChannel& records = group_.channel(exchange.peer, exchange.lane);
      group_.AwaitTcpReceives(
          exchange.peer, exchange.lane, [&] { return records.num_received() >= exchange.number; }, wait);
      Check(exchange);
    }
    if (turn_ != nullptr) turn_->Begin();
    group_.AwaitIdle(wait);
    exchanges_.clear();
  }

 private:
  MessageExchange& Begin(const Message& message, GlooLane mine, GlooLane theirs) {
    MessageExchange& exchange = exchanges_.emplace_back();
    exchange.peer = message.peer;
    exchange.lane = theirs;
    exchange.mine.num_bytes = message.tensor.num_bytes();
    std::strncpy(exchange.mine.type, message.tensor.TypeString().c_str(), sizeof(exchange.mine.type) - 1);
    PeerChannel& records = group_.channel(message.peer, theirs);
    records.Receive(&exchange.theirs, sizeof(MessageRecord));
    exchange.number = records.num_receives();
    group_.channel(message.peer, mine).Send(&exchange.mine, sizeof(MessageRecord));
    return exchange;
  }

  // True if all that goes by memory is through. Where nothing else does, the batch moves from when all have met.
  bool CheckRings() {
    bool all = true;
    for (; next_unchecked_ < exchanges_.size(); ++next_unchecked_) {
      const MessageExchange& next = exchanges_[next_unchecked_];
      if (!next.checked && group_.by_memory(next.peer)) break;
    }
    for (size_t i = next_unchecked_; i < exchanges_.size(); ++i) {
      MessageExchange& exchange = exchanges_[i];
      if (exchange.checked || !group_.by_memory(exchange.peer)) continue;
      const bool has_come = group_.channel(exchange.peer, exchange.lane).num_received() >= exchange.number;
      if (has_come) Check(exchange);
      all &= has_come;
    }
    if (all && turn_ != nullptr && group_.tcp_peers().empty()) turn_->Begin();
    for (int peer : group_.ring_peers()) all = all && !group_.IsBusy(peer);
    return all;
  }

  void Check(MessageExchange& exchange) {
    exchange.checked = true;
    if (exchange.mine.num_bytes == exchange.theirs.num_bytes) return;
    const int me = group_.ranks()[group_.rank()];
    const int peer = group_.ranks()[exchange.peer];
    const MessageRecord& sent = exchange.sends ? exchange.mine : exchange.theirs;
    const MessageRecord& expected = exchange.sends ? exchange.theirs : exchange.mine;
    const std::string type(expected.type, strnlen(expected.type, sizeof(expected.type)));
    group_.Fail(absl::StatusCode::kInvalidArgument,
                absl::StrCat(group_.Where(CollectiveKind::kSendRecv, sequence_), ": rank ",
                             exchange.sends ? me : peer, " sent ", sent.num_bytes, " bytes to rank ",
                             exchange.sends ? peer : me, ", which expected ", expected.num_bytes, " bytes (",
                             type, ")"));
    group_.Leave();
  }

  GlooGroup& group_;
  const uint64_t sequence_;
  LinkTurns::Turn* const turn_;
  std::deque<MessageExchange>& exchanges_;  // the group's: an error leaves Gloo what it reads and writes
  size_t next_unchecked_ = 0;               // all before it are checked, or go by TCP
};

}  // namespace

void RunGlooSendRecv(GlooGroup& group, const SendRecvCall& call) {
  group.ThrowIfFailed();
  group.UseLanes(GlooLane::kAnnounce, GlooLane::kMessage, /*turn=*/nullptr);
  Batch batch(group, call);
  for (const Message& send : call.sends) {
    if (send.peer != group.rank()) batch.Send(send);
  }
  // Messages to itself meet in order; the communicator has checked that they pair up.
  size_t next_own = 0;
  for (const Message& receive : call.receives) {
    if (receive.peer != group.rank()) {
      batch.Receive(receive);
      continue;
    }
    while (call.sends[next_own].peer != group.rank()) ++next_own;
    CopyMessage(call.sends[next_own++].tensor, receive.tensor);
  }
  batch.Finish(call.timeout);
}

}  // namespace weft
