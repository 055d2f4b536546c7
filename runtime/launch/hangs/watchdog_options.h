#ifndef WEFT_RUNTIME_LAUNCH_HANGS_WATCHDOG_OPTIONS_H_
#define WEFT_RUNTIME_LAUNCH_HANGS_WATCHDOG_OPTIONS_H_

#include <chrono>
#include <functional>
#include <string>

namespace weft {

// When a job's watchdogs look for hangs, and whom they tell (runtime/launch/hangs/watchdog.h).
struct WatchdogOptions {
  std::chrono::milliseconds interval = std::chrono::milliseconds(400);
  // A rank that has been in one collective for as long compares notes with the others. One that is queued, as
  // in a device's stream behind other work, is not late.
  std::chrono::milliseconds late_after = std::chrono::milliseconds(1500);
  // What is no deadlock is told when the wait has lasted this long, and again each time it has doubled.
  std::chrono::milliseconds tell_after = std::chrono::milliseconds(4000);
  // Where verdicts go, a line each; by default to stderr.
  std::function<void(const std::string& line)> tell = {};
  // The time by which the answers and the calls of other processes are awaited; by default the steady clock. Any thread.
  std::function<std::chrono::steady_clock::time_point()> now = {};
};

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_HANGS_WATCHDOG_OPTIONS_H_
