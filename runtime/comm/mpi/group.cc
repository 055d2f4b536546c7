#include "runtime/comm/mpi/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr std::chrono::seconds kExplaining{1};

}  // namespace

MpiGroup::MpiGroup(std::shared_ptr<MpiTransport> transport, const MpiGroupKey& key, std::string name,
                   std::vector<int> ranks)
    : transport_(std::move(transport)),
      key_(key),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      me_(MemberOf(transport_->rank())),
      peers_(ranks_.size()) {
  for (const int rank : ranks_) {
    if (rank != transport_->rank()) peer_ranks_.push_back(rank);
  }
  MpiPacketWriter packet(MpiPacketKind::kJoin, key_);
  transport_->Send(peer_ranks_, packet.PutBytes(name_));
}

// MPI_Comm_free is called by the members at different times: implementations take it as local.
MpiGroup::~MpiGroup() {
  if (comm_ != MPI_COMM_NULL && !failed() && !transport_->is_closed()) MPI_Comm_free(&comm_);
  if (failed() || transport_->has_ended()) return;
  try {
    transport_->Send(peer_ranks_, MpiPacketWriter(MpiPacketKind::kLeave, key_));
  } catch (const Error&) {
    // Members that wait for this one have a deadline.
  }
}

int MpiGroup::MemberOf(int world_rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), world_rank);
  WEFT_CHECK(found != ranks_.end() && *found == world_rank, "world rank ", world_rank, " is no member of '",
             name_, "'");
  return static_cast<int>(found - ranks_.begin());
}

void MpiGroup::MarkFinished(int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  peers_[MemberOf(rank)].has_finished = true;
  num_absent_.fetch_add(1);
}

void MpiGroup::Receive(int from, MpiPacketReader packet) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[MemberOf(from)];
  switch (packet.kind()) {
    case MpiPacketKind::kJoin: {
      const std::string name(packet.GetBytes());
      if (name == name_) break;
      FailLocked(
          absl::StatusCode::kInvalidArgument,
          absl::StrCat("group ", key_.generation, " of these ranks: rank ", ranks_[me_], " names it '", name_,
                       "', a peer '", name, "': members must make their groups in the same order"));
      break;
    }
    case MpiPacketKind::kEnter:
      peer.postings.push_back(MpiPosting::Read(packet));
      break;
    case MpiPacketKind::kOffer: {
      MpiOffer offer;
      offer.num_bytes = packet.Get<int64_t>();
      offer.has_data = packet.Get<bool>();
      offer.data = std::string(packet.GetBytes());
      peer.offers.push_back(std::move(offer));
      break;
    }
    case MpiPacketKind::kTake:
      peer.tags.push_back(packet.Get<int>());
      break;
    case MpiPacketKind::kEnd: {
      peer.has_ended = true;
      num_absent_.fetch_add(1);
      const auto code = packet.Get<absl::StatusCode>();
      FailLocked(code, std::string(packet.GetBytes()));
      break;
    }
    case MpiPacketKind::kLeave:
      peer.left_at = std::chrono::steady_clock::now();
      num_absent_.fetch_add(1);
      break;
    default:
      WEFT_CHECK(false, "packet of kind ", static_cast<int>(packet.kind()), " about group '", name_, "'");
  }
  num_received_.fetch_add(1);
}

void MpiGroup::SendToAll(const MpiPacketWriter& packet) {
  const std::lock_guard<std::mutex> lock(mutex_);  // FailLocked sends under it: before or after all of this
  ThrowIfFailed();
  transport_->Send(peer_ranks_, packet);
}

void MpiGroup::SendTo(int peer, const MpiPacketWriter& packet) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ThrowIfFailed();
  transport_->Send({ranks_[peer]}, packet);
}

std::vector<int> MpiGroup::MissingPostings() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return MissingPostingsLocked();
}

std::vector<int> MpiGroup::MissingPostingsLocked() const {
  std::vector<int> missing;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != me_ && peers_[peer].postings.empty()) missing.push_back(peer);
  }
  return missing;
}

bool MpiGroup::TakePostings(std::vector<MpiPosting>& all) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!MissingPostingsLocked().empty()) return false;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == me_) continue;
    all[peer] = std::move(peers_[peer].postings.front());
    peers_[peer].postings.pop_front();
  }
  return true;
}

std::optional<MpiOffer> MpiGroup::TakeOffer(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::deque<MpiOffer>& offers = peers_[peer].offers;
  if (offers.empty()) return std::nullopt;
  MpiOffer offer = std::move(offers.front());
  offers.pop_front();
  return offer;
}

std::optional<int> MpiGroup::TakeTag(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::deque<int>& tags = peers_[peer].tags;
  if (tags.empty()) return std::nullopt;
  const int tag = tags.front();
  tags.pop_front();
  return tag;
}

std::vector<int> MpiGroup::Absent() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int> members;
  for (int peer = 0; peer < size(); ++peer) {
    const Peer& it = peers_[peer];
    const bool left = it.left_at.has_value() && std::chrono::steady_clock::now() - *it.left_at > kExplaining;
    if (it.has_ended || it.has_finished || left) members.push_back(peer);
  }
  return members;
}

std::string MpiGroup::AbsenceOf(int peer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (peers_[peer].has_finished) return "whose rank function has returned";
  return peers_[peer].left_at.has_value() ? "which has dropped the group" : "for which the group has ended";
}

std::shared_ptr<char[]> MpiGroup::Staging(int64_t num_bytes) {
  if (num_bytes > staging_bytes_) {
    staging_ = std::shared_ptr<char[]>(new char[num_bytes]);  // not filled with zeros
    staging_bytes_ = num_bytes;
  }
  return staging_;
}

void MpiGroup::Fail(absl::StatusCode code, const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  FailLocked(code, message);
}

void MpiGroup::FailLocked(absl::StatusCode code, const std::string& message) {
  if (!failure_.Set(code, message)) return;
  transport_->leftovers().RecordFailure(message);
  if (transport_->has_ended()) return;
  try {
    MpiPacketWriter packet(MpiPacketKind::kEnd, key_);
    transport_->Send(peer_ranks_, packet.Put(code).PutBytes(message));
  } catch (const Error&) {
    // The first failure stays; peers that do not get to know it have a deadline.
  }
}

}  // namespace weft
