#include "dtensor/checkpoint/files/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace weft {

size_t MostOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / 16, 2, 256));
}

OpenFiles::OpenFiles(std::shared_ptr<Files> files, size_t most)
    : files_(std::move(files)), most_(std::max<size_t>(most, 1)) {}

std::shared_ptr<FileReader> OpenFiles::Get(const std::string& path) {
  const auto known =
      std::find_if(open_.begin(), open_.end(), [&](const auto& file) { return file->path() == path; });
  if (known != open_.end()) {
    open_.splice(open_.begin(), open_, known);
    return open_.front();
  }
  // Before the next is opened: it may be the one too many.
  while (open_.size() >= most_) open_.pop_back();
  open_.push_front(files_->Open(path));
  return open_.front();
}

}  // namespace weft
