#include "runtime/device/pooled_allocator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// More than any machine's address space: refused here, since sanitizers end the program on such requests.
constexpr int64_t kMaxBytes = int64_t{1} << 48;

// How many labels the error for lack of memory names.
constexpr size_t kMostListed = 5;

// "1.5 GiB", "96 MiB", "832 bytes".
std::string BytesText(int64_t num_bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(num_bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return absl::StrFormat("%.4g %s", value, kUnits[unit]);
}

// Out of line, so that small blocks do not pay for what large ones need.
template <class Map, class Block>
[[gnu::noinline]] void List(Map& listed, const void* address, const Block& block) {
  try {
    listed[address] = block;
  } catch (const std::bad_alloc&) {
    // The host has no memory for the list: the block is good, and an error will not name it.
  }
}

template <class Map>
[[gnu::noinline]] void Unlist(Map& listed, const void* address) noexcept {
  listed.erase(address);
}

}  // namespace

constexpr PooledAllocator::SizeClass PooledAllocator::ClassAt(int index) {
  const int doubling = index / kClassesPerDoubling;
  const int64_t step = index % kClassesPerDoubling + 1;
  if (doubling == 0) return {index, step * kAllocationGranule};
  return {index, (kClassesPerDoubling + step) * (kAllocationGranule << (doubling - 1))};
}

// The smallest class that holds `num_bytes`.
constexpr PooledAllocator::SizeClass PooledAllocator::ClassOf(int64_t num_bytes) {
  const int64_t granules = std::max<int64_t>(RoundUpToGranule(num_bytes) / kAllocationGranule, 1);
  if (granules <= kClassesPerDoubling) return ClassAt(static_cast<int>(granules) - 1);
  // In (8, 16] steps of 2^shift granules.
  const int shift = std::bit_width(static_cast<uint64_t>(granules - 1)) - 4;
  const int64_t steps = ((granules - 1) >> shift) + 1;
  return ClassAt(static_cast<int>(kClassesPerDoubling * shift + steps - 1));
}

constexpr bool PooledAllocator::ClassesFit() {
  return ClassOf(0).index == 0 && ClassOf(512).index == 7 && ClassOf(513).index == 8 &&
         ClassOf(513).num_bytes == 576 && ClassOf(1024).index == 15 && ClassOf(1025).index == 16 &&
         ClassOf(1025).num_bytes == 1152 && ClassOf(kMaxBytes).index < kNumClasses;
}

inline void PooledAllocator::Count(void* block, const Request& request) {
  const int64_t num_bytes = RoundUpToGranule(request.num_bytes);
  stats_.live_bytes += num_bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  ++stats_.num_allocations;
  by_kind_.Add(request.kind, num_bytes);
  if (request.num_bytes >= listed_bytes_) List(listed_, block, ListedBlock{num_bytes, request.label});
}

// Null if no block of the class is free. Also where the cap is looked at. Inlined, as what every op asks for.
[[gnu::always_inline]] inline void* PooledAllocator::TakeFromPool(const SizeClass& size_class,
                                                                  const Request& request) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cap_bytes_ - stats_.live_bytes >= RoundUpToGranule(request.num_bytes)) {
      std::vector<FreeBlock>& blocks = free_blocks_[size_class.index];
      if (blocks.empty()) return nullptr;
      void* const block = blocks.back().block;
      blocks.pop_back();
      stats_.pooled_bytes -= size_class.num_bytes;
      Count(block, request);
      return block;
    }
  }
  ThrowExhausted(request.num_bytes, /*is_capped=*/true);
}

