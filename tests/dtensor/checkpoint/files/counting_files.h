#ifndef WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_COUNTING_FILES_H_
#define WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_COUNTING_FILES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "tests/dtensor/checkpoint/files/forwarding_files.h"

namespace weft {

// One call that has read something of a file.
struct FileRead {
  std::string path;
  int64_t offset = 0;
  int64_t num_bytes = 0;

  auto operator<=>(const FileRead&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const FileRead& read) {
  return out << read.path << ": " << read.num_bytes << " bytes from " << read.offset << " on";
}

// The disk's files; notes what is read of those that ranks have written.
// Threads: one.
class CountingFiles final : public ForwardingFiles {
 public:
  const std::vector<FileRead>& reads() const { return reads_; }
  int64_t num_bytes() const {
    int64_t sum = 0;
    for (const FileRead& read : reads_) sum += read.num_bytes;
    return sum;
  }

  std::unique_ptr<FileReader> Open(const std::string& path) override {
    std::unique_ptr<FileReader> file = files().Open(path);
    if (path.find("/rank-") == std::string::npos) return file;
    return std::make_unique<Reader>(std::move(file), &reads_);
  }

 private:
  class Reader final : public FileReader {
   public:
    Reader(std::unique_ptr<FileReader> file, std::vector<FileRead>* reads)
        : file_(std::move(file)), reads_(reads) {}
    const std::string& path() const override { return file_->path(); }
    int64_t num_bytes() const override { return file_->num_bytes(); }
    int64_t ReadAt(int64_t offset, void* data, int64_t num_bytes) override {
      const int64_t done = file_->ReadAt(offset, data, num_bytes);
      reads_->push_back({path(), offset, done});
      return done;
    }

   private:
    const std::unique_ptr<FileReader> file_;
    std::vector<FileRead>* const reads_;
  };

  std::vector<FileRead> reads_;
};

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_COUNTING_FILES_H_
