// What a store has been told, on its disk.

#ifndef WEFT_RUNTIME_STORE_STORE_JOURNAL_H_
#define WEFT_RUNTIME_STORE_STORE_JOURNAL_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"

namespace weft {

struct StoreJournalOptions {
  std::string folder = {};
  // When records are brought to the disk itself. In both cases they are the system's when Append returns, so the death of
  // this process, by whatever signal, loses none.
  //
  //   false  within a second, by a thread: a machine that loses its power loses the last second at most
  //   true   before Append returns: nothing is lost then either, at the disk's cost per write (1 to 10 ms)
  bool sync_each = false;
};

// Records on a disk, in the order in which they were appended: the memory of a store that restarts in place.
//
// The file FOLDER/journal is eight bytes that say what it is, then per record its number of bytes and its CRC-32C (both
// 32 bits, little-endian) and the record. What a process that was killed, or a machine that lost its power, left half
// written at the end is cut; a damaged record that whole ones follow is an error, since what was acknowledged would be lost.
//
// Threads: one at a time.
// Errors:  Aborted, naming the file and the system's reason; ResourceExhausted for a full disk: then nothing of the record
//          is kept. FailedPrecondition from the constructor if another process has the folder; DataLoss for what is no
//          journal, or a damaged one.
class StoreJournal {
 public:
  // Reads what is there, record by record, and goes on behind it.
  StoreJournal(const StoreJournalOptions& options,
               const std::function<void(absl::string_view record)>& replay);
  StoreJournal(const StoreJournal&) = delete;
  StoreJournal& operator=(const StoreJournal&) = delete;
  ~StoreJournal();

  // Shape: a record has 1 byte to kMaxRecordBytes.
  void Append(absl::string_view record);

  // Replaces all records by those that `write` passes to its argument. A process that is killed meanwhile leaves the old
  // ones or the new ones, never a mixture.
  // Cost: writes and syncs the new file while the caller waits.
  using Emit = std::function<void(absl::string_view record)>;
  void Rewrite(const std::function<void(const Emit&)>& write);

  int64_t num_bytes() const { return num_bytes_; }
  int64_t num_cut_bytes() const { return num_cut_bytes_; }  // by the constructor

  // What a record takes in the file.
  static int64_t BytesOf(absl::string_view record);

  static constexpr int64_t kMaxRecordBytes = int64_t{64} << 20;

 private:
  void Lock();
  void Replay(const std::function<void(absl::string_view record)>& replay);
  void SyncEverySecond();
  // Takes back what an append that failed has left; that it could not is remembered.
  bool Cut();
  [[noreturn]] void Fail(absl::string_view what) const;

  const StoreJournalOptions options_;
  const std::string path_;
  int lock_ = -1;
  int file_ = -1;
  int64_t num_bytes_ = 0;
  int64_t num_cut_bytes_ = 0;

  std::mutex mutex_;  // of file_ and what follows, for the thread
  std::condition_variable changed_;
  bool unsynced_ = false;
  bool uncut_ = false;  // behind num_bytes_ lies a part of a record
  bool stop_ = false;
  std::thread syncer_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_STORE_JOURNAL_H_
