#include "runtime/comm/nccl/meeting.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/comm/group_text.h"
#include "runtime/comm/nccl/judge.h"
#include "runtime/comm/nccl/run_collective.h"
#include "runtime/comm/nccl/wait.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/stream.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// How long a wait for the store goes on before it looks whether it is still wanted.
constexpr std::chrono::milliseconds kSlice(50);
// The shortest between two questions whether NCCL is through.
constexpr std::chrono::microseconds kPause(50);

class Round {
 public:
  Round(NcclHub& hub, const std::string& name, const std::vector<int>& ranks, int rank)
      : hub_(hub),
        name_(name),
        ranks_(ranks),
        rank_(rank),
        prefix_(hub.NextPrefix(ranks)),
        deadline_(Clock::now() + hub.options().connect_timeout) {}

  NcclMeeting Run() {
    try {
      hub_.store().Set(Key("member", rank_), name_);
      const NcclId id = ReadId();
      NcclMeeting meeting;
      meeting.prefix = prefix_;
      meeting.comm =
          std::make_unique<NcclComm>(hub_.api(), static_cast<int>(ranks_.size()), id, rank_, name_);
      AwaitConnected(*meeting.comm);
      if (ranks_.size() == 2) ConnectMessages(*meeting.comm);
      CleanUp();
      return meeting;
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kDeadlineExceeded) {
        hub_.store().Set(absl::StrCat(prefix_, "broken"),
                         absl::StrCat("world rank ", ranks_[rank_], ": ", error.message()));
      }
      throw;
    }
  }

 private:
  std::string Key(absl::string_view what, int member) const {
    return absl::StrCat(prefix_, what, "/", member);
  }

  [[noreturn]] void ThrowLate() {
    std::vector<int> missing;
    for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer) {
      if (!hub_.store().Check({Key("member", peer)})) missing.push_back(peer);
    }
    Throw(absl::StatusCode::kDeadlineExceeded, "new group '", name_, "': world rank ", ranks_[rank_],
          " waited ", hub_.options().connect_timeout.count(), " ms; ",
          missing.empty() ? "all members have come, but NCCL does not connect them (see NCCL_DEBUG=INFO)"
                          : WorldRanksText(ranks_, missing) + " have not made it");
  }

  // What may have happened while waiting; `lost`: what NCCL says of a peer, if anything. Not each time: the
  // store need not hear of every turn.
  void LookAround(const std::optional<Error>& lost) {
    try {
      hub_.ThrowIfAborted();
    } catch (const Error& error) {
      Throw(error.code(), "new group '", name_, "': ", error.message());
    }
    if (const std::optional<Error> ended = AnnouncedEnd(hub_, prefix_)) throw Error(*ended);
    if (const std::optional<std::string> why = hub_.store().TryGet(absl::StrCat(prefix_, "broken"))) {
      Throw(absl::StatusCode::kAborted, "new group '", name_, "': ", *why);
    }
    if (Clock::now() >= deadline_) {
      if (lost.has_value()) throw Error(*lost);
      ThrowLate();
    }
    if (Clock::now() - asked_ < std::chrono::seconds(1)) return;
    asked_ = Clock::now();
    for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer) {
      if (hub_.store().Check({Key("member", peer)}) || !hub_.HasFinished(ranks_[peer])) continue;
      Throw(absl::StatusCode::kAborted, "new group '", name_, "': world rank ", ranks_[rank_], " waits for ",
            WorldRanksText(ranks_, {peer}), ", whose rank function has returned");
    }
  }

  // Asks `done` until it is true. Looks around for what else may end the wait; `wait` has its pauses.
  void Await(NcclWait& wait, absl::FunctionRef<bool()> done) {
    while (!done()) {
      std::this_thread::sleep_for(wait.NextPause());
      if (Clock::now() - looked_ < kSlice && Clock::now() < deadline_) continue;
      looked_ = Clock::now();
      LookAround(wait.lost());
    }
  }

  // Until NCCL has done what it was last asked for. A member may be through before the others, and end the group: that it is
  // gone is not why.
  void AwaitConnected(const NcclComm& comm) {
    NcclWait wait(comm, /*first=*/kPause, /*longest=*/kSlice);
    Await(wait, [&] { return wait.Done(); });
  }

  // NCCL connects the two ends of a message at the first one between them. Until the other end has come to it, the host
  // waits. The queues of a pipeline are pairs, and their ends come to their messages in any order. So a pair exchanges a
  // byte here, where both ends are.
  void ConnectMessages(NcclComm& comm) {
    auto& cuda = static_cast<CudaAllocator&>(*hub_.allocator());
    const Tensor bytes = Tensor::Empty(hub_.allocator(), DType::kU8, {2});
    cuda.stream().Synchronize();  // what had the memory before may still use it
    const CudaStream stream;
    CudaEvent event;
    const Message sent = {.peer = 1 - rank_, .tensor = bytes.Slice(0, 0, 1)};
    const Message received = {.peer = 1 - rank_, .tensor = bytes.Slice(0, 1, 1)};
    try {
      IssueNcclSendRecv({comm, stream.ref().handle(), rank_, 2}, {&sent, 1}, {&received, 1});
      AwaitConnected(comm);
      event.Record(stream.ref());
      NcclWait wait(comm, /*first=*/kPause, /*longest=*/kPause);
      Await(wait, [&] { return event.Test(); });
    } catch (const Error&) {
      comm.Abort();  // or it might still write to `bytes`
      throw;
    }
  }

  NcclId ReadId() {
    const std::string key = absl::StrCat(prefix_, "id");
    const bool registers = hub_.options().register_memory;
    NcclId id;
    if (rank_ == 0) {
      const NcclResult result = hub_.api()->GetUniqueId(&id);
      if (result != NcclResult::kSuccess) ThrowNccl(*hub_.api(), nullptr, result, "ncclGetUniqueId");
      hub_.store().Set(key, absl::StrCat(absl::string_view(id.bytes.data(), id.bytes.size()),
                                         registers ? "1" : "0", name_));
      return id;
    }
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
      try {
        const std::string said =
            hub_.store().Get(key, std::clamp(left, std::chrono::milliseconds(0), kSlice));
        WEFT_CHECK(said.size() > id.bytes.size(), "not an id");
        std::memcpy(id.bytes.data(), said.data(), id.bytes.size());
        const std::string name = said.substr(id.bytes.size() + 1);
        WEFT_REQUIRE(name == name_, prefix_, ": rank ", ranks_[rank_], " names the group '", name_,
                     "', rank ", ranks_[0], " '", name,
                     "': members must make their groups in the same order");
        const bool first_registers = said[id.bytes.size()] == '1';
        WEFT_REQUIRE(first_registers == registers, prefix_, ": rank ", registers ? ranks_[rank_] : ranks_[0],
                     " registers memory with NCCL, rank ", registers ? ranks_[0] : ranks_[rank_],
                     " does not: WEFT_NCCL_REGISTER must be the same on all ranks");
        return id;
      } catch (const Error& error) {
        if (error.code() != absl::StatusCode::kDeadlineExceeded) throw;
      }
      LookAround(/*lost=*/std::nullopt);
    }
  }

  // The last to come takes away what nobody reads any more.
  void CleanUp() {
    const std::string key = absl::StrCat(prefix_, "done");
    if (hub_.store().Add(key, 1) != static_cast<int64_t>(ranks_.size())) return;
    for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer) {
      hub_.store().Delete(Key("member", peer));
    }
    hub_.store().Delete(absl::StrCat(prefix_, "id"));
    hub_.store().Delete(key);
  }

  NcclHub& hub_;
  const std::string& name_;
  const std::vector<int>& ranks_;
  const int rank_;
  const std::string prefix_;
  const Clock::time_point deadline_;
  Clock::time_point looked_ = Clock::now();
  Clock::time_point asked_ = Clock::now();  // whether members that have not come have ended
};

}  // namespace

NcclMeeting MeetNccl(NcclHub& hub, const std::string& name, const std::vector<int>& ranks, int rank) {
  hub.ThrowIfAborted();
  return Round(hub, name, ranks, rank).Run();
}

}  // namespace weft
