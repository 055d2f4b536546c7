#include "runtime/comm/gloo/group.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/error_text.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// As the local backend's WaitPoint: spin for a peer on another core, yield so that ranks that outnumber the
// cores take turns, then block; and look around now and then.
constexpr int kSpins = 400;
constexpr std::chrono::milliseconds kYielding(1);
constexpr std::chrono::milliseconds kNap(5);
constexpr std::chrono::milliseconds kLookForLeft(50);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// While it lives, peers that move something for this member wake it.
class Asleep {
 public:
  explicit Asleep(Doorbell& bell) : bell_(bell) { bell_.sleeping.store(1); }
  ~Asleep() { bell_.sleeping.store(0); }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;

 private:
  Doorbell& bell_;
};

}  // namespace

GlooGroup::GlooGroup(std::shared_ptr<GlooHub> hub, std::string name, std::vector<int> ranks, int rank)
    : hub_(std::move(hub)),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      rank_(rank),
      meeting_(Meet(*hub_, name_, ranks_, rank_)),
      posted_(std::make_shared<Posted>()),
      expects_header_(ranks_.size()),
      header_numbers_(ranks_.size()) {
  posted_->headers_to.assign(size(), GlooHeader(size()));
  posted_->headers_from.assign(size(), GlooHeader(size()));
  posted_->staging.resize(size());
  posted_->channels.resize(size() * kNumLanes);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    const bool shared = by_memory(peer);
    (shared ? ring_peers_ : tcp_peers_).push_back(peer);
    for (int i = 0; i < kNumLanes; ++i) {
      const GlooLane lane = static_cast<GlooLane>(i);
      if (shared) {
        posted_->channels[Index(peer, lane)] =
            std::make_unique<RingChannel>(meeting_.own->Writer(peer, lane),
                                          meeting_.peers[peer]->Reader(rank_, lane), &board_of(peer).bell);
      } else {
        posted_->channels[Index(peer, lane)] = std::make_unique<TcpChannel>(meeting_.mesh, peer, lane);
      }
    }
  }
  const int on_host = std::max(hub_->options().ranks_on_host, static_cast<int>(meeting_.hosted.size()));
  num_spins_ = on_host <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpins : 0;
  TakeHeaders();
}

GlooGroup::~GlooGroup() { Depart(); }

void GlooGroup::ExpectHeaders() {
  for (int peer : tcp_peers_) {
    if (expects_header_[peer]) continue;
    GlooHeader& header = posted_->headers_from[peer];
    channel(peer, GlooLane::kCollective).Receive(header.bytes(), header.max_bytes());
    expects_header_[peer] = true;
    header_numbers_[peer] = channel(peer, GlooLane::kCollective).num_receives();
  }
}

// Not zeroed: a page costs memory once it is used.
char* GlooGroup::staging(int peer) {
  std::unique_ptr<char[]>& bytes = posted_->staging[peer];
  if (bytes == nullptr) bytes = std::make_unique_for_overwrite<char[]>(kStagingBytes);
  return bytes.get();
}

void GlooGroup::TakeHeaders() {
  expects_header_.assign(expects_header_.size(), false);
  try {
    ExpectHeaders();
  } catch (const PeerLost&) {  // the next collective will find out
  }
}

bool GlooGroup::Pump() {
  int64_t num_bytes = 0;
  for (int peer : ring_peers_) {
    for (int lane = static_cast<int>(first_lane_); lane <= static_cast<int>(last_lane_); ++lane) {
      num_bytes += ring(peer, static_cast<GlooLane>(lane)).Pump();
    }
  }
  FillTurn(num_bytes);
  return num_bytes > 0;
}

void GlooGroup::Await(absl::FunctionRef<bool()> done, GlooWait& wait) {
  int num_turns = 0;
  Clock::time_point give_up;
  for (;;) {
    if (turn_ != nullptr && turn_->is_full() && !done()) HoldTurn();
    const bool moved = Pump();
    if (done()) {
      if (moved) wait.progressed = Clock::now();
      return;
    }
    if (moved) {
      wait.progressed = Clock::now();
      num_turns = 0;
      continue;
    }
    if (blocks_at_once_) {
      if (Sleep(done, wait)) return;
      continue;
    }
    if (num_turns < num_spins_) {
      ++num_turns;
      Pause();
      continue;
    }
    if (num_turns++ == num_spins_) give_up = Clock::now() + kYielding;
    std::this_thread::yield();
    if (Clock::now() < give_up) continue;
    if (Sleep(done, wait)) return;
    num_turns = 0;
  }
}

