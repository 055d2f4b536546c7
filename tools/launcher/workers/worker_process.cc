#include "tools/launcher/workers/worker_process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/start_program.h"

namespace weft {
namespace {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    Throw(absl::StatusCode::kResourceExhausted, "cannot make a pipe for a worker: ", strerror(errno));
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace

WorkerProcess StartWorkerProcess(const std::vector<std::string>& command,
                                 const std::vector<std::string>& environment) {
  Pipe out = MakePipe();
  Pipe err = MakePipe();
  const pid_t pid = StartProgram(command, environment,
                                 {.leads_group = true,
                                  .default_signals = true,
                                  .empty_input = true,
                                  .out = out.write.get(),
                                  .err = err.write.get()});
  fcntl(out.read.get(), F_SETFL, O_NONBLOCK);
  fcntl(err.read.get(), F_SETFL, O_NONBLOCK);
  return {pid, std::move(out.read), std::move(err.read)};
}

}  // namespace weft
