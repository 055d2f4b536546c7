// What checkpoints ask of a file system, so that tests can crash one.

#ifndef WEFT_DTENSOR_CHECKPOINT_FILES_FILES_H_
#define WEFT_DTENSOR_CHECKPOINT_FILES_FILES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// A file that is written from its beginning to its end. Let go of before Close, what it holds is undefined.
// Errors: ResourceExhausted if the disk is full, FailedPrecondition if it fails, naming the path.
class FileWriter {
 public:
  virtual ~FileWriter() = default;
  // Appends the first bytes of `data`; returns how many, at least one and maybe fewer than all.
  virtual int64_t Write(const void* data, int64_t num_bytes) = 0;
  // What has been written outlives a crash of the machine from here on; the file's name may not.
  virtual void Sync() = 0;
  virtual void Close() = 0;
};

// A file that is read at any place.
// Threads: any.
class FileReader {
 public:
  virtual ~FileReader() = default;
  virtual const std::string& path() const = 0;
  virtual int64_t num_bytes() const = 0;
  // Reads into `data`; returns how many bytes, fewer than `num_bytes` only where the file ends or maybe by chance,
  // 0 only at its end.
  // Errors: FailedPrecondition naming the path.
  virtual int64_t ReadAt(int64_t offset, void* data, int64_t num_bytes) = 0;
};

// A file that is held: no other object of this process or another gets it until this one is destroyed, or the process ends,
// however it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// A file system. What is written, and names, may be lost or kept in any combination when the machine crashes, until
// FileWriter::Sync and SyncFolder: whatever is to be found afterwards is made durable by them, in the right order.
//
// Threads: any.
// Errors:  NotFound for a path that is not there; ResourceExhausted if the disk is full; FailedPrecondition for all else,
//          such as a disk that fails or a folder that may not be written: it says nothing of what the files hold. All
//          name the path.
class Files {
 public:
  virtual ~Files() = default;

  // A new file, in the place of one that is there.
  virtual std::unique_ptr<FileWriter> Create(const std::string& path) = 0;
  // Errors: also FailedPrecondition for a folder, a pipe and what else is no file to read at any place, at once.
  virtual std::unique_ptr<FileReader> Open(const std::string& path) = 0;
  // A folder in one that is there. Returns whether it has made it: nothing, if it is there already.
  virtual bool MakeFolder(const std::string& path) = 0;
  // Which names stand in the folder outlives a crash from here on.
  virtual void SyncFolder(const std::string& path) = 0;
  // At once, within one folder. A file that is there is replaced; a folder that is there and not empty is an error.
  virtual void Rename(const std::string& from, const std::string& to) = 0;
  // Names of the files and folders in a folder, in alphabetical order.
  virtual std::vector<std::string> List(const std::string& folder) = 0;
  // A file, a symbolic link, or a folder that is empty.
  virtual void Remove(const std::string& path) = 0;
  // Whether it is a folder, and not a symbolic link to one.
  virtual bool IsFolder(const std::string& path) = 0;
  // The size of a file; nothing, if there is none of that path, or it is a folder.
  virtual std::optional<int64_t> SizeOf(const std::string& path) = 0;
  // Holds the file of that path, which is made if it is not there, and writes `text` into it; null, if somebody else does. A file
  // system without locks says yes to everybody, and makes no file.
  virtual std::unique_ptr<FileLock> TryLock(const std::string& path, absl::string_view text) {
    (void)path, (void)text;
    return std::make_unique<FileLock>();
  }
};

// Those of this machine.
std::shared_ptr<Files> MakeDiskFiles();

// All of the bytes.
// Errors: those of the file; DataLoss if it ends before.
void WriteAll(FileWriter& file, const void* data, int64_t num_bytes);
void ReadAll(FileReader& file, int64_t offset, void* data, int64_t num_bytes);

// A small file, whole.
// Errors: those of the file; DataLoss if it is larger than `max_bytes`.
std::string ReadText(Files& files, const std::string& path, int64_t max_bytes);
// Writes one and makes its contents durable.
void WriteText(Files& files, const std::string& path, absl::string_view text);

// Makes the folder and those above it that are not there; names of those that it makes are durable then.
void MakeFolders(Files& files, const std::string& path);

// Removes a folder and all that is in it; nothing, if it is not there, or others are removing it. A symbolic link goes, and
// not what it leads to.
// Errors: the first, once all that can be removed is.
void RemoveFolder(Files& files, const std::string& path);

// "folder/name"; the name alone in the folder "".
std::string JoinPath(absl::string_view folder, absl::string_view name);
// "a" of "a/b", "" of "b", "/" of "/b".
std::string FolderOf(absl::string_view path);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FILES_FILES_H_
