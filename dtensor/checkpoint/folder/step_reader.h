// Reads the tensors of a step of a checkpoint folder, on any mesh.

#ifndef WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_READER_H_
#define WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/files/open_files.h"
#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/tensor_source.h"

namespace weft {

// Of each box that is asked for, reads from the files of the ranks that saved parts of it those parts alone
// (box_read.h); opens a file when it needs it, and keeps as many
// open as the process can have (open_files.h). Where all of a saved piece is read, its checksum is compared; others
// are for CheckPieces.
class StepReader : public TensorSource {
 public:
  // Errors: as ReadManifest.
  StepReader(std::shared_ptr<Files> files, const std::string& folder, int64_t step);

  const Manifest& manifest() const { return manifest_; }

  const std::string& path() const override { return path_; }
  std::vector<std::string> Names() const override;
  const TensorType* Find(absl::string_view name) const override;
  void CheckPieces(const std::string& name, const std::vector<ShardBox>& boxes, const Share& share) override;
  int64_t num_bytes_checked() const { return num_bytes_checked_; }  // of elements, by CheckPieces

 private:
  void DoRead(const std::string& name, const ShardBox& box, char* out) override;

  // The file of a rank, and its table.
  struct RankFile {
    std::string path;
    PieceTable table;
  };
  const RankFile& FileOf(int rank);
  // A piece of a tensor, and the file with its elements, from `offset` on.
  struct OpenPiece {
    std::shared_ptr<FileReader> file;
    int64_t offset = 0;
    uint32_t crc32c = 0;
  };
  OpenPiece PieceOf(const std::string& name, const OwnedBox& owned);
  const std::vector<OwnedBox>& BoxesOf(const std::string& name);
  // Errors: DataLoss, unless `crc` is the piece's.
  void RequireCrc(const std::string& name, const OpenPiece& piece, uint32_t crc) const;

  const std::shared_ptr<Files> files_;
  const std::string folder_;
  const std::string path_;  // of the step
  const Manifest manifest_;
  std::map<int, RankFile> rank_files_;
  OpenFiles open_;                                      // of this step and others
  std::map<std::string, std::vector<OwnedBox>> boxes_;  // by tensor
  int64_t num_bytes_checked_ = 0;
  int64_t num_unread_ = 0;  // pieces of which CheckPieces has heard
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_READER_H_
