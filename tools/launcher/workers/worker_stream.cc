#include "tools/launcher/workers/worker_stream.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

std::string WithPrefix(const std::string& prefix, absl::string_view line) {
  if (prefix.empty()) return std::string(line);
  return absl::StrCat(prefix, line, absl::EndsWith(line, "\n") ? "" : "\n");
}

}  // namespace

WorkerStream::WorkerStream(FileDescriptor pipe, StreamRoute route)
    : pipe_(std::move(pipe)), route_(std::move(route)) {}

bool WorkerStream::ReadSome() {
  if (!pipe_.open()) return false;
  std::vector<char> bytes(kMaxLineBytes);
  const ssize_t count = read(pipe_.get(), bytes.data(), bytes.size());
  if (count > 0) {
    Feed(absl::string_view(bytes.data(), static_cast<size_t>(count)));
    return true;
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  Finish();
  return false;
}

void WorkerStream::ReadAll() {
  // A pipe holds 64 KiB, a MiB at most: what is more is from somebody who goes on writing.
  for (int i = 0; i < 64 && ReadSome(); ++i) {
  }
}

void WorkerStream::Finish() {
  if (!partial_.empty()) Pass(std::exchange(partial_, ""));
  pipe_.Close();
}

std::string WorkerStream::Tail() const { return absl::StrCat(absl::StrJoin(tail_, ""), partial_); }

void WorkerStream::Feed(absl::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t size = end == absl::string_view::npos ? bytes.size() : end + 1;
    absl::StrAppend(&partial_, bytes.substr(0, size));
    bytes.remove_prefix(size);
    if (end != absl::string_view::npos || partial_.size() >= kMaxLineBytes) Pass(std::exchange(partial_, ""));
  }
}

void WorkerStream::Pass(absl::string_view line) {
  if (route_.console != nullptr) route_.console->Append(WithPrefix(route_.console_prefix, line));
  if (route_.log.open()) Log(WithPrefix(route_.log_prefix, line));
  Keep(line);
}

void WorkerStream::Keep(absl::string_view line) {
  tail_.emplace_back(line);
  tail_bytes_ += line.size();
  while (tail_.size() > 1 && (tail_.size() > kTailLines || tail_bytes_ > kTailBytes)) {
    tail_bytes_ -= tail_.front().size();
    tail_.pop_front();
  }
}

void WorkerStream::Log(const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(route_.log.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      log_problem_ = strerror(errno);
      route_.log.Close();
      return;
    }
    written += static_cast<size_t>(count);
  }
}

}  // namespace weft