bool GlooGroup::Sleep(absl::FunctionRef<bool()> done, GlooWait& wait) {
  // Without shared memory nothing comes by itself: that wait is another.
  WEFT_CHECK(meeting_.own != nullptr, "waits for memory that nobody shares");
  Doorbell& bell = meeting_.own->board().bell;
  const Asleep asleep(bell);
  for (;;) {
    const uint32_t seen = bell.count.load();
    const bool moved = Pump();
    if (moved) wait.progressed = Clock::now();
    if (done()) return true;
    if (moved) return false;
    CheckBoards();
    CheckRingPeers(done, wait);
    CheckTcpPeers(wait);
    CheckDeadline(wait);
    bell.Sleep(seen, std::clamp(wait.timeout, std::chrono::milliseconds(1), kNap));
  }
}

void GlooGroup::AwaitTcpSends(int peer, GlooLane lane, absl::FunctionRef<bool()> done, GlooWait& wait) {
  AwaitTcp(peer, lane, /*sends=*/true, done, wait);
}

void GlooGroup::AwaitTcpReceives(int peer, GlooLane lane, absl::FunctionRef<bool()> done, GlooWait& wait) {
  AwaitTcp(peer, lane, /*sends=*/false, done, wait);
}

void GlooGroup::AwaitTcp(int peer, GlooLane lane, bool sends, absl::FunctionRef<bool()> done,
                         GlooWait& wait) {
  TcpChannel& channel = tcp(peer, lane);
  while (!done()) {
    ThrowIfFailed();
    if (sends ? channel.AwaitSend() : channel.AwaitReceive()) {
      wait.progressed = Clock::now();
      continue;
    }
    if (Pump()) wait.progressed = Clock::now();
    CheckRingPeers(done, wait);
    CheckTcpPeers(wait);
    if (done()) return;
    CheckDeadline(wait);
  }
}

bool GlooGroup::IsBusy(int peer) const {
  for (int lane = static_cast<int>(first_lane_); lane <= static_cast<int>(last_lane_); ++lane) {
    const PeerChannel& lane_channel = channel(peer, static_cast<GlooLane>(lane));
    if (lane_channel.sending() || lane_channel.receiving()) return true;
  }
  return false;
}

void GlooGroup::AwaitRings(GlooWait& wait) {
  if (ring_peers_.empty()) return;
  Await(
      [&] {
        for (int peer : ring_peers_) {
          if (IsBusy(peer)) return false;
        }
        return true;
      },
      wait);
}

void GlooGroup::AwaitIdle(GlooWait& wait) {
  AwaitRings(wait);
  for (int peer : tcp_peers_) {
    for (int i = static_cast<int>(first_lane_); i <= static_cast<int>(last_lane_); ++i) {
      const GlooLane lane = static_cast<GlooLane>(i);
      const TcpChannel& pending = tcp(peer, lane);
      AwaitTcpReceives(
          peer, lane, [&] { return !pending.receiving(); }, wait);
      AwaitTcpSends(
          peer, lane, [&] { return !pending.sending(); }, wait);
    }
  }
}

void GlooGroup::CheckBoards() {
  failure_.ThrowIfFailed();
  for (int peer : ring_peers_) {
    const MemberMemory::Board& board = board_of(peer);
    if (board.state.load() != MemberMemory::kFailed) continue;
    Fail(static_cast<absl::StatusCode>(board.code),
         std::string(board.reason, strnlen(board.reason, MemberMemory::kReasonBytes)));
    failure_.Throw();
  }
}

void GlooGroup::ThrowIfFailed() { CheckBoards(); }

// The rings are moved by this member alone.
void GlooGroup::Leave() {
  if (has_tcp()) meeting_.mesh->Close();
  for (int peer : tcp_peers_) {
    for (int lane = 0; lane < kNumLanes; ++lane) tcp(peer, static_cast<GlooLane>(lane)).Drop();
  }
  posted_->exchanges.clear();
  failure_.Throw();
}

// A peer that is gone may have left all that was awaited of it in the rings: so first gone, then empty.
void GlooGroup::CheckRingPeers(absl::FunctionRef<bool()> done, GlooWait& wait) {
  if (ring_peers_.empty()) return;
  for (int peer : wait.missing()) {
    if (peer == rank_ || !by_memory(peer)) continue;
    const bool has_left = board_of(peer).state.load() == MemberMemory::kDeparted;
    if (!has_left && meeting_.peers[peer]->MakerIsAlive()) continue;
    if (Pump() || done()) return;
    CheckBoards();  // it may have failed, and then died
    FailGone(peer, has_left, wait);
  }
}