void* PooledAllocator::DoAllocate(int64_t num_bytes, MemoryKind kind) {
  static_assert(ClassesFit());
  WEFT_REQUIRE(num_bytes >= 0, "Allocate: expected at least 0 bytes, got ", num_bytes);
  if (num_bytes > kMaxBytes) ThrowExhausted(num_bytes, /*is_capped=*/false);
  const SizeClass size_class = ClassOf(num_bytes);
  const Request request = {num_bytes, kind, num_bytes >= listed_bytes_ ? CurrentLabel() : 0};
  void* block = TakeFromPool(size_class, request);
  if (block == nullptr) block = TakeNew(size_class, request);
  if (guards_) Guard(block, size_class.num_bytes, num_bytes);
  return block;
}

void PooledAllocator::Guard(void* block, int64_t num_bytes, int64_t usable_bytes) noexcept {
  if (usable_bytes == 0) std::memset(block, 0xff, static_cast<size_t>(num_bytes));
}

void PooledAllocator::DoDeallocate(void* data, int64_t num_bytes, MemoryKind kind) noexcept {
  if (data == nullptr) return;
  const SizeClass size_class = ClassOf(num_bytes);
  if (guards_) Guard(data, size_class.num_bytes, 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t counted_bytes = RoundUpToGranule(num_bytes);
  stats_.live_bytes -= counted_bytes;
  by_kind_.Remove(kind, counted_bytes);
  if (num_bytes >= listed_bytes_) Unlist(listed_, data);
  free_blocks_[size_class.index].push_back({data, ++num_frees_});  // its place was kept
  stats_.pooled_bytes += size_class.num_bytes;
}

int64_t PooledAllocator::BlockBytes(int64_t num_bytes) { return ClassOf(num_bytes).num_bytes; }

void PooledAllocator::AddObserver(std::weak_ptr<BlockObserver> observer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::weak_ptr<BlockObserver>> observers;
  if (observers_ != nullptr) observers = *observers_;
  std::erase_if(observers, [](const std::weak_ptr<BlockObserver>& other) { return other.expired(); });
  observers.push_back(std::move(observer));
  observers_ = std::make_shared<const std::vector<std::weak_ptr<BlockObserver>>>(std::move(observers));
}

// Without the lock: a device may first finish what waits for a thread that is about to free a block here.
void PooledAllocator::GiveBack(void* block, const SizeClass& size_class) noexcept {
  std::shared_ptr<const std::vector<std::weak_ptr<BlockObserver>>> observers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    observers = observers_;
  }
  if (observers != nullptr) {
    for (const std::weak_ptr<BlockObserver>& weak : *observers) {
      if (const std::shared_ptr<BlockObserver> observer = weak.lock()) observer->BlockGoes(block);
    }
  }
  ReturnToSystem(block, size_class.num_bytes);
}

// Takes a free block out of the pool for good. Needs the lock.
void* PooledAllocator::PopFree(int index, size_t position) {
  std::vector<FreeBlock>& blocks = free_blocks_[index];
  void* const block = blocks[position].block;
  blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(position));
  --num_blocks_[index];
  stats_.pooled_bytes -= ClassAt(index).num_bytes;
  held_bytes_ -= ClassAt(index).num_bytes;
  return block;
}

AllocatorStats PooledAllocator::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

MemoryByKind PooledAllocator::by_kind() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return by_kind_;
}

void PooledAllocator::ResetPeak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  earlier_peak_ = std::max(earlier_peak_, stats_.peak_bytes);
  stats_.peak_bytes = stats_.live_bytes;
  by_kind_.ResetPeak();
}

// Whether another block of the class may be held, for a request of `num_bytes`. Needs the lock.
bool PooledAllocator::IsWithinBound(const SizeClass& size_class, int64_t num_bytes) const {
  const int64_t most_live =
      std::max({earlier_peak_, stats_.peak_bytes, stats_.live_bytes + RoundUpToGranule(num_bytes)});
  const int64_t bound = std::min(cap_bytes_, std::max(kFreelyHeldBytes, most_live + most_live / 2));
  return held_bytes_ + size_class.num_bytes <= bound;
}

