// Other files, for those that differ from them in a few calls.

#ifndef WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_FORWARDING_FILES_H_
#define WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_FORWARDING_FILES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/files/files.h"

namespace weft {

// Every call is the other's, but for locks: as on a file system that has none, everybody gets them.
class ForwardingFiles : public Files {
 public:
  explicit ForwardingFiles(std::shared_ptr<Files> files = MakeDiskFiles()) : files_(std::move(files)) {}

  std::unique_ptr<FileWriter> Create(const std::string& path) override { return files_->Create(path); }
  std::unique_ptr<FileReader> Open(const std::string& path) override { return files_->Open(path); }
  bool MakeFolder(const std::string& path) override { return files_->MakeFolder(path); }
  void SyncFolder(const std::string& path) override { files_->SyncFolder(path); }
  void Rename(const std::string& from, const std::string& to) override { files_->Rename(from, to); }
  std::vector<std::string> List(const std::string& folder) override { return files_->List(folder); }
  void Remove(const std::string& path) override { files_->Remove(path); }
  bool IsFolder(const std::string& path) override { return files_->IsFolder(path); }
  std::optional<int64_t> SizeOf(const std::string& path) override { return files_->SizeOf(path); }

 protected:
  Files& files() { return *files_; }

 private:
  const std::shared_ptr<Files> files_;
};

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_FORWARDING_FILES_H_
