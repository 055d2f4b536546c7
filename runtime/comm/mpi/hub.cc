#include "runtime/comm/mpi/hub.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// FNV-1a: the same in every process.
uint64_t HashOf(const std::vector<int>& ranks) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int rank : ranks) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<uint32_t>(rank) >> shift & 0xff)) * 0x100000001b3u;
    }
  }
  return hash;
}

}  // namespace

MpiHub::MpiHub(std::shared_ptr<MpiTransport> transport)
    : transport_(std::move(transport)), finished_(transport_->size()) {
  finished_[transport_->rank()] = true;  // it waits for its peers alone
  transport_->set_handler([this](int from, MpiPacketReader packet) { Handle(from, packet); });
}

std::shared_ptr<MpiGroup> MpiHub::Join(const std::string& name, const std::vector<int>& ranks) {
  std::shared_ptr<MpiGroup> group;  // before the lock: its end takes it, if an error comes in between
  const std::lock_guard<std::mutex> lock(mutex_);
  if (abort_reason_.has_value()) {
    Throw(absl::StatusCode::kAborted, "new group '", name, "': ", *abort_reason_);
  }
  const uint64_t hash = HashOf(ranks);
  const MpiGroupKey key{hash, num_made_[hash]};
  auto made = std::make_unique<MpiGroup>(transport_, key, name, ranks);
  ++num_made_[hash];
  group = {made.release(), [hub = shared_from_this(), key](MpiGroup* dead) {
             hub->Forget(key);
             delete dead;
           }};
  groups_[key] = group.get();
  if (const auto parked = parked_.find(key); parked != parked_.end()) {
    for (const Parked& old : parked->second) group->Receive(old.from, MpiPacketReader(old.packet));
    parked_.erase(parked);
  }
  for (const int rank : ranks) {
    if (rank != transport_->rank() && finished_[rank]) group->MarkFinished(rank);
  }
  return group;
}

void MpiHub::Forget(const MpiGroupKey& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  groups_.erase(key);
}

void MpiHub::Handle(int from, MpiPacketReader packet) {
  const std::lock_guard<std::mutex> lock(mutex_);
  switch (packet.kind()) {
    case MpiPacketKind::kAbort:
      return AbortLocked(std::string(packet.GetBytes()));
    case MpiPacketKind::kFinish:
      return HandleFinish(from);
    default:
      break;
  }
  const MpiGroupKey& key = packet.key();
  if (const auto group = groups_.find(key); group != groups_.end()) {
    group->second->Receive(from, packet);
  } else if (key.generation >= num_made_[key.ranks]) {
    parked_[key].push_back({from, std::string(packet.bytes())});
  }
  // Else it is about a group that this rank has dropped.
}

void MpiHub::HandleFinish(int from) {
  finished_[from] = true;
  for (const auto& [key, group] : groups_) {
    if (std::binary_search(group->ranks().begin(), group->ranks().end(), from)) group->MarkFinished(from);
  }
  if (std::find(finished_.begin(), finished_.end(), false) == finished_.end()) transport_->set_quiet();
}

void MpiHub::AbortLocked(const std::string& reason) {
  if (abort_reason_.has_value()) return;
  abort_reason_ = reason;
  for (const auto& [key, group] : groups_) {
    group->Fail(absl::StatusCode::kAborted, absl::StrCat("group '", group->name(), "': ", reason));
  }
}

void MpiHub::AbortAll(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (abort_reason_.has_value() || transport_->has_ended()) return;
  std::vector<int> others(transport_->size());
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + transport_->rank());
  MpiPacketWriter packet(MpiPacketKind::kAbort);
  transport_->Send(others, packet.PutBytes(reason));
  transport_->leftovers().RecordFailure(reason);
  AbortLocked(reason);
}

void MpiHub::FinishRank() { transport_->SendLast(MpiPacketWriter(MpiPacketKind::kFinish)); }

bool MpiHub::AwaitPeers(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    transport_->Poll();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (std::find(finished_.begin(), finished_.end(), false) == finished_.end()) {
        transport_->set_quiet();  // of a job of one
        return true;
      }
    }
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace weft
