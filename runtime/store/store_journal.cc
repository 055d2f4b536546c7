#include "runtime/store/store_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr absl::string_view kMagic = "weftjrn1";
constexpr int64_t kHeadBytes = 8;  // of a record

void PutLittleEndian(uint32_t number, std::string* bytes) {
  for (int shift = 0; shift < 32; shift += 8) bytes->push_back(static_cast<char>(number >> shift));
}

uint32_t LittleEndian(absl::string_view bytes) {
  uint32_t number = 0;
  for (int i = 3; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

std::string Framed(absl::string_view record) {
  WEFT_CHECK(!record.empty() && static_cast<int64_t>(record.size()) <= StoreJournal::kMaxRecordBytes,
             "a record of ", record.size(), " bytes");
  std::string framed;
  framed.reserve(kHeadBytes + record.size());
  PutLittleEndian(static_cast<uint32_t>(record.size()), &framed);
  PutLittleEndian(Crc32c(record), &framed);
  framed.append(record.data(), record.size());
  return framed;
}

// The record at the beginning of `bytes`; nullopt if none stands whole and sound there. An empty one is none: a disk that
// lost its power may leave zeros, whose CRC would be right.
std::optional<absl::string_view> RecordAt(absl::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) < kHeadBytes) return std::nullopt;
  const uint32_t num_bytes = LittleEndian(bytes);
  if (num_bytes == 0 || num_bytes > StoreJournal::kMaxRecordBytes) return std::nullopt;
  if (bytes.size() - kHeadBytes < num_bytes) return std::nullopt;
  const absl::string_view record = bytes.substr(kHeadBytes, num_bytes);
  if (Crc32c(record) != LittleEndian(bytes.substr(4))) return std::nullopt;
  return record;
}

// Whether a whole record follows anywhere in `bytes`, which begin with none. Not only where the length there says, since
// that may be what is damaged. By chance bytes look like a record once in 2^32 places.
bool IsFollowed(absl::string_view bytes) {
  for (size_t at = 1; at < bytes.size(); ++at) {
    if (RecordAt(bytes.substr(at)).has_value()) return true;
  }
  return false;
}

bool WriteAll(int file, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool SyncFolder(const std::string& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return false;
  const bool ok = fsync(file) == 0;
  close(file);
  return ok;
}

bool ReadAll(int file, std::string* bytes) {
  char chunk[1 << 16];
  for (;;) {
    const ssize_t num_read = read(file, chunk, sizeof(chunk));
    if (num_read == 0) return true;
    if (num_read < 0 && errno != EINTR) return false;
    if (num_read > 0) bytes->append(chunk, static_cast<size_t>(num_read));
  }
}

}  // namespace

int64_t StoreJournal::BytesOf(absl::string_view record) {
  return kHeadBytes + static_cast<int64_t>(record.size());
}

StoreJournal::StoreJournal(const StoreJournalOptions& options,
                           const std::function<void(absl::string_view record)>& replay)
    : options_(options), path_(absl::StrCat(options.folder, "/journal")) {
  WEFT_REQUIRE(!options_.folder.empty(), "a store's journal wants a folder, got an empty path");
  try {
    Lock();
    Replay(replay);
  } catch (...) {
    if (file_ >= 0) close(file_);
    if (lock_ >= 0) close(lock_);
    throw;
  }
  if (!options_.sync_each) syncer_ = std::thread([this] { SyncEverySecond(); });
}

StoreJournal::~StoreJournal() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (syncer_.joinable()) syncer_.join();
  fdatasync(file_);
  close(file_);
  close(lock_);
}

