#include "runtime/store/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// A file that is closed with its owner.
class File {
 public:
  File(const std::string& path, int flags) : descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

// The file of a key holds the number of the key's bytes, the key and the value.
std::string Pack(absl::string_view key, absl::string_view value) {
  const auto num_bytes = static_cast<uint32_t>(key.size());
  std::string packed(sizeof(num_bytes), '\0');
  std::memcpy(packed.data(), &num_bytes, sizeof(num_bytes));
  absl::StrAppend(&packed, key, value);
  return packed;
}

// FNV-1a, 128 bits.
std::string HashOf(absl::string_view key) {
  __extension__ using Wide = unsigned __int128;
  constexpr auto kPrime = (static_cast<Wide>(1) << 88) + 0x13b;
  Wide hash = (static_cast<Wide>(0x6c62272e07bb0142) << 64) + 0x62b821756295c58d;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return absl::StrFormat("%016x%016x", static_cast<uint64_t>(hash >> 64), static_cast<uint64_t>(hash));
}

// Sleeps longer from call to call, and never past the deadline.
class Backoff {
 public:
  explicit Backoff(std::chrono::microseconds longest) : longest_(longest) {}

  void SleepUntilAtMost(Clock::time_point deadline) {
    std::this_thread::sleep_until(std::min<Clock::time_point>(Clock::now() + next_, deadline));
    next_ = std::min(next_ * 3 / 2, longest_);
  }

 private:
  const std::chrono::microseconds longest_;
  std::chrono::microseconds next_ = std::chrono::microseconds(200);
};

}  // namespace

// The folder's lock, held from the constructor to the destructor: by many readers, or by one writer.
class FileStore::Lock {
 public:
  enum Kind { kRead = LOCK_SH, kWrite = LOCK_EX };

  Lock(const FileStore& store, Kind kind) : file_(absl::StrCat(store.folder_, "/.lock"), O_RDWR | O_CREAT) {
    if (!file_.is_open()) store.Fail("cannot open its lock");
    const Clock::time_point deadline = Clock::now() + ClampTimeout(store.options_.lock_timeout);
    Backoff backoff(std::chrono::milliseconds(2));
    // Polled, since flock has no deadline and a process that was stopped keeps its locks.
    while (flock(file_.descriptor(), kind | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) store.Fail("cannot lock it");
      if (Clock::now() >= deadline) {
        Throw(absl::StatusCode::kAborted, "the store in ", store.folder_, " has been locked for ",
              absl::StrFormat("%.3g s", static_cast<double>(store.options_.lock_timeout.count()) / 1e3),
              ": a process that holds the lock hangs");
      }
      backoff.SleepUntilAtMost(deadline);
    }
  }

 private:
  const File file_;
};

FileStore::FileStore(absl::string_view folder, const FileStoreOptions& options)
    : folder_(folder), options_(options) {
  WEFT_REQUIRE(!folder_.empty(), "a FileStore wants a folder, got an empty path");
  std::error_code failure;
  std::filesystem::create_directories(folder_, failure);
  if (failure) {
    Throw(absl::StatusCode::kAborted, "the store in ", folder_, ": cannot make it: ", failure.message());
  }
}

void FileStore::Set(absl::string_view key, absl::string_view value) {
  RequireKey(key);
  RequireValue(key, value);
  const Lock lock(*this, Lock::kWrite);
  Write(key, value);
}

std::string FileStore::Get(absl::string_view key, std::chrono::milliseconds timeout) {
  RequireKey(key);
  const Clock::time_point deadline = Clock::now() + ClampTimeout(timeout);
  Backoff backoff(std::chrono::milliseconds(20));
  while (true) {
    const bool last = Clock::now() >= deadline;
    std::optional<std::string> value = TryGet(key);
    if (value.has_value()) return *std::move(value);
    if (last) ThrowMissing({std::string(key)}, timeout);
    backoff.SleepUntilAtMost(deadline);
  }
}

// Without the lock: a rename replaces the whole value at once.
std::optional<std::string> FileStore::TryGet(absl::string_view key) {
  RequireKey(key);
  return Read(key);
}

int64_t FileStore::Add(absl::string_view key, int64_t amount) {
  RequireKey(key);
  const Lock lock(*this, Lock::kWrite);
  const int64_t sum = SumOf(key, Read(key).value_or("0"), amount);
  Write(key, absl::StrCat(sum));
  return sum;
}

