#include "runtime/comm/gloo/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "runtime/base/file_space.h"

namespace weft {
namespace {

[[noreturn]] void FailWith(int error, const std::string& what) {
  const bool is_full = error == ENOSPC || error == ENOMEM || error == EFBIG || error == EDQUOT;
  Throw(is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kFailedPrecondition, what, ": ",
        std::strerror(error));
}

// A file of no name in the folder. File systems that cannot make such a one give a name that goes at once.
int NamelessFile(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return descriptor;
  std::string path = absl::StrCat(folder, "/weft-XXXXXX");
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

struct stat StatusOf(int descriptor, const std::string& what) {
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) FailWith(errno, absl::StrCat("cannot look at ", what));
  return status;
}

// Which file it is, of all on this machine.
std::string IdentityOf(const struct stat& status) { return absl::StrCat(status.st_dev, ":", status.st_ino); }

// Of an address: the file in /proc, and its identity.
std::pair<std::string, std::string> PartsOf(const std::string& address) {
  return absl::StrSplit(address, absl::MaxSplits(' ', 1));
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
  const std::string where(folder);
  const int descriptor = NamelessFile(where);
  if (descriptor < 0) FailWith(errno, absl::StrCat("cannot make shared memory in ", where));
  const auto address = [&] {
    return absl::StrCat("/proc/", getpid(), "/fd/", descriptor, " ", IdentityOf(StatusOf(descriptor, where)));
  };
  std::unique_ptr<SharedSegment> segment(new SharedSegment(descriptor, address()));
  struct flock lock = WholeFile();
  if (fcntl(descriptor, F_OFD_SETLK, &lock) != 0)
    FailWith(errno, absl::StrCat("cannot lock memory in ", where));
  const int error = GetFileSpace(descriptor, /*offset=*/0, num_bytes);
  if (error != 0)
    FailWith(error, absl::StrCat("cannot get ", num_bytes, " bytes of shared memory in ", where));
  segment->Map(num_bytes);
  return segment;
}

std::unique_ptr<SharedSegment> SharedSegment::Open(const std::string& address, absl::string_view folder,
                                                   int64_t num_bytes) {
  const auto [path, identity] = PartsOf(address);
  struct stat own = {};
  const std::string where(folder);
  if (stat(where.c_str(), &own) != 0) FailWith(errno, absl::StrCat("cannot look at ", where));
  if (!absl::StartsWith(identity, absl::StrCat(own.st_dev, ":"))) {
    Throw(absl::StatusCode::kFailedPrecondition, path, " lies on another file system than ", where);
  }
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) FailWith(errno, absl::StrCat("cannot open ", path));
  std::unique_ptr<SharedSegment> segment(new SharedSegment(descriptor, address));
  const struct stat status = StatusOf(descriptor, path);
  if (IdentityOf(status) != identity) {
    Throw(absl::StatusCode::kFailedPrecondition, path, " is another file than its process has said");
  }
  if (status.st_size != num_bytes) {
    Throw(absl::StatusCode::kFailedPrecondition, path, " has ", status.st_size, " bytes, expected ",
          num_bytes);
  }
  segment->Map(num_bytes);
  return segment;
}

void SharedSegment::Map(int64_t num_bytes) {
  void* const data = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) FailWith(errno, absl::StrCat("cannot map ", address_));
  data_ = static_cast<char*>(data);
  num_bytes_ = num_bytes;
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, num_bytes_);
  close(descriptor_);
}

bool SharedSegment::MakerIsAlive() const {
  struct flock lock = WholeFile();
  if (fcntl(descriptor_, F_OFD_GETLK, &lock) != 0) return true;  // unknown: the timeout will tell
  if (lock.l_type == F_UNLCK) return false;
  // By the maker, or by a child that it has forked and that lives on. The maker's number may be another process's by now.
  const auto [path, identity] = PartsOf(address_);
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return errno != ENOENT;  // for another reason: unknown, too
  return IdentityOf(status) == identity;
}

}  // namespace weft
