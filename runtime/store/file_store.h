// A store in a file that all ranks see.

#ifndef WEFT_RUNTIME_STORE_FILE_STORE_H_
#define WEFT_RUNTIME_STORE_FILE_STORE_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "runtime/store/store.h"

namespace weft {

struct FileStoreOptions {
  // How long a call waits for another process that holds the folder's lock before it throws.
  std::chrono::milliseconds lock_timeout = std::chrono::seconds(30);
};

// A store in a folder that the processes share, on one machine or on a shared file system: one file a key,
// replaced by rename, under one lock (flock) for the folder. A process that is killed leaves neither a lock
// nor half a value. The constructor makes the folder; nothing removes it or what it holds, so a new job takes
// a new folder or a prefix of its own.
//
// The file system must have flock and show a rename to every process at once: local ones, Lustre (mounted
// with flock), GPFS, CephFS; NFS mounted with lookupcache=none.
//
// Cost:    two or three system calls per key and call; a caller that waits looks every 0.2 to 20 ms, more
//          seldom the longer it has waited.
// Threads: any, of any process.
// Errors:  as in store.h; Aborted, naming the folder and the system's reason, when the folder cannot be made,
//          locked (in lock_timeout), read or written; DataLoss for a file that no FileStore wrote.
class FileStore final : public Store {
 public:
  explicit FileStore(absl::string_view folder, const FileStoreOptions& options = {});

  void Set(absl::string_view key, absl::string_view value) override;
  std::string Get(absl::string_view key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> TryGet(absl::string_view key) override;
  int64_t Add(absl::string_view key, int64_t amount) override;
  void Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) override;
  bool Check(absl::Span<const std::string> keys) override;
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override;
  bool Delete(absl::string_view key) override;

 private:
  class Lock;

  // These want the lock held, but for Read.
  std::optional<std::string> Read(absl::string_view key) const;
  void Write(absl::string_view key, absl::string_view value) const;
  std::vector<std::string> Missing(absl::Span<const std::string> keys) const;

  std::string PathOf(absl::string_view key) const;
  // Throws Aborted, or ResourceExhausted for a full disk, with errno's reason.
  [[noreturn]] void Fail(absl::string_view what, absl::string_view key = "") const;

  const std::string folder_;
  const FileStoreOptions options_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_FILE_STORE_H_