bool GlooGroup::Settle(int peer) {
  constexpr int kTries = 3;  // a wait may be released just as it ends
  bool settled = false;
  for (int i = static_cast<int>(first_lane_); i <= static_cast<int>(last_lane_); ++i) {
    TcpChannel& pending = tcp(peer, static_cast<GlooLane>(i));
    for (int failures = 0; failures < kTries && pending.receiving();) {
      pending.AwaitReceive(GlooTicker::Pace::kSoon) ? settled = true : ++failures;
    }
    for (int failures = 0; failures < kTries && pending.sending();) {
      pending.AwaitSend(GlooTicker::Pace::kSoon) ? settled = true : ++failures;
    }
  }
  return settled;
}

void GlooGroup::CheckTcpPeers(GlooWait& wait) {
  if (tcp_peers_.empty() || Clock::now() - wait.looked < kLookForLeft) return;
  for (int peer : wait.missing()) {
    if (peer == rank_ || by_memory(peer)) continue;
    if (meeting_.mesh->HasLeft(peer) && !Settle(peer)) FailGone(peer, /*has_left=*/true, wait);
  }
  wait.looked = Clock::now();
}

void GlooGroup::FailGone(int peer, bool has_left, GlooWait& wait) {
  AwaitReason();
  if (has_left) {
    Fail(absl::StatusCode::kAborted, absl::StrCat(wait.what(), ": world rank ", ranks_[rank_], " waits for ",
                                                  WorldRanks({peer}), ", which have left the group"));
  } else {
    Fail(absl::StatusCode::kAborted,
         absl::StrCat(wait.what(), ": world rank ", ranks_[peer], " is gone: its process has ended"));
  }
  failure_.Throw();
}

void GlooGroup::AwaitReason() {
  const auto give_up = Clock::now() + hub_->options().reason_takes;
  while (!failure_.failed() && Clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CheckBoards();
}

void GlooGroup::CheckDeadline(GlooWait& wait) {
  if (Clock::now() - wait.progressed < wait.timeout) return;
  for (int peer : wait.missing()) {
    if (peer != rank_ && !by_memory(peer)) Settle(peer);
  }
  const std::vector<int> missing = wait.missing();
  if (missing.empty()) return;  // they came just now
  Fail(absl::StatusCode::kDeadlineExceeded,
       TimeoutText(wait.what(), ranks_[rank_], wait.timeout, ranks_, missing));
  failure_.Throw();
}

void GlooGroup::Fail(absl::StatusCode code, const std::string& message) {
  if (!failure_.Set(code, message)) return;
  if (meeting_.own != nullptr) {
    MemberMemory::Board& board = meeting_.own->board();
    board.code = static_cast<int32_t>(code);
    std::strncpy(board.reason, message.c_str(), MemberMemory::kReasonBytes - 1);
    board.state.store(MemberMemory::kFailed);
    board.bell.Ring();
    for (int peer : ring_peers_) board_of(peer).bell.Ring();
  }
  if (meeting_.mesh == nullptr) return;
  try {
    hub_->store().CompareSet(absl::StrCat(meeting_.prefix, "failure"), "", ErrorText(code, message));
  } catch (const std::exception&) {  // then peers learn of the failure and not of its reason
  }
  meeting_.mesh->Close();
}

void GlooGroup::Abort(const std::string& reason) {
  Fail(absl::StatusCode::kAborted, absl::StrCat("group '", name_, "': ", reason));
}

void GlooGroup::FailLost(const PeerLost& lost, const std::string& where) {
  failure_.ThrowIfFailed();
  CheckBoards();
  try {
    const auto said = hub_->store().TryGet(absl::StrCat(meeting_.prefix, "failure"));
    if (const std::optional<Error> error = ErrorFromText(said.value_or(""))) {
      Fail(error->code(), error->message());
      failure_.Throw();
    }
  } catch (const std::exception&) {
    failure_.ThrowIfFailed();  // else the store is gone too
  }
  AwaitReason();
  Fail(absl::StatusCode::kAborted, absl::StrCat(where, ": world rank ", ranks_[lost.peer()],
                                                " has closed its connection (", lost.what(), ")"));
  failure_.Throw();
}

void GlooGroup::Depart() {
  if (departed_.exchange(true)) return;
  if (meeting_.own != nullptr) {
    uint32_t present = MemberMemory::kPresent;
    meeting_.own->board().state.compare_exchange_strong(present, MemberMemory::kDeparted);
    for (int peer : ring_peers_) board_of(peer).bell.Ring();
  }
  if (meeting_.mesh == nullptr || failure_.failed()) return;
  try {
    meeting_.mesh->SayFarewell();
    hub_->Retire(meeting_.mesh, posted_);
  } catch (const std::exception&) {  // a destructor may be what got here; peers see a closed connection
  }
}

}  // namespace weft
