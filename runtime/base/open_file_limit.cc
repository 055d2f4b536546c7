#include "runtime/base/open_file_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace weft {
namespace {

// A container's hard limit may be 2^30, and some programs close, one by one, whatever they may have open.
constexpr rlim_t kMost = rlim_t{1} << 20;

}  // namespace

void RaiseOpenFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kMost);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return;  // as it was
}

}  // namespace weft
