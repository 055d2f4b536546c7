// One rank's file of a step: the boxes that it owns.

#ifndef WEFT_DTENSOR_CHECKPOINT_FOLDER_PIECE_FILE_H_
#define WEFT_DTENSOR_CHECKPOINT_FOLDER_PIECE_FILE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Elements that did not change since another step, whose file has them.
struct PieceReference {
  int64_t step = 0;
  std::string file;    // in that step's folder
  int64_t offset = 0;  // of the first element, from the file's beginning

  bool operator==(const PieceReference&) const = default;
};

// A box of a tensor, as a file has it. A value; `==` compares all of it.
struct PieceRecord {
  DType dtype = DType::kF32;
  ShardBox box;
  uint32_t crc32c = 0;                           // of the elements
  std::optional<uint64_t> crc64 = std::nullopt;  // likewise, of those that a later step may refer to
  int64_t offset = 0;                            // in this file, unless `at` says where
  std::optional<PieceReference> at = std::nullopt;

  int64_t num_bytes() const { return box.shape.num_elements() * ItemSize(dtype); }
  bool operator==(const PieceRecord&) const = default;
};
using PieceTable = std::map<std::string, PieceRecord>;  // by the tensor's name

// A piece to write.
struct PieceToSave {
  std::string name;
  PieceRecord record;  // dtype, box; the checksums, if `at` is given
  Tensor elements;     // row-major on the CPU; unused where `at` is given
};

// How to write.
struct PieceFileOptions {
  int64_t step = 0;
  int rank = 0;
  int world = 1;
  bool with_crc64 = false;
  double bytes_per_second = 0;  // 0: as fast as it goes
  std::stop_token stop = {};    // gives the file up, at any time and from any thread
  std::stop_token hurry = {};   // lifts bytes_per_second, likewise
};

// What has been written.
struct WrittenPieces {
  int64_t num_bytes = 0;
  uint32_t header_crc32c = 0;
  PieceTable table;
};

// What such a file begins with, up to its first element. The pieces have their checksums.
// Errors: as FormatSafetensorsHeader.
std::string FormatPieceHeader(const std::string& path, const std::vector<PieceToSave>& pieces,
                              const PieceFileOptions& options);

// Writes the file, a safetensors file of the pieces under the tensors' names, with their boxes and checksums as texts, and
// makes its contents durable, not its name.
// Cost:   one read of the elements for the checksums, one for the file.
// Errors: those of the file; Aborted soon after `options.stop`, which as `options.hurry` wakes what waits for the rate: a flush
//         that has begun comes to its end.
WrittenPieces WritePieces(Files& files, const std::string& path, const std::vector<PieceToSave>& pieces,
                          const PieceFileOptions& options);

// Reads its table.
// `header_crc32c`: if given, the checksum of the header is left there.
// Errors: DataLoss that names the file and what is broken; Unimplemented that names it, for a dtype of the format that Weft
//         lacks; those of the file.
PieceTable ReadPieceTable(FileReader& file, uint32_t* header_crc32c = nullptr);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_PIECE_FILE_H_
