#include "runtime/comm/flight_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/comm/group_text.h"

namespace weft {
namespace {

// Closed groups whose entries may still be in the ring.
constexpr int kClosedGroupsKept = 64;

uint64_t PackWhat(const FlightEntry& entry) {
  return static_cast<uint64_t>(entry.kind) | static_cast<uint64_t>(entry.dtype) << 8 |
         static_cast<uint64_t>(entry.op) << 16 | static_cast<uint64_t>(entry.async) << 24 |
         static_cast<uint64_t>(entry.in_stream) << 25 |
         static_cast<uint64_t>(static_cast<uint32_t>(entry.root)) << 32;
}

uint64_t PackTwo(uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; }

}  // namespace

std::string FlightEntry::Call() const {
  if (kind == CollectiveKind::kBarrier) return "barrier()";
  if (kind == CollectiveKind::kSendRecv) return absl::StrCat("send_recv(", count, " bytes)");
  std::string text = absl::StrCat(CollectiveName(kind), "(", DTypeName(dtype));
  if (HasReduction(kind)) absl::StrAppend(&text, ", ", ReduceOpName(op));
  if (HasRoot(kind)) absl::StrAppend(&text, ", root ", root);
  absl::StrAppend(&text, ", count ", count, ")");
  return text;
}

absl::string_view FlightStateName(FlightEntry::State state) {
  switch (state) {
    case FlightEntry::State::kQueued:
      return "queued";
    case FlightEntry::State::kRunning:
      return "running";
    case FlightEntry::State::kDone:
      return "done";
    case FlightEntry::State::kFailed:
      break;
  }
  return "failed";
}

std::string FlightGroup::Key() const {
  // Of thousands of ranks, whose statuses and records name their groups often, a list would be 20 KB.
  constexpr size_t kListed = 16;
  return absl::StrCat(name, "[", ranks.size() <= kListed ? absl::StrJoin(ranks, ",") : RankSetText(ranks),
                      "]#", ordinal);
}

struct FlightRecorder::OpenedGroup {
  FlightGroup group;
  std::atomic<uint64_t> num_collectives = 0;
};

FlightRecorder::FlightRecorder(int capacity)
    : mask_(static_cast<uint64_t>(capacity) - 1), slots_(std::make_unique<Slot[]>(capacity)) {
  WEFT_CHECK(capacity > 0 && (capacity & (capacity - 1)) == 0, "capacity ", capacity,
             " is not a power of two");
}

FlightRecorder::~FlightRecorder() = default;

FlightRecorder::OpenedGroup* FlightRecorder::OpenGroup(const std::string& name,
                                                       const std::vector<int>& ranks) {
  auto opened = std::make_unique<OpenedGroup>();
  const std::lock_guard<std::mutex> lock(mutex_);
  opened->group.id = next_group_++;
  opened->group.name = name;
  opened->group.ranks = ranks;
  opened->group.ordinal = num_opened_[ranks]++;
  OpenedGroup* const group = opened.get();
  groups_[group->group.id] = std::move(opened);
  return group;
}

void FlightRecorder::CloseGroup(OpenedGroup* group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  group->group.closed = true;
  closed_.push_back(group->group.id);
  if (static_cast<int>(closed_.size()) <= kClosedGroupsKept) return;
  groups_.erase(closed_.front());
  closed_.pop_front();
}

uint64_t FlightRecorder::Issue(OpenedGroup* group, const FlightEntry& entry) {
  const uint64_t id = num_issued_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = slots_[id & mask_];
  // A reader that meets a changed word also meets the 0, or the id after it.
  slot.id.store(0, std::memory_order_release);
  slot.what.store(PackWhat(entry), std::memory_order_release);
  slot.where.store(PackTwo(static_cast<uint32_t>(group->group.id), static_cast<uint32_t>(entry.tag.path_id)),
                   std::memory_order_release);
  slot.purpose.store(entry.tag.purpose | entry.queue << 8, std::memory_order_release);
  slot.sequence.store(entry.sequence, std::memory_order_release);
  slot.count.store(entry.count, std::memory_order_release);
  slot.issued.store(entry.issued_ns, std::memory_order_release);
  slot.begun.store(entry.async || entry.in_stream ? 0 : entry.issued_ns, std::memory_order_release);
  slot.ended.store(0, std::memory_order_release);
  slot.id.store(id, std::memory_order_release);
  if (entry.kind != CollectiveKind::kSendRecv) {
    group->num_collectives.store(entry.sequence, std::memory_order_release);
    if (issue_log_ != nullptr) LogIssue(group->group, entry);
  }
  return id;
}

// Names, not numbers: ranks number paths as they come to them.
void FlightRecorder::LogIssue(const FlightGroup& group, const FlightEntry& entry) {
  const std::string tag = TagText(entry.tag);
  std::string call = absl::StrCat(entry.Call(), " on axis ", group.name);
  if (!tag.empty()) absl::StrAppend(&call, " (", tag, ")");
  issue_log_->Add({group.Key(), group.ranks, std::move(call)});
}

bool FlightRecorder::Read(const Slot& slot, FlightEntry* entry) {
  entry->id = slot.id.load(std::memory_order_acquire);
  if (entry->id == 0) return false;
  const uint64_t what = slot.what.load(std::memory_order_acquire);
  const uint64_t where = slot.where.load(std::memory_order_acquire);
  const uint64_t purpose = slot.purpose.load(std::memory_order_acquire);
  entry->tag.purpose = static_cast<uint8_t>(purpose & 0xff);
  entry->queue = purpose >> 8;
  entry->sequence = slot.sequence.load(std::memory_order_acquire);
  entry->count = slot.count.load(std::memory_order_acquire);
  entry->issued_ns = slot.issued.load(std::memory_order_acquire);
  entry->begun_ns = slot.begun.load(std::memory_order_acquire);
  const int64_t ended = slot.ended.load(std::memory_order_acquire);
  if (slot.id.load(std::memory_order_acquire) != entry->id) return false;
  entry->kind = static_cast<CollectiveKind>(what & 0xff);
  entry->dtype = static_cast<DType>(what >> 8 & 0xff);
  entry->op = static_cast<ReduceOp>(what >> 16 & 0xff);
  entry->async = (what >> 24 & 1) != 0;
  entry->in_stream = (what >> 25 & 1) != 0;
  entry->root = static_cast<int32_t>(what >> 32);
  entry->group = static_cast<int>(where & 0xffffffff);
  entry->tag.path_id = static_cast<int32_t>(where >> 32);
  entry->ended_ns = ended < 0 ? -ended : ended;
  entry->state = ended > 0             ? FlightEntry::State::kDone
                 : ended < 0           ? FlightEntry::State::kFailed
                 : entry->begun_ns > 0 ? FlightEntry::State::kRunning
                                       : FlightEntry::State::kQueued;
  return true;
}

const char* FlightRecorder::KeepActivity(const std::string& activity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return activities_.insert(activity).first->c_str();
}

void FlightRecorder::NamePath(int32_t path_id, const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  paths_[path_id] = name;
}

void FlightRecorder::NamePurpose(uint8_t purpose, const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  purposes_[purpose] = name;
}

void FlightRecorder::WatchPlace(const FlightPlace* place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  place_ = place;
}

void FlightRecorder::ForgetPlace(const FlightPlace* place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (place_ == place) place_ = nullptr;
}

std::string FlightRecorder::TagText(const CommTag& tag) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> parts;
  const auto path = paths_.find(tag.path_id);
  if (path != paths_.end() && !path->second.empty()) parts.push_back(path->second);
  const auto purpose = purposes_.find(tag.purpose);
  if (purpose != purposes_.end()) parts.push_back(purpose->second);
  return absl::StrJoin(parts, ", ");
}

