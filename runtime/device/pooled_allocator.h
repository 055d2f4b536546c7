#ifndef WEFT_RUNTIME_DEVICE_POOLED_ALLOCATOR_H_
#define WEFT_RUNTIME_DEVICE_POOLED_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/device/allocator.h"

namespace weft {

// What a rank's thread is doing, as small numbers that have names, such as the path of the module that runs:
// by it an allocator says who holds its memory.
class BlockLabels {
 public:
  virtual ~BlockLabels() = default;

  // The number now, at least 0. Only the thread that has handed the labels over asks.
  virtual int Current() const = 0;
  // Of a number that was current; it never changes. "" stands for no label.
  virtual std::string Name(int label) const = 0;
};

// Whoever makes a block of a pool known elsewhere, such as to a library, and has to take that back before the block goes.
class BlockObserver {
 public:
  virtual ~BlockObserver() = default;

  // The pool gives `block` back to the system when this returns: on the thread of an Allocate that the pool has nothing for, or
  // of the pool's end. The pool is not locked. No tensor lies in the block, but a device may still have queued work that uses it.
  // Allocates nothing from the pool.
  virtual void BlockGoes(const void* block) noexcept = 0;
};

// What allocators of memory that is dear to get share: freed blocks are kept by size class and reused, so
// that a training step after the first asks the system for nothing. A device adds where blocks come from.
//
// One lock guards all: uncontended it costs less than telling the owner's thread from others would save, and
// a block that a peer's thread returns is at once there for reuse. The free lists are kept outside the
// blocks, which need not be memory that the host can touch.
//
// The pool is bounded, or tensors whose lengths vary would add up the peaks of every size class. When a
// request finds no block of its class, free blocks of other classes go back to the system first, those whose
// last use is longest ago before others, until what the allocator holds, in use and free, will be no more
// than half as much again as the most bytes that were ever live, or kFreelyHeldBytes if that is more, or the
// cap if that is less. What a program asks for again and again within that bound never leaves the pool: steps
// of a GPT hold 1.1 to 1.3 times their peak, so they ask the system for nothing. In the same order those
// larger than kSharedPageBytes go back where the system has too little besides (SystemHasRoom).
//
// Large blocks are written down with the label under which they were allocated, for the error that says why
// there is no more: "largest: 1.5 GiB in blocks.3.attn (4 tensors)".
class PooledAllocator : public Allocator {
 public:
  // So much is held whatever was live: asking the system anew would cost more than it is worth.
  static constexpr int64_t kFreelyHeldBytes = int64_t{32} << 20;

  AllocatorStats stats() const final;
  MemoryByKind by_kind() const final;
  void ResetPeak() final;

  // Whether Allocate would give so much now without giving other blocks back to the system, which may wait for the device: for
  // whoever can do without. Another thread may be faster.
  bool HasAtHand(int64_t num_bytes);

  // The bytes of the block in which Allocate returns `num_bytes`; they begin where the block does.
  static int64_t BlockBytes(int64_t num_bytes);

  // `observer` is told of each block that goes, as long as it lives. Several are told one after another.
  void AddObserver(std::weak_ptr<BlockObserver> observer);

  // From now on blocks that the calling thread allocates have the label current then; those of other threads
  // have none, nor have those from before. Labels that came earlier keep their names.
  void SetLabels(std::shared_ptr<const BlockLabels> labels);

 protected:
  // `cap_bytes`: no more live bytes than this, and no free blocks beyond it; 0: no limit. `guards`: Guard is called.
  explicit PooledAllocator(int64_t cap_bytes, bool guards = false)
      : cap_bytes_(cap_bytes == 0 ? std::numeric_limits<int64_t>::max() : cap_bytes),
        listed_bytes_(ListedBytes(cap_bytes)),
        guards_(guards) {}

  // A block of so many bytes, or null if the system has no more.
  virtual void* TakeFromSystem(int64_t num_bytes) = 0;
  virtual void ReturnToSystem(void* block, int64_t num_bytes) noexcept = 0;

  // Up to so many bytes blocks share pages of CUDA's driver, which are of 2 MiB, so that giving one back makes no room as a rule.
  static constexpr int64_t kSharedPageBytes = int64_t{1} << 20;

  // Whether the system has so much, and what others in the process may ask it for. Free blocks go back until it has, and no
  // longer: then the block is asked for all the same. Asked before a block is taken from the system, where a free one of
  // more than kSharedPageBytes could go back.
  virtual bool SystemHasRoom(int64_t /*num_bytes*/) { return true; }

