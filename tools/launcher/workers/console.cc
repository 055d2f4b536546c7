#include "tools/launcher/workers/console.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {

Console::Console() {
  out_is_terminal_ = isatty(1) == 1;
  struct stat out = {};
  struct stat err = {};
  err_is_out_ = fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev &&
                out.st_ino == err.st_ino && out.st_rdev == err.st_rdev;
}

void Console::Say(absl::string_view text) {
  err().Append(absl::StrCat("weft_run: ", text, "\n"));
  WriteSome();
}

void Console::AddPollFds(std::vector<pollfd>* fds) const {
  for (const OutputQueue* queue : {&out_, &err_}) {
    if (!queue->empty()) fds->push_back({queue->fd(), POLLOUT, 0});
  }
}

void Console::WriteSome() {
  out_.WriteSome();
  const std::string problem = out_.TakeProblem();
  if (!problem.empty() && !err_is_out_ && !std::exchange(said_lost_, true)) {
    err_.Append(
        absl::StrCat("weft_run: stdout cannot be written, and what goes there is lost: ", problem, "\n"));
  }
  err_.WriteSome();
}

}  // namespace weft
