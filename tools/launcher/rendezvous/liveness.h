#ifndef WEFT_TOOLS_LAUNCHER_RENDEZVOUS_LIVENESS_H_
#define WEFT_TOOLS_LAUNCHER_RENDEZVOUS_LIVENESS_H_

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "runtime/store/store.h"

namespace weft {

// Whether other nodes live: each counts a number up in the store, and the others see whether it moves. Clocks
// of different machines are never compared.
//
// Cost:    one look-up a node and interval, however often one asks.
// Threads: one.
class Liveness {
 public:
  enum class Life {
    kUnknown,  // not watched for long enough
    kAlive,
    kSilent,  // the number stood still for `silence`
  };

  using Clock = std::chrono::steady_clock;

  // `now` is the clock.
  Liveness(Store& store, std::chrono::milliseconds interval, std::chrono::milliseconds silence,
           std::function<Clock::time_point()> now = Clock::now)
      : store_(&store), interval_(interval), silence_(silence), now_(std::move(now)) {}

  // Says that node `id` lives, at most once an interval.
  void Beat(const std::string& id);

  Life Of(const std::string& id);

 private:
  struct Seen {
    std::string count;
    Clock::time_point looked;
    Clock::duration quiet{0};  // in which this process too was awake
    Life life = Life::kUnknown;
  };

  Store* store_;
  std::chrono::milliseconds interval_;
  std::chrono::milliseconds silence_;
  std::function<Clock::time_point()> now_;
  std::map<std::string, Seen> seen_;
  Clock::time_point last_beat_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_RENDEZVOUS_LIVENESS_H_
