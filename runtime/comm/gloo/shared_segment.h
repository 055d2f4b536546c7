#ifndef WEFT_RUNTIME_COMM_GLOO_SHARED_SEGMENT_H_
#define WEFT_RUNTIME_COMM_GLOO_SHARED_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace weft {

// A piece of memory that one process makes, as a file in memory (/dev/shm) that never has a name, and others map:
// however a process ends, nothing is left behind. Others find it through the maker's entry in /proc. The maker holds a
// lock on the file for as long as it lives; the kernel lets go of it however the maker ends, so others can see that it
// is gone. A child that it has forked has the lock, too, but not the maker's entry in /proc.
//
// Lifetime: owns the mapping and the descriptor. The maker keeps it until all have opened it.
class SharedSegment {
 public:
  // A new one of zeros. All of its pages exist: a full /dev/shm is an error here, not a bus error later.
  // Errors: ResourceExhausted or FailedPrecondition, naming the folder and the system's reason.
  static std::unique_ptr<SharedSegment> Make(absl::string_view folder, int64_t num_bytes);

  // Another process's, by its address. `folder`: where segments of this process would be.
  // Errors: FailedPrecondition if it cannot be opened or has another size; if it lies on another file system than
  //         `folder`, as that of another machine or container does, or what is found is not the segment.
  static std::unique_ptr<SharedSegment> Open(const std::string& address, absl::string_view folder,
                                             int64_t num_bytes);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  char* data() const { return data_; }
  // Of one that was made: what Open takes, in processes that see this one in their /proc.
  const std::string& address() const { return address_; }

  // Of one that was opened: whether its maker lives (a stopped process does).
  // Cost:   two system calls.
  bool MakerIsAlive() const;

 private:
  SharedSegment(int descriptor, std::string address)
      : descriptor_(descriptor), address_(std::move(address)) {}
  void Map(int64_t num_bytes);

  const int descriptor_;
  const std::string address_;
  char* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_SHARED_SEGMENT_H_
