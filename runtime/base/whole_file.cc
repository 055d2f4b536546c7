#include "runtime/base/whole_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

[[noreturn]] void ThrowCannotRead(const std::string& path, int reason) {
  const bool is_missing = reason == ENOENT || reason == ENOTDIR;
  Throw(is_missing ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument, "cannot read '", path,
        "': ", std::strerror(reason));
}

}  // namespace

std::string ReadWholeFile(const std::string& path) {
  constexpr size_t kChunk = size_t{1} << 18;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (file == nullptr) ThrowCannotRead(path, errno);
  std::string bytes;
  size_t num_read = 0;
  while (std::feof(file.get()) == 0) {
    bytes.resize(num_read + kChunk);
    errno = 0;
    num_read += std::fread(&bytes[num_read], 1, kChunk, file.get());
    if (std::ferror(file.get()) == 0) continue;
    if (errno != EINTR) ThrowCannotRead(path, errno);
    std::clearerr(file.get());
  }
  bytes.resize(num_read);
  return bytes;
}

}  // namespace weft
