// A snapshot in memory as a step of a checkpoint folder.

#ifndef WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_FILES_H_
#define WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_FILES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// A rank's file, of which memory has the elements before the head: `bytes`, of which the last `header_bytes` are the head.
std::unique_ptr<FileReader> MakePieceReader(const std::string& path, const Tensor& bytes,
                                            int64_t header_bytes);

// Files that lie in memory, to be read alone: what StepReader opens.
// Errors: NotFound for what has not been added; FailedPrecondition for what would write.
class SnapshotFiles final : public Files {
 public:
  // As MakePieceReader.
  void Add(const std::string& path, const Tensor& bytes, int64_t header_bytes);
  void AddText(const std::string& path, const std::string& text);

  std::unique_ptr<FileWriter> Create(const std::string& path) override;
  std::unique_ptr<FileReader> Open(const std::string& path) override;
  bool MakeFolder(const std::string& path) override;
  void SyncFolder(const std::string& path) override;
  void Rename(const std::string& from, const std::string& to) override;
  std::vector<std::string> List(const std::string& folder) override;
  void Remove(const std::string& path) override;
  bool IsFolder(const std::string& path) override;
  std::optional<int64_t> SizeOf(const std::string& path) override;

 private:
  struct Content {
    Tensor bytes;
    int64_t header_bytes = 0;
  };
  std::map<std::string, Content> contents_;
};

// The step that they hold. All of it was checked when it was chosen: pieces that are not read whole are not read again.
class SnapshotReader final : public StepReader {
 public:
  using StepReader::StepReader;
  void CheckPieces(const std::string&, const std::vector<ShardBox>&, const Share&) override {}
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_MEMORY_SNAPSHOT_FILES_H_