void FileStore::Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) {
  RequireKeys(keys);
  const Clock::time_point deadline = Clock::now() + ClampTimeout(timeout);
  Backoff backoff(std::chrono::milliseconds(20));
  while (true) {
    const bool last = Clock::now() >= deadline;
    std::vector<std::string> missing;
    {
      const Lock lock(*this, Lock::kRead);
      missing = Missing(keys);
    }
    if (missing.empty()) return;
    if (last) ThrowMissing(missing, timeout);
    backoff.SleepUntilAtMost(deadline);
  }
}

bool FileStore::Check(absl::Span<const std::string> keys) {
  RequireKeys(keys);
  const Lock lock(*this, Lock::kRead);
  return Missing(keys).empty();
}

std::string FileStore::CompareSet(absl::string_view key, absl::string_view expected,
                                  absl::string_view desired) {
  RequireKey(key);
  RequireValue(key, expected);
  RequireValue(key, desired);
  const Lock lock(*this, Lock::kWrite);
  const std::optional<std::string> held = Read(key);
  if (!held.has_value() && !expected.empty()) return std::string(expected);
  if (held.has_value() && *held != expected) return *held;
  Write(key, desired);
  return std::string(desired);
}

bool FileStore::Delete(absl::string_view key) {
  RequireKey(key);
  const Lock lock(*this, Lock::kWrite);
  if (!Read(key).has_value()) return false;
  if (unlink(PathOf(key).c_str()) != 0) Fail("cannot delete", key);
  return true;
}

std::optional<std::string> FileStore::Read(absl::string_view key) const {
  const File file(PathOf(key), O_RDONLY);
  if (!file.is_open()) {
    const int reason = errno;
    // A key that is not there, or a folder that is not.
    if (reason == ENOENT && access(folder_.c_str(), F_OK) == 0) return std::nullopt;
    errno = reason;
    Fail("cannot read", key);
  }
  std::string packed;
  char chunk[1 << 14];
  ssize_t num_read = 0;
  while ((num_read = read(file.descriptor(), chunk, sizeof(chunk))) != 0) {
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) Fail("cannot read", key);
    packed.append(chunk, num_read);
  }
  const std::string head = Pack(key, "");
  if (packed.compare(0, head.size(), head) != 0) {
    Throw(absl::StatusCode::kDataLoss, "the store in ", folder_, ": the file ", PathOf(key),
          " is not that of ", QuotedKey(key));
  }
  return packed.substr(head.size());
}

void FileStore::Write(absl::string_view key, absl::string_view value) const {
  // One name for all writers: the lock admits one, and what a killed one has left is overwritten.
  const std::string draft = absl::StrCat(folder_, "/.draft");
  const std::string packed = Pack(key, value);
  {
    const File file(draft, O_WRONLY | O_CREAT | O_TRUNC);
    if (!file.is_open()) Fail("cannot write", key);
    size_t num_written = 0;
    while (num_written < packed.size()) {
      const ssize_t more = write(file.descriptor(), packed.data() + num_written, packed.size() - num_written);
      if (more < 0 && errno != EINTR) Fail("cannot write", key);
      if (more > 0) num_written += more;
    }
  }
  if (rename(draft.c_str(), PathOf(key).c_str()) != 0) Fail("cannot write", key);
}

std::vector<std::string> FileStore::Missing(absl::Span<const std::string> keys) const {
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (access(PathOf(key).c_str(), F_OK) != 0) missing.push_back(key);
  }
  return missing;
}

// Part of the key for a person who looks into the folder, and its hash, which is what tells keys apart.
std::string FileStore::PathOf(absl::string_view key) const {
  std::string shown(key.substr(0, 64));
  for (char& c : shown) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return absl::StrCat(folder_, "/", shown, ".", HashOf(key));
}

void FileStore::Fail(absl::string_view what, absl::string_view key) const {
  const int reason = errno;
  const bool full = reason == ENOSPC || reason == EDQUOT;
  Throw(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kAborted, "the store in ", folder_,
        ": ", what, key.empty() ? "" : " ", key.empty() ? "" : QuotedKey(key), ": ", std::strerror(reason));
}

}  // namespace weft
