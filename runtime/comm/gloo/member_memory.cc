#include "runtime/comm/gloo/member_memory.h"

#include <algorithm>
#include <new>

namespace weft {
namespace {

constexpr int64_t kBoardBytes = 8192;
static_assert(sizeof(MemberMemory::Board) <= kBoardBytes);

// All that a member sends in at once, and what a ring has of it: enough to keep both ends busy, and not more
// than a core's own cache holds. Records of point-to-point messages are a line each.
constexpr int64_t kMemberBytes = 2 << 20;
constexpr int64_t kMostBytes = 512 << 10;
constexpr int64_t kLeastBytes = 32 << 10;
constexpr int64_t kRecordBytes = 4 << 10;

int64_t Capacity(int num_peers, GlooLane lane) {
  if (lane == GlooLane::kAnnounce || lane == GlooLane::kAccept) return kRecordBytes;
  int64_t bytes = kMostBytes;
  while (bytes > kLeastBytes && bytes * num_peers > kMemberBytes) bytes /= 2;
  return lane == GlooLane::kCollective ? bytes : bytes / 2;
}

// One peer's rings: the ends of all, then the bytes.
constexpr int64_t kEndsBytes = kNumLanes * static_cast<int64_t>(sizeof(RingEnds));

int64_t PeerBytes(int num_peers) {
  int64_t bytes = kEndsBytes;
  for (int lane = 0; lane < kNumLanes; ++lane) bytes += Capacity(num_peers, static_cast<GlooLane>(lane));
  return bytes;
}

int64_t SegmentBytes(const std::vector<int>& hosted) {
  const int num_peers = static_cast<int>(hosted.size()) - 1;
  return kBoardBytes + num_peers * PeerBytes(num_peers);
}

}  // namespace

struct MemberMemory::Place {
  RingEnds* ends;
  char* bytes;
  int64_t capacity;
};

std::unique_ptr<MemberMemory> MemberMemory::Make(absl::string_view folder, const std::vector<int>& hosted,
                                                 int maker) {
  // Zeros are empty rings, a silent bell and a present member.
  return std::unique_ptr<MemberMemory>(
      new MemberMemory(SharedSegment::Make(folder, SegmentBytes(hosted)), hosted, maker));
}

std::unique_ptr<MemberMemory> MemberMemory::Open(const std::string& address, absl::string_view folder,
                                                 const std::vector<int>& hosted, int maker) {
  return std::unique_ptr<MemberMemory>(
      new MemberMemory(SharedSegment::Open(address, folder, SegmentBytes(hosted)), hosted, maker));
}

MemberMemory::Place MemberMemory::PlaceOf(int peer, GlooLane lane) const {
  const int num_peers = static_cast<int>(hosted_.size()) - 1;
  int index = static_cast<int>(std::lower_bound(hosted_.begin(), hosted_.end(), peer) - hosted_.begin());
  if (peer > maker_) --index;  // the maker has no ring to itself
  char* const first = segment_->data() + kBoardBytes + index * PeerBytes(num_peers);
  char* bytes = first + kEndsBytes;
  for (int before = 0; before < static_cast<int>(lane); ++before) {
    bytes += Capacity(num_peers, static_cast<GlooLane>(before));
  }
  return {reinterpret_cast<RingEnds*>(first) + static_cast<int>(lane), bytes, Capacity(num_peers, lane)};
}

RingWriter MemberMemory::Writer(int peer, GlooLane lane) const {
  const Place place = PlaceOf(peer, lane);
  return RingWriter(place.ends, place.bytes, place.capacity);
}

RingReader MemberMemory::Reader(int peer, GlooLane lane) const {
  const Place place = PlaceOf(peer, lane);
  return RingReader(place.ends, place.bytes, place.capacity);
}

}  // namespace weft
