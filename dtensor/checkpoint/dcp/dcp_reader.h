// Reads the folders that torch.distributed.checkpoint.save writes.

#ifndef WEFT_DTENSOR_CHECKPOINT_DCP_DCP_READER_H_
#define WEFT_DTENSOR_CHECKPOINT_DCP_DCP_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/dcp/dcp_table.h"
#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/files/open_files.h"
#include "dtensor/checkpoint/tensor_source.h"
#include "mesh/redistribution/region.h"
#include "runtime/tensor/shape.h"

namespace weft {

// Tensors under the names that PyTorch gave them ("model.blocks.0.weight"), whatever mesh saved them. What else the folder
// has is of two kinds: numbers of 64 bits and texts, which Values gives; all other objects, whose names Skipped gives: those
// of classes, whole numbers of more bits, pickles of more than 1 MiB.
//
// Names, dims and dtypes are PyTorch's: RestoreOptions::rename goes from the one to the other.
class DcpReader : public TensorSource {
 public:
  // Errors: NotFound without a `.metadata`; DataLoss naming what is broken; Unimplemented for classes that a table of
  //         tensors does not need (no code of the folder runs), dtypes that Weft lacks, and transformed files.
  DcpReader(std::shared_ptr<Files> files, const std::string& folder);

  // Numbers, as text, and texts, by name.
  const std::map<std::string, std::string>& Values() const { return values_; }
  const std::vector<std::string>& Skipped() const { return skipped_; }

  const std::string& path() const override { return folder_; }
  std::vector<std::string> Names() const override;
  const TensorType* Find(absl::string_view name) const override;

 private:
  // Errors: also Unimplemented for big-endian elements; DataLoss that names the box where pieces overlap, or leave a hole, in
  //         what is read.
  void DoRead(const std::string& name, const ShardBox& box, char* out) override;

  // A piece's elements, as its archive describes them.
  struct Elements {
    int64_t file_offset = 0;  // of the first
    Shape strides;            // in elements
    int64_t num_bytes = 0;    // from the first to the last
  };

  std::shared_ptr<FileReader> Opened(const std::string& file);
  void ReadObject(const std::string& name, const DcpPlace& place);
  Elements Describe(const DcpTensor& tensor, const DcpPiece& piece);
  void ReadPiece(const DcpTensor& tensor, const DcpPiece& piece, const Region& wanted, char* out);

  const std::shared_ptr<Files> files_;
  const std::string folder_;
  DcpTable table_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> skipped_;
  OpenFiles open_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_DCP_DCP_READER_H_