// Before a block is taken from the system: keeps what is held within its bound, as far as free blocks go, and sees to
// the system's room by those that make some.
void PooledAllocator::MakeRoom(const SizeClass& size_class, int64_t num_bytes) {
  constexpr int kFirstOfOwnPages = ClassOf(kSharedPageBytes).index + 1;
  while (true) {
    bool could_make_room = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      could_make_room = OldestClass(kFirstOfOwnPages) >= 0;
    }
    // Without the lock, as below.
    const bool has_room = !could_make_room || SystemHasRoom(size_class.num_bytes);
    void* block = nullptr;
    int oldest = -1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const bool is_within_bound = IsWithinBound(size_class, num_bytes);
      if (has_room && is_within_bound) return;
      oldest = OldestClass(is_within_bound ? kFirstOfOwnPages : 0);
      if (oldest < 0) return;
      block = PopFree(oldest, 0);
    }
    GiveBack(block, ClassAt(oldest));
  }
}

bool PooledAllocator::HasAtHand(int64_t num_bytes) {
  const SizeClass size_class = ClassOf(num_bytes);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cap_bytes_ - stats_.live_bytes < RoundUpToGranule(num_bytes)) return false;
    if (!free_blocks_[size_class.index].empty()) return true;
    if (!IsWithinBound(size_class, num_bytes)) return false;
  }
  return SystemHasRoom(size_class.num_bytes);
}

// The class, from `from` on, of the free block whose last use is longest ago; -1 if none is free. Needs the lock.
int PooledAllocator::OldestClass(int from) const {
  int oldest = -1;
  for (int index = from; index < kNumClasses; ++index) {
    if (free_blocks_[index].empty()) continue;
    if (oldest < 0 || free_blocks_[index][0].freed_at < free_blocks_[oldest][0].freed_at) oldest = index;
  }
  return oldest;
}

// So that Deallocate never lacks memory of the host to write a block down, and so gives none back: its caller may hold a lock
// that an observer takes.
void PooledAllocator::KeepPlace(const SizeClass& size_class) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<FreeBlock>& blocks = free_blocks_[size_class.index];
  const size_t num_blocks = num_blocks_[size_class.index] + 1;
  if (blocks.capacity() < num_blocks) blocks.reserve(std::max(num_blocks, 2 * blocks.capacity()));
}

void* PooledAllocator::TakeNew(const SizeClass& size_class, const Request& request) {
  MakeRoom(size_class, request.num_bytes);
  KeepPlace(size_class);
  void* block = TakeFromSystem(size_class.num_bytes);
  if (block == nullptr) {
    // What the pool keeps in other classes may be what is missing.
    ReturnPoolToSystem();
    block = TakeFromSystem(size_class.num_bytes);
  }
  if (block == nullptr) ThrowExhausted(request.num_bytes, /*is_capped=*/false);
  const std::lock_guard<std::mutex> lock(mutex_);
  held_bytes_ += size_class.num_bytes;
  ++num_blocks_[size_class.index];
  Count(block, request);
  return block;
}

void PooledAllocator::SetLabels(std::shared_ptr<const BlockLabels> labels) {
  const std::lock_guard<std::mutex> lock(mutex_);
  labels_ = std::move(labels);
  first_label_ = static_cast<int>(label_names_.size());
  label_thread_.store(labels_ == nullptr ? std::thread::id() : std::this_thread::get_id(),
                      std::memory_order_relaxed);
}

// The index of the calling thread's label in label_names_. Without the lock, since it asks others.
int PooledAllocator::CurrentLabel() {
  if (label_thread_.load(std::memory_order_relaxed) != std::this_thread::get_id()) return 0;
  const int label = first_label_ + labels_->Current();
  while (static_cast<int>(label_names_.size()) <= label) {
    std::string name = labels_->Name(static_cast<int>(label_names_.size()) - first_label_);
    const std::lock_guard<std::mutex> lock(mutex_);
    label_names_.push_back(std::move(name));
  }
  return label;
}

