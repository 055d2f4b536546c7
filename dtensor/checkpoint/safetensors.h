#ifndef WEFT_DTENSOR_CHECKPOINT_SAFETENSORS_H_
#define WEFT_DTENSOR_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/safetensors_header.h"
#include "dtensor/checkpoint/tensor_source.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/tensor.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// The safetensors file format: eight bytes with the length of a JSON header, the header (dtype, shape and
// byte range of every tensor, and a map of texts), then the elements, row-major and little-endian. Readable
// by other frameworks.
// Source: the format's README at huggingface/safetensors.

// Writes one file, tensor by tensor in the order of `entries`. The file appears under its name only in
// Finish, whole: until then, and after an error, whatever stood there stays, and no other file is left. A process that is killed
// leaves the path with `.tmp` behind it, which the next writer of the path writes over.
class SafetensorsWriter {
 public:
  // Errors: InvalidArgument naming the path if it cannot be written, something that is no file stands there (a device, a pipe),
  //         another writer is at it, or for entries and texts of which FormatSafetensorsHeader makes no header.
  SafetensorsWriter(std::string path, const std::vector<SafetensorsEntry>& entries,
                    const SafetensorsMetadata& metadata);

  // The next entry's elements: a CPU tensor of its type.
  // Errors: InvalidArgument if it is another type or one too many; ResourceExhausted if the disk is full.
  void Write(const Tensor& tensor);

  // Flushes the file to disk, gives it its name, and flushes the folder, so that the name outlives a crash of
  // the machine.
  // Errors: InvalidArgument if entries are missing; as Write.
  void Finish();

 private:
  struct CloseAndRemove {
    std::string path;
    void operator()(std::FILE* file) const;
  };

  void WriteBytes(const void* data, int64_t num_bytes);
  [[noreturn]] void ThrowCannotWrite() const;

  std::string path_;
  std::vector<SafetensorsEntry> entries_;
  size_t next_ = 0;
  std::unique_ptr<std::FILE, CloseAndRemove> file_;  // under a temporary name
};

// Reads a file, whole tensors or boxes of them: but for those of dtypes that Weft lacks, such as F8_E4M3.
// Threads: one at a time.
class SafetensorsReader : public TensorSource {
 public:
  // Errors: NotFound; DataLoss that names the path and what is broken, as ReadSafetensorsHeader.
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const override { return path_; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  const std::vector<SafetensorsEntry>& entries() const {
    return header_.entries;
  }  // in the order of the elements

  // Those tensors: what the format calls their dtypes, by name.
  const std::map<std::string, std::string>& Skipped() const { return header_.skipped; }

  std::vector<std::string> Names() const override;
  // Errors: Unimplemented for one that is skipped, naming its dtype; so do Read and ReadInto.
  const TensorType* Find(absl::string_view name) const override;

 private:
  void DoRead(const std::string& name, const ShardBox& box, char* out) override;

  std::string path_;
  std::unique_ptr<FileReader> file_;
  SafetensorsHeader header_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_SAFETENSORS_H_
