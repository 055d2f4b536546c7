// Reads the tensors of a step of a checkpoint folder, on any mesh.

#ifndef WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_READER_H_
#define WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/tensor_source.h"

namespace weft {

// Of each box that is asked for, reads from the files of the ranks that saved parts of it those parts alone
// (box_read.h); opens a file when it first needs it. Where all of a saved piece is read, its checksum is compared.
class StepReader : public TensorSource {
 public:
  // Errors: as ReadManifest.
  StepReader(std::shared_ptr<Files> files, const std::string& folder, int64_t step);

  const Manifest& manifest() const { return manifest_; }
  int64_t num_bytes_read() const { return num_bytes_read_; }  // of elements that were asked for

  const std::string& path() const override { return path_; }
  std::vector<std::string> Names() const override;
  const TensorType* Find(absl::string_view name) const override;

 private:
  void DoRead(const std::string& name, const ShardBox& box, char* out) override;

  struct OpenFile {
    std::unique_ptr<FileReader> file;
    PieceTable table;
  };
  // The file of a rank, and its table.
  const OpenFile& FileOf(int rank);
  // A file that a piece lies in, of this step or another.
  FileReader& Opened(const std::string& path);

  const std::shared_ptr<Files> files_;
  const std::string folder_;
  const std::string path_;  // of the step
  const Manifest manifest_;
  std::map<int, OpenFile> open_;
  std::map<std::string, std::unique_ptr<FileReader>> others_;
  std::map<std::string, std::vector<OwnedBox>> boxes_;  // by tensor
  int64_t num_bytes_read_ = 0;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_STEP_READER_H_