  // What has no more, for the error: "cuda".
  virtual std::string PlaceText() const { return std::string(DeviceTypeName(device().type)); }

  // A block of `num_bytes` is handed out, of which the caller may touch `usable_bytes`; or, with 0, is back. Unless a class
  // does otherwise, the processor fills what is back with bytes 0xff.
  virtual void Guard(void* block, int64_t num_bytes, int64_t usable_bytes) noexcept;

  // Gives the pool back to the system. Of the derived class's destructor too, whose functions it calls.
  void ReturnPoolToSystem() noexcept;

 private:
  // Blocks are as large as their size class: multiples of 64 up to 512, from there 8 classes a doubling, so
  // that at most an eighth is wasted and the pool serves requests that vary a little (uneven shards, last
  // batches).
  static constexpr int kClassesPerDoubling = 8;
  static constexpr int kNumClasses = kClassesPerDoubling * 48;
  struct SizeClass {
    int index;
    int64_t num_bytes;
  };
  static constexpr SizeClass ClassAt(int index);
  static constexpr SizeClass ClassOf(int64_t num_bytes);
  static constexpr bool ClassesFit();

  struct FreeBlock {
    void* block = nullptr;
    int64_t freed_at = 0;  // by num_frees_
  };

  // A live block that is large enough to be named.
  struct ListedBlock {
    int64_t num_bytes = 0;
    int label = 0;  // in label_names_
  };
  // The least bytes of such a block: what is done with a MiB takes far longer than to write it down, and no
  // smaller ones fill a device alone; under a small cap, a 64th of it.
  static int64_t ListedBytes(int64_t cap_bytes);

  // What is asked for, as the steps of an allocation hand it on.
  struct Request {
    int64_t num_bytes;
    MemoryKind kind;
    int label;  // in label_names_
  };

  void* DoAllocate(int64_t num_bytes, MemoryKind kind) final;
  void DoDeallocate(void* data, int64_t num_bytes, MemoryKind kind) noexcept final;
  void* TakeFromPool(const SizeClass& size_class, const Request& request);
  void* TakeNew(const SizeClass& size_class, const Request& request);
  void KeepPlace(const SizeClass& size_class);
  void* PopFree(int index, size_t position);
  void GiveBack(void* block, const SizeClass& size_class) noexcept;
  void MakeRoom(const SizeClass& size_class, int64_t num_bytes);
  bool IsWithinBound(const SizeClass& size_class, int64_t num_bytes) const;
  int OldestClass(int from) const;
  void Count(void* block, const Request& request);
  int CurrentLabel();
  std::string KindsText() const;
  std::string LargestText() const;
  [[noreturn]] void ThrowExhausted(int64_t num_bytes, bool is_capped) const;

  const int64_t cap_bytes_;
  const int64_t listed_bytes_;
  const bool guards_;
  mutable std::mutex mutex_;
  std::array<std::vector<FreeBlock>, kNumClasses> free_blocks_;  // of each class the oldest first
  std::array<size_t, kNumClasses> num_blocks_ = {};              // of each class, live and free
  AllocatorStats stats_;
  MemoryByKind by_kind_;
  int64_t held_bytes_ = 0;    // of all blocks, live and free, as large as they are
  int64_t earlier_peak_ = 0;  // the most live bytes before the last ResetPeak
  int64_t num_frees_ = 0;
  absl::flat_hash_map<const void*, ListedBlock> listed_;
  // Replaced as a whole, so that they are told without the lock.
  std::shared_ptr<const std::vector<std::weak_ptr<BlockObserver>>> observers_;

  // Names of all labels so far; 0 is none. Those of `labels_` stand from first_label_ on, as far as they are
  // known: they are asked for when they come up, since their owner may be gone when memory runs out. Grown
  // under the lock, and by label_thread_ alone, which reads without it.
  std::vector<std::string> label_names_ = {""};
  int first_label_ = 0;
  std::shared_ptr<const BlockLabels> labels_;  // of label_thread_ alone
  std::atomic<std::thread::id> label_thread_ = {};
};

// Labels the blocks of `allocator`, if it is one that may run out of memory: a PooledAllocator.
void LabelBlocks(Allocator& allocator, std::shared_ptr<const BlockLabels> labels);

// As PooledAllocator::HasAtHand; true of other allocators.
bool HasAtHand(Allocator& allocator, int64_t num_bytes);

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_POOLED_ALLOCATOR_H_
