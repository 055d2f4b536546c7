#include "runtime/comm/gloo/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

[[noreturn]] void FailWith(int error, const std::string& what) {
  const bool is_full = error == ENOSPC || error == ENOMEM || error == EFBIG || error == EDQUOT;
  Throw(is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kFailedPrecondition, what, ": ",
        std::strerror(error));
}

std::string NewName() {
  std::random_device random;
  std::string name = "weft";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&name, "-", absl::Hex(random(), absl::kZeroPad8));
  return name;
}

// The lock of an open file, not of a process: it is neither lost nor doubled by other descriptors of the file
// in this process.
struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

std::unique_ptr<SharedSegment> SharedSegment::Make(absl::string_view folder, int64_t num_bytes) {
  const std::string path = absl::StrCat(folder, "/", NewName());
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) FailWith(errno, absl::StrCat("cannot make ", path));
  std::unique_ptr<SharedSegment> segment(new SharedSegment(path, descriptor, /*is_maker=*/true));
  struct flock lock = WholeFile();
  if (fcntl(descriptor, F_OFD_SETLK, &lock) != 0) FailWith(errno, absl::StrCat("cannot lock ", path));
  const int error = posix_fallocate(descriptor, 0, num_bytes);
  if (error != 0)
    FailWith(error, absl::StrCat("cannot get ", num_bytes, " bytes of shared memory in ", folder));
  segment->Map(num_bytes);
  return segment;
}

std::unique_ptr<SharedSegment> SharedSegment::Open(const std::string& path, int64_t num_bytes) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) FailWith(errno, absl::StrCat("cannot open ", path));
  std::unique_ptr<SharedSegment> segment(new SharedSegment(path, descriptor, /*is_maker=*/false));
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) FailWith(errno, absl::StrCat("cannot look at ", path));
  if (status.st_size != num_bytes) {
    Throw(absl::StatusCode::kFailedPrecondition, path, " has ", status.st_size, " bytes, expected ",
          num_bytes);
  }
  segment->Map(num_bytes);
  return segment;
}

void SharedSegment::Map(int64_t num_bytes) {
  void* const data = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) FailWith(errno, absl::StrCat("cannot map ", path_));
  data_ = static_cast<char*>(data);
  num_bytes_ = num_bytes;
}

SharedSegment::~SharedSegment() {
  Unlink();
  if (data_ != nullptr) munmap(data_, num_bytes_);
  close(descriptor_);
}

void SharedSegment::Unlink() noexcept {
  if (has_name_) unlink(path_.c_str());
  has_name_ = false;
}

bool SharedSegment::MakerIsAlive() const {
  struct flock lock = WholeFile();
  if (fcntl(descriptor_, F_OFD_GETLK, &lock) != 0) return true;  // unknown: the timeout will tell
  return lock.l_type != F_UNLCK;
}

}  // namespace weft
