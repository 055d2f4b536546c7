#ifndef WEFT_RUNTIME_COMM_GLOO_SHARED_SEGMENT_H_
#define WEFT_RUNTIME_COMM_GLOO_SHARED_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// A piece of memory that one process makes, as a file in memory (/dev/shm), and others map. The maker holds a
// lock on the file for as long as it lives; the kernel lets go of it however the maker ends, so others can
// see that it is gone without knowing its process id.
//
// Lifetime: owns the mapping and the descriptor. The maker unlinks the file when all have opened it, at the
//           latest in the destructor: after that nothing can be left behind.
class SharedSegment {
 public:
  // A new one of zeros, of a name nobody has. All of its pages exist: a full /dev/shm is an error here, not a
  // bus error later.
  // Errors: ResourceExhausted or FailedPrecondition, naming the folder and the system's reason.
  static std::unique_ptr<SharedSegment> Make(absl::string_view folder, int64_t num_bytes);

  // Another process's.
  // Errors: FailedPrecondition if it cannot be opened or has another size.
  static std::unique_ptr<SharedSegment> Open(const std::string& path, int64_t num_bytes);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  char* data() const { return data_; }
  const std::string& path() const { return path_; }

  // Takes the name away; a process that has opened it keeps it.
  void Unlink() noexcept;

  // Of one that was opened: whether its maker lives (a stopped process does).
  // Cost:   a system call.
  bool MakerIsAlive() const;

 private:
  SharedSegment(std::string path, int descriptor, bool is_maker)
      : path_(std::move(path)), descriptor_(descriptor), has_name_(is_maker) {}
  void Map(int64_t num_bytes);

  const std::string path_;
  const int descriptor_;
  bool has_name_;  // and it is ours to take away
  char* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_SHARED_SEGMENT_H_
