// What backward will read, in the ranks' second memory from forward until then.

#ifndef WEFT_DTENSOR_TAPE_SAVED_BUFFER_H_
#define WEFT_DTENSOR_TAPE_SAVED_BUFFER_H_

#include <cstdint>
#include <memory>

#include "dtensor/dtensor.h"
#include "runtime/base/intrusive_ptr.h"
#include "runtime/device/device_queue.h"
#include "runtime/tensor/buffer.h"

namespace weft {

class SavedBuffers;

// Memory of a device that was copied to the second memory for values that backward will read: shared by these.
// Threads: the rank's.
class SavedBuffer : public RefCounted<SavedBuffer> {
 public:
  SavedBuffer() = default;
  ~SavedBuffer();

  // Of `from`, memory of `device`: the one that lives, if `from` has not been added to since; otherwise a new one, in memory
  // of `host`.
  static IntrusivePtr<SavedBuffer> Of(const IntrusivePtr<Buffer>& from, Allocator& device,
                                      const std::shared_ptr<Allocator>& host);
  const IntrusivePtr<Buffer>& host() const { return host_; }

 private:
  friend class SavedBuffers;

  const std::shared_ptr<SavedBuffer*> self_ =
      std::make_shared<SavedBuffer*>(this);  // what was copied knows it by this
  IntrusivePtr<Buffer> host_;
  // All null where the device reads the second memory as it is.
  std::shared_ptr<SavedBuffers> all_;  // of the rank, in the order in which they were saved
  SavedBuffer* earlier_ = nullptr;
  SavedBuffer* later_ = nullptr;
  std::shared_ptr<QueuedBatch> saved_;    // the copy to `host_`
  IntrusivePtr<Buffer> device_;           // brought back; null: not yet, or given away
  std::shared_ptr<QueuedBatch> fetched_;  // the copy to `device_`
  bool was_read_ = false;
};

// A value that is kept for later, without history: as ToHost, but that values which share memory share the copy of it while
// one of them is kept. It is of all of their memory. Smaller pieces than kLeastOffloadedBytes, and values that may be
// written in place, are given back themselves, and `*there` is null.
//
// On a GPU the copy runs in a stream of its own, and the memory that was copied is used again behind it; the host's memory
// is not to be read but by FetchSaved.
// Memory: of what is copied, as MemoryKind::kSaved.
DTensor SaveOnHost(const DTensor& x, IntrusivePtr<SavedBuffer>* there);
inline constexpr int64_t kLeastOffloadedBytes = 4096;  // less would be copied longer than it is worth

// A value that SaveOnHost has brought `there`, in the memory of the rank's device. On a GPU, what was saved before it is
// brought back beside what reads this value: backward reads in the reverse order.
// Memory: on a GPU of `there`, as MemoryKind::kSaved, until its last value goes, and of as many earlier ones as
//         kMostFetchedBytes hold, at least one; of none where no memory is at hand.
// Cost:   a copy in a stream of its own; nothing on a CPU.
DTensor FetchSaved(const DTensor& saved, SavedBuffer& there);
inline constexpr int64_t kMostFetchedBytes = int64_t{32} << 20;

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_SAVED_BUFFER_H_
