#include "tools/launcher/workers/worker_exit.h"

#include <string.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

// "signal 9 (SIGKILL)".
std::string SignalName(int signal) {
  const char* const name = sigabbrev_np(signal);
  return absl::StrCat("signal ", signal, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

}  // namespace

int WorkerExit::ExitCode() const {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string WorkerExit::What() const {
  if (stopped_by != 0) {
    return absl::StrCat("rank ", rank, " was stopped by ", SignalName(stopped_by), " for ",
                        static_cast<double>(stopped_for.count()) / 1000, " s");
  }
  if (!WIFSIGNALED(status)) return absl::StrCat("rank ", rank, " exited with code ", WEXITSTATUS(status));
  return absl::StrCat("rank ", rank, " was killed by ", SignalName(WTERMSIG(status)));
}

std::string FailureReport::ToString() const {
  std::string text = absl::StrCat("  rank   ", exit.rank, ", local rank ", exit.local_rank, " on ", host,
                                  "\n  pid    ", exit.pid, "\n  time   ", time);
  if (!log.empty()) absl::StrAppend(&text, "\n  logs   ", log);
  if (!message.empty()) absl::StrAppend(&text, "\n  error  ", message);
  const bool has_errors = !errors.empty();
  const std::string& tail = has_errors ? errors : output;
  if (tail.empty()) return absl::StrCat(text, "\n  it wrote nothing");
  absl::StrAppend(&text, "\n  the end of its ", has_errors ? "stderr:" : "stdout (its stderr is empty):");
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(tail, "\n"), '\n')) {
    absl::StrAppend(&text, "\n    ", line);
  }
  return text;
}

}  // namespace weft