void PooledAllocator::ReturnPoolToSystem() noexcept {
  for (int index = 0; index < kNumClasses; ++index) {
    while (true) {
      void* block = nullptr;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (free_blocks_[index].empty()) break;
        block = PopFree(index, free_blocks_[index].size() - 1);
      }
      GiveBack(block, ClassAt(index));
    }
  }
}

int64_t PooledAllocator::ListedBytes(int64_t cap_bytes) {
  constexpr int64_t kMebibyte = 1 << 20;
  return cap_bytes == 0 ? kMebibyte : std::clamp(cap_bytes / 64, kAllocationGranule, kMebibyte);
}

// "; in use: saved 1.5 GiB, param 96 MiB", the largest first; "" where nothing has a kind of its own.
std::string PooledAllocator::KindsText() const {
  const MemoryByKind bytes = by_kind();
  if (bytes[MemoryKind::kOther].live == stats().live_bytes) return "";
  std::vector<MemoryKind> kinds(std::begin(kMemoryKinds), std::end(kMemoryKinds));
  std::stable_sort(kinds.begin(), kinds.end(),
                   [&](MemoryKind a, MemoryKind b) { return bytes[a].live > bytes[b].live; });
  std::string text;
  for (const MemoryKind kind : kinds) {
    if (bytes[kind].live == 0) continue;
    absl::StrAppend(&text, text.empty() ? "; in use: " : ", ", MemoryKindName(kind), " ",
                    BytesText(bytes[kind].live));
  }
  return text;
}

// "; largest: 1.5 GiB in blocks.3.attn (4 tensors), 96 MiB elsewhere (1 tensor)", or "".
std::string PooledAllocator::LargestText() const {
  struct Sum {
    int64_t num_bytes = 0;
    int64_t num_blocks = 0;
  };
  std::map<std::string, Sum> sums;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [address, block] : listed_) {
      Sum& sum = sums[label_names_[block.label]];
      sum.num_bytes += block.num_bytes;
      ++sum.num_blocks;
    }
  }
  std::vector<std::pair<std::string, Sum>> largest(sums.begin(), sums.end());
  // Of equals the first by name.
  std::stable_sort(largest.begin(), largest.end(),
                   [](const auto& a, const auto& b) { return a.second.num_bytes > b.second.num_bytes; });
  if (largest.size() > kMostListed) largest.resize(kMostListed);
  std::string text;
  for (const auto& [name, sum] : largest) {
    absl::StrAppend(&text, text.empty() ? "; largest: " : ", ", BytesText(sum.num_bytes),
                    name.empty() ? " elsewhere" : absl::StrCat(" in ", name), " (", sum.num_blocks,
                    sum.num_blocks == 1 ? " tensor)" : " tensors)");
  }
  return text;
}

void PooledAllocator::ThrowExhausted(int64_t num_bytes, bool is_capped) const {
  const AllocatorStats now = stats();
  Throw(absl::StatusCode::kResourceExhausted, "out of memory on ", PlaceText(), ": cannot allocate ",
        num_bytes, " bytes; live ", now.live_bytes, " bytes, peak ", now.peak_bytes, " bytes, pooled ",
        now.pooled_bytes, " bytes", is_capped ? absl::StrCat(", cap ", cap_bytes_, " bytes") : "",
        KindsText(), LargestText());
}

void LabelBlocks(Allocator& allocator, std::shared_ptr<const BlockLabels> labels) {
  if (auto* const pooled = dynamic_cast<PooledAllocator*>(&allocator)) pooled->SetLabels(std::move(labels));
}

bool HasAtHand(Allocator& allocator, int64_t num_bytes) {
  auto* const pooled = dynamic_cast<PooledAllocator*>(&allocator);
  return pooled == nullptr || pooled->HasAtHand(num_bytes);
}

}  // namespace weft
