#include "runtime/data/dataset/token_file_windows.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/data/dataset/token_windows.h"

namespace weft {
namespace {

int64_t BytesOf(TokenWidth width) { return width == TokenWidth::k16 ? 2 : 4; }

// Closes a file unless it is taken.
class FileGuard {
 public:
  explicit FileGuard(int file) : file_(file) {}
  ~FileGuard() {
    if (file_ >= 0) close(file_);
  }
  FileGuard(const FileGuard&) = delete;
  FileGuard& operator=(const FileGuard&) = delete;
  int get() const { return file_; }
  int Take() { return std::exchange(file_, -1); }

 private:
  int file_;
};

// Reads `count` bytes at `offset`.
void ReadAt(int file, int64_t offset, int64_t count, uint8_t* to) {
  int64_t done = 0;
  while (done < count) {
    const ssize_t got = pread(file, to + done, static_cast<size_t>(count - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Throw(absl::StatusCode::kDataLoss, "cannot be read: ", std::strerror(errno));
    if (got == 0) {
      Throw(absl::StatusCode::kDataLoss, "the file ends at byte ", offset + done, ": expected ", count,
            " bytes from byte ", offset, " on");
    }
    done += got;
  }
}

}  // namespace

TokenFileWindows::TokenFileWindows(const std::string& path, const TokenFileOptions& options)
    : path_(path), options_(options) {
  if (options_.stride == 0) options_.stride = options_.context;
  WEFT_REQUIRE(options_.context >= 1, "token windows: context: expected at least 1, got ", options_.context);
  WEFT_REQUIRE(options_.stride >= 1, "token windows: stride: expected at least 0, got ", options_.stride);
  WEFT_REQUIRE(options_.header_bytes >= 0, "token windows: header: expected at least 0 bytes, got ",
               options_.header_bytes);
  FileGuard file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) Throw(absl::StatusCode::kNotFound, "'", path, "': ", std::strerror(errno));
  struct stat status;
  WEFT_REQUIRE(fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), "'", path,
               "': expected a regular file");
  const int64_t num_bytes = static_cast<int64_t>(status.st_size) - options_.header_bytes;
  const int64_t width = BytesOf(options_.width);
  WEFT_REQUIRE(num_bytes >= 0 && num_bytes % width == 0, "'", path, "': its ", status.st_size,
               " bytes are not a header of ", options_.header_bytes, " and tokens of ", width, " bytes");
  const int64_t num_tokens = num_bytes / width;
  WEFT_REQUIRE(num_tokens > options_.context, "token windows: ", num_tokens, " tokens of '", path,
               "' are too few: a sample of context ", options_.context, " takes ", options_.context + 1);
  num_samples_ = (num_tokens - options_.context - 1) / options_.stride + 1;
  fields_ = WindowFields(options_.context);
  file_ = file.Take();
}

TokenFileWindows::~TokenFileWindows() { close(file_); }

void TokenFileWindows::Read(int64_t index, absl::Span<const FieldBytes> fields) const {
  const absl::Span<int32_t> inputs = ElementsOf<int32_t>(fields[0]);
  const absl::Span<int32_t> targets = ElementsOf<int32_t>(fields[1]);
  const int64_t width = BytesOf(options_.width);
  std::vector<uint8_t> bytes(static_cast<size_t>((options_.context + 1) * width));
  ReadAt(file_, options_.header_bytes + index * options_.stride * width, static_cast<int64_t>(bytes.size()),
         bytes.data());
  for (int64_t t = 0; t <= options_.context; ++t) {
    uint32_t token = 0;
    for (int64_t byte = width - 1; byte >= 0; --byte) token = token << 8 | bytes[t * width + byte];
    if (token > 0x7fffffffu) Throw(absl::StatusCode::kDataLoss, "token ", token, " is not below 2^31");
    if (t < options_.context) inputs[t] = static_cast<int32_t>(token);
    if (t > 0) targets[t - 1] = static_cast<int32_t>(token);
  }
}

std::string TokenFileWindows::NameOf(int64_t index) const {
  const int64_t start = index * options_.stride;
  return absl::StrCat("'", path_, "', tokens [", start, ", ", start + options_.context + 1, ")");
}

}  // namespace weft
