#include "examples/stop_signal.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "runtime/base/env.h"
#include "runtime/launch/launch_environment.h"

namespace weft {
namespace {

constexpr int64_t kOneWishNs = 1'000'000'000;

// A handler has nothing but these. Lock-free, so that it may write what other threads read.
constinit std::atomic<int> stop_signal = 0;
constinit std::atomic<int64_t> stopped_at_ns = 0;
constinit std::atomic<bool> launcher_counts = false;
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void AskToStop(int signal) {
  const int error = errno;
  if (stop_signal == 0) {
    stopped_at_ns = NowNs();
    stop_signal = signal;
  } else if (!launcher_counts && NowNs() - stopped_at_ns >= kOneWishNs) {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    raise(signal);  // it comes when this handler has returned
  }
  errno = error;
}

}  // namespace

void CatchStopSignals() {
  const auto launched = ParseLaunchEnvironment(LauncherVariables());
  launcher_counts = launched && launched->agent_store;
  struct sigaction action = {};
  action.sa_handler = AskToStop;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

int StopSignal() { return stop_signal; }

}  // namespace weft