FlightSnapshot FlightRecorder::Snapshot() const {
  FlightSnapshot snapshot;
  snapshot.awaited = awaited_.load(std::memory_order_acquire);
  for (uint64_t i = 0; i <= mask_; ++i) {
    FlightEntry entry;
    if (Read(slots_[i], &entry)) snapshot.entries.push_back(entry);
  }
  std::sort(snapshot.entries.begin(), snapshot.entries.end(),
            [](const FlightEntry& a, const FlightEntry& b) { return a.id < b.id; });
  {
    // After the entries: a group that an entry names was opened before it was issued.
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, opened] : groups_) {
      snapshot.groups.push_back(opened->group);
      snapshot.groups.back().num_collectives = opened->num_collectives.load(std::memory_order_acquire);
    }
    if (place_ != nullptr) {
      const auto path = paths_.find(place_->path_id.load(std::memory_order_relaxed));
      const bool is_backward = place_->in_backward.load(std::memory_order_relaxed) > 0;
      if (path != paths_.end() && !path->second.empty()) {
        snapshot.place = absl::StrCat(is_backward ? "backward" : "forward", " of ", path->second);
      }
    }
  }
  if (const char* const activity = activity_.load(std::memory_order_acquire)) {
    snapshot.activity = activity;
    snapshot.activity_ns = activity_ns_.load(std::memory_order_acquire);
  }
  snapshot.now_ns = FlightClock();
  return snapshot;
}

}  // namespace weft
