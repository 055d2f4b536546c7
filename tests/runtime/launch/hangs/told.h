// What a watchdog told.

#ifndef WEFT_TESTS_RUNTIME_LAUNCH_HANGS_TOLD_H_
#define WEFT_TESTS_RUNTIME_LAUNCH_HANGS_TOLD_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_join.h"
#include "runtime/launch/hangs/watchdog_options.h"

namespace weft {

// The lines that a watchdog told, with times as "T s".
class Told {
 public:
  // Of a watchdog that is quick to tell.
  WatchdogOptions Options() {
    using std::chrono::milliseconds;
    return {.interval = milliseconds(20),
            .late_after = milliseconds(60),
            .tell_after = milliseconds(150),
            .tell = [this](const std::string& line) {
              const std::lock_guard<std::mutex> lock(mutex_);
              lines_.push_back(std::regex_replace(line, std::regex("[0-9]+\\.[0-9] s"), "T s"));
            }};
  }

  // Returns when a line is as `is_expected` says, or a minute is over: whether there is one.
  bool Await(const std::function<bool(const std::string& line)>& is_expected) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    for (;;) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (std::any_of(lines_.begin(), lines_.end(), is_expected)) return true;
      }
      if (std::chrono::steady_clock::now() >= give_up) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  std::string Text() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return absl::StrJoin(lines_, "\n");
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_LAUNCH_HANGS_TOLD_H_
