#include "runtime/comm/mpi/run_send_recv.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/comm/mpi/check.h"
#include "runtime/comm/mpi/pending.h"
#include "runtime/comm/mpi/posting.h"
#include "runtime/comm/mpi/wait.h"

namespace weft {
namespace {

void CopyMessage(const void* from, const Tensor& to) {
  if (to.num_bytes() > 0 && from != to.data()) std::memmove(to.data(), from, to.num_bytes());
}

// A batch in progress. Its data are in batch 0 of what is pending.
class Batch {
 public:
  Batch(MpiGroup& group, const SendRecvCall& call)
      : group_(group),
        sequence_(call.sequence),
        turn_(call.turn),
        pending_(group.transport().leftovers(), what_) {}

  void Offer(absl::Span<const Message> sends) {
    for (const Message& send : sends) {
      if (send.peer == group_.member()) continue;
      const int64_t num_bytes = send.tensor.num_bytes();
      const bool has_data = num_bytes <= kMpiCopiedBytes;
      MpiPacketWriter packet(MpiPacketKind::kOffer, group_.key());
      packet.Put(num_bytes).Put(has_data);
      packet.PutBytes(
          {static_cast<const char*>(send.tensor.data()), has_data ? static_cast<size_t>(num_bytes) : 0});
      group_.SendTo(send.peer, packet);
      offered_.push_back(send);
    }
  }

  void Run(std::deque<Message> expected, std::chrono::milliseconds timeout) {
    expected_ = std::move(expected);
    const auto missing = [this] { return Missing(); };
    MpiWait wait(group_, timeout);
    uint64_t num_received = 0;
    for (;;) {
      if (const uint64_t now = group_.num_received(); now != num_received) {
        num_received = now;
        TakeOffers();
        SendTaken();
      }
      const bool moved = pending_.Done();
      const bool have_met = expected_.empty() && offered_.empty();
      if (moved && have_met) return;
      if (have_met && turn_ != nullptr) turn_->Begin();
      // Data under way are given time to arrive even if the group fails.
      wait.Turn({.what = what_,
                 .missing = missing,
                 .moving = have_met,
                 .patience = moved ? std::chrono::milliseconds(0) : kMpiMoving});
    }
  }

 private:
  // Receives what has been offered, or posts the receive; keeps the rest in `expected_`, whose messages from
  // one sender stay in order.
  void TakeOffers() {
    std::vector<bool> is_behind(group_.size());  // of a message that has not come
    for (size_t left = expected_.size(); left > 0; --left) {
      const Message receive = expected_.front();
      expected_.pop_front();
      std::optional<MpiOffer> offer;
      if (!is_behind[receive.peer]) offer = group_.TakeOffer(receive.peer);
      if (offer.has_value()) {
        Take(*offer, receive);
      } else {
        is_behind[receive.peer] = true;
        expected_.push_back(receive);
      }
    }
  }

  void Take(const MpiOffer& offer, const Message& receive) {
    if (offer.num_bytes != receive.tensor.num_bytes()) {
      group_.Fail(absl::StatusCode::kInvalidArgument,
                  absl::StrCat(what_(), ": rank ", group_.ranks()[receive.peer], " sent ", offer.num_bytes,
                               " bytes to rank ", group_.ranks()[group_.member()], ", which expected ",
                               receive.tensor.num_bytes(), " bytes (", receive.tensor.TypeString(), ")"));
      group_.Throw();
    }
    int tag = 0;
    if (offer.has_data) {
      CopyMessage(offer.data.data(), receive.tensor);
    } else {
      tag = group_.transport().NewTag();
      moving_.insert(receive.peer);
      pending_.Hold(receive.tensor);
      ForEachPart(receive, [&](char* data, int count, MPI_Datatype type, int rank) {
        CheckMpi(MPI_Irecv(data, count, type, rank, tag, group_.transport().messages(),
                           pending_.batch(0).NewReceive()),
                 "MPI_Irecv");
      });
    }
    MpiPacketWriter packet(MpiPacketKind::kTake, group_.key());
    group_.SendTo(receive.peer, packet.Put(tag));
  }

  // The data of what the receivers have taken.
  void SendTaken() {
    std::vector<bool> is_behind(group_.size());
    std::erase_if(offered_, [&](const Message& send) {
      if (is_behind[send.peer]) return false;
      const std::optional<int> tag = group_.TakeTag(send.peer);
      if (!tag.has_value()) {
        is_behind[send.peer] = true;
        return false;
      }
      if (send.tensor.num_bytes() <= kMpiCopiedBytes) return true;
      moving_.insert(send.peer);
      pending_.Hold(send.tensor);
      ForEachPart(send, [&](char* data, int count, MPI_Datatype type, int rank) {
        CheckMpi(MPI_Isend(data, count, type, rank, *tag, group_.transport().messages(),
                           pending_.batch(0).NewRequest()),
                 "MPI_Isend");
      });
      return true;
    });
  }

  // Calls `start` for each part of the message that MPI's ints can count: bytes, since the ends need not
  // agree on a dtype.
  template <class Start>
  void ForEachPart(const Message& message, const Start& start) const {
    const int64_t most = group_.transport().options().max_count;
    for (int64_t begin = 0; begin < message.tensor.num_bytes(); begin += most) {
      const int count = static_cast<int>(std::min(most, message.tensor.num_bytes() - begin));
      start(static_cast<char*>(message.tensor.data()) + begin, count, MPI_BYTE, group_.ranks()[message.peer]);
    }
  }

  // The senders of what is expected, or else the receivers that have not taken, or else whoever has data
  // under way; ascending.
  std::vector<int> Missing() const {
    std::set<int> peers;
    for (const Message& receive : expected_) peers.insert(receive.peer);
    if (peers.empty()) {
      for (const Message& send : offered_) peers.insert(send.peer);
    }
    return peers.empty() ? std::vector<int>(moving_.begin(), moving_.end())
                         : std::vector<int>(peers.begin(), peers.end());
  }

  MpiGroup& group_;
  const uint64_t sequence_;
  LinkTurns::Turn* const turn_;
  const std::function<std::string()> what_ = [this] {
    return group_.Where(CollectiveKind::kSendRecv, sequence_);
  };
  MpiPending pending_;
  std::deque<Message> expected_;
  std::vector<Message> offered_;  // and not taken
  std::set<int> moving_;          // the other ends of large messages that have been taken
};

}  // namespace

void RunMpiSendRecv(MpiGroup& group, const SendRecvCall& call) {
  Batch batch(group, call);
  batch.Offer(call.sends);
  // Messages to itself meet in order; the communicator has checked that they pair up.
  std::deque<Message> expected;
  size_t next_own = 0;
  for (const Message& receive : call.receives) {
    if (receive.peer != group.member()) {
      expected.push_back(receive);
      continue;
    }
    while (call.sends[next_own].peer != group.member()) ++next_own;
    CopyMessage(call.sends[next_own++].tensor.data(), receive.tensor);
  }
  batch.Run(std::move(expected), call.timeout);
}

}  // namespace weft
