// A file system in memory that remembers what a crash may lose, and that fails when it is told to.

#ifndef WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_CRASH_FILES_H_
#define WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_CRASH_FILES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/checkpoint/files/files.h"

namespace weft {

// Files and folders by number; names are in their folders. Folder 0 is the root, "".
struct DiskImage {
  struct Node {
    bool is_folder = false;
    std::string bytes = {};                 // of a file
    std::map<std::string, int> names = {};  // of a folder
  };
  std::map<int, Node> nodes = {{0, {.is_folder = true, .bytes = "", .names = {}}}};
};

// Something that was done to the disk. A crash keeps any of those that no sync has made durable, and loses the others.
struct DiskOp {
  enum Kind {
    kWrite,       // `bytes` at `offset` of file `node`
    kTruncate,    // file `node` is empty
    kNames,       // in folder `node`: `changes`, all or none of them
    kSyncFile,    // what came before in file `node` is durable
    kSyncFolder,  // what came before in folder `node` is
  };
  Kind kind = kWrite;
  int node = 0;
  int64_t offset = 0;
  std::string bytes = {};
  struct Change {
    std::string name;
    int to = -1;  // -1: the name goes
    bool is_folder = false;
  };
  std::vector<Change> changes = {};
  std::string path = {};  // for people and for mutants
};

// Threads: any.
class CrashFiles final : public Files {
 public:
  CrashFiles() = default;
  // A disk as a crash has left it.
  explicit CrashFiles(DiskImage image);

  std::unique_ptr<FileWriter> Create(const std::string& path) override;
  std::unique_ptr<FileReader> Open(const std::string& path) override;
  bool MakeFolder(const std::string& path) override;
  void SyncFolder(const std::string& path) override;
  void Rename(const std::string& from, const std::string& to) override;
  std::vector<std::string> List(const std::string& folder) override;
  void Remove(const std::string& path) override;
  bool IsFolder(const std::string& path) override;
  std::optional<int64_t> SizeOf(const std::string& path) override;

  // Everything so far is durable; the log begins here.
  DiskImage StartLog();
  std::vector<DiskOp> log() const;
  DiskImage image() const;

  // The operation number `index` from now on that changes the disk, from 0, fails with this code, and all later ones do if
  // `from_then_on`.
  void FailAt(int64_t index, absl::StatusCode code, bool from_then_on = false);
  void FailNever();
  // Operations that changed the disk since FailAt or FailNever.
  int64_t num_changes() const;
  // Files whose paths have this in them cannot be opened, for this reason; "": all can.
  void FailReads(const std::string& path_part, absl::StatusCode code);
  // Files whose paths have this in them cannot be removed; "": all can.
  void FailRemoves(const std::string& path_part);
  // Writes take at most so many bytes at once; 0: all.
  void set_longest_write(int64_t num_bytes);
  // Changes a byte of a file.
  void Damage(const std::string& path, int64_t offset);
  void Replace(const std::string& path, const std::string& bytes);
  std::string BytesOf(const std::string& path);

 private:
  friend class CrashWriter;

  int Find(const std::string& path) const;      // -1: not there
  int FolderAt(const std::string& path) const;  // throws NotFound
  void Do(DiskOp op, const std::string& path);  // logs and applies it, or fails
  int64_t Write(int node, const std::string& path, const void* data, int64_t num_bytes);
  void SyncFile(int node, const std::string& path);
  int Add(const std::string& path, bool is_folder);

  mutable std::mutex mutex_;
  DiskImage image_;
  int next_ = 1;
  std::vector<DiskOp> log_;
  int64_t num_changes_ = 0;
  int64_t fail_at_ = -1;
  bool fail_from_then_on_ = false;
  absl::StatusCode fail_code_ = absl::StatusCode::kDataLoss;
  int64_t longest_write_ = 0;
  std::string unreadable_;
  absl::StatusCode unreadable_code_ = absl::StatusCode::kDataLoss;
  std::string unremovable_;
};

// Does it, whatever of its names is there.
void Apply(const DiskOp& op, DiskImage* image);

// Calls `visit` with disks that a crash may leave after the first `num_done` operations of `log`, which began at `before`:
// one for every subset of what is not durable then, if that is at most 12 operations; otherwise for `samples` subsets,
// none and all among them, drawn by `seed`.
void VisitCrashes(const DiskImage& before, const std::vector<DiskOp>& log, size_t num_done, uint64_t seed,
                  int samples, const std::function<void(const DiskImage& image)>& visit);

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_CRASH_FILES_H_
