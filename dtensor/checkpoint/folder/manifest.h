// The table of contents of a step: manifest.json.

#ifndef WEFT_DTENSOR_CHECKPOINT_FOLDER_MANIFEST_H_
#define WEFT_DTENSOR_CHECKPOINT_FOLDER_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/folder/tensor_place.h"

namespace weft {

// The version of the format that this Weft writes. It reads all up to it; a test keeps a folder of each.
inline constexpr int kCheckpointFormat = 1;

// A file of a step.
struct ManifestFile {
  int64_t num_bytes = 0;
  uint32_t header_crc32c = 0;  // of its bytes before the elements

  bool operator==(const ManifestFile&) const = default;
};

// What a step holds: all but the elements. A value; `==` compares all of it.
//
// Its size goes by the number of tensors, and some 70 bytes per file: who has saved which box of a tensor follows from
// how it lies (OwnedBoxes).
struct Manifest {
  int format = kCheckpointFormat;
  std::string weft;  // the version that wrote it
  int64_t step = 0;
  int64_t generation = 0;                      // how many times the job had been restarted
  int world = 1;                               // ranks
  std::vector<std::string> parts;              // of the state, by name
  std::map<std::string, TensorPlace> tensors;  // by name
  std::map<std::string, ManifestFile> files;   // by name in the folder
  std::vector<int64_t> refers_to;  // other steps, ascending, in whose files some of the elements lie
  std::map<std::string, std::string> texts;  // what the program saves beside tensors: its configuration

  bool operator==(const Manifest&) const = default;
};

// One line of JSON, which begins with the checksum of what comes after it.
// Errors: InvalidArgument for names and texts that are no UTF-8.
std::string FormatManifest(const Manifest& manifest);

// The inverse.
// Errors: DataLoss that names `path` and what is broken or missing; Unimplemented for a newer format than this Weft knows,
//         naming both, and for a dtype that safetensors files may have and Weft lacks.
Manifest ParseManifest(const std::string& path, absl::string_view text);

// Errors: InvalidArgument that names `what` and `name`, unless `text` is UTF-8: JSON can hold nothing else.
void RequireUtf8(absl::string_view what, absl::string_view name, absl::string_view text);

// "rank-00007.safetensors".
std::string RankFileName(int rank);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_MANIFEST_H_