void StoreJournal::Lock() {
  std::error_code failure;
  std::filesystem::create_directories(options_.folder, failure);
  if (failure) {
    Throw(absl::StatusCode::kAborted, "the store's folder ", options_.folder,
          ": cannot make it: ", failure.message());
  }
  lock_ = open(absl::StrCat(options_.folder, "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) Fail("cannot lock");
  // The kernel gives it back with the process, however that ends.
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    Throw(absl::StatusCode::kFailedPrecondition, "another process keeps a store in ", options_.folder,
          ": each has a folder of its own");
  }
}

void StoreJournal::Replay(const std::function<void(absl::string_view record)>& replay) {
  unlink(absl::StrCat(path_, ".new").c_str());  // of a process that was killed in Rewrite
  // Values are those of the job alone, as the token is.
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  std::string bytes;
  if (file_ < 0 || !ReadAll(file_, &bytes)) Fail("cannot read");
  absl::string_view left = bytes;
  const absl::string_view magic = left.substr(0, kMagic.size());
  if (magic != kMagic.substr(0, magic.size())) {
    Throw(absl::StatusCode::kDataLoss, path_, " is no store's journal: it begins with other bytes");
  }
  if (magic.size() < kMagic.size()) {
    num_cut_bytes_ = static_cast<int64_t>(magic.size());
    if (ftruncate(file_, 0) != 0 || lseek(file_, 0, SEEK_SET) != 0 || !WriteAll(file_, kMagic) ||
        fsync(file_) != 0 || !SyncFolder(options_.folder)) {
      Fail("cannot write");
    }
    num_bytes_ = static_cast<int64_t>(kMagic.size());
    return;
  }
  left.remove_prefix(kMagic.size());
  while (const std::optional<absl::string_view> record = RecordAt(left)) {
    replay(*record);
    left.remove_prefix(static_cast<size_t>(BytesOf(*record)));
  }
  num_bytes_ = static_cast<int64_t>(bytes.size() - left.size());
  num_cut_bytes_ = static_cast<int64_t>(left.size());
  if (IsFollowed(left)) {
    Throw(absl::StatusCode::kDataLoss, path_, " is damaged at byte ", num_bytes_, " of ", bytes.size(),
          ", and whole records follow: begin with another folder");
  }
  if (!left.empty() && (ftruncate(file_, num_bytes_) != 0 || fdatasync(file_) != 0)) Fail("cannot cut");
  if (lseek(file_, num_bytes_, SEEK_SET) != num_bytes_) Fail("cannot read");
}

bool StoreJournal::Cut() {
  uncut_ = ftruncate(file_, num_bytes_) != 0 || lseek(file_, num_bytes_, SEEK_SET) != num_bytes_;
  return !uncut_;
}

void StoreJournal::Append(absl::string_view record) {
  const std::string framed = Framed(record);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (uncut_ && !Cut()) Fail("cannot cut");
  if (!WriteAll(file_, framed) || (options_.sync_each && fdatasync(file_) != 0)) {
    const int reason = errno;
    // What is half there must not stand before what comes next.
    Cut();
    errno = reason;
    Fail("cannot write");
  }
  num_bytes_ += static_cast<int64_t>(framed.size());
  unsynced_ = true;
}

void StoreJournal::Rewrite(const std::function<void(const Emit&)>& write) {
  const std::string draft = absl::StrCat(path_, ".new");
  const int file = open(draft.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) Fail("cannot write anew");
  int64_t num_bytes = static_cast<int64_t>(kMagic.size());
  bool ok = WriteAll(file, kMagic);
  write([&](absl::string_view record) {
    ok = ok && WriteAll(file, Framed(record));
    num_bytes += BytesOf(record);
  });
  // The new file is on the disk before its name is, and the old one goes only then.
  ok = ok && fsync(file) == 0 && rename(draft.c_str(), path_.c_str()) == 0;
  if (!ok) {
    const int reason = errno;
    close(file);
    unlink(draft.c_str());
    errno = reason;
    Fail("cannot write anew");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  close(std::exchange(file_, file));
  num_bytes_ = num_bytes;
  unsynced_ = false;
  uncut_ = false;
  if (!SyncFolder(options_.folder)) Fail("cannot sync the folder of");
}

void StoreJournal::SyncEverySecond() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, std::chrono::seconds(1), [this] { return stop_; });
    if (!std::exchange(unsynced_, false)) continue;
    // A descriptor of its own: writers go on meanwhile, and Rewrite may close theirs.
    const int file = dup(file_);
    lock.unlock();
    if (file >= 0) {
      fdatasync(file);
      close(file);
    }
    lock.lock();
  }
}

void StoreJournal::Fail(absl::string_view what) const {
  const int reason = errno;
  const bool full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
  Throw(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kAborted, what,
        " the store's journal ", path_, ": ", std::strerror(reason));
}

}  // namespace weft
