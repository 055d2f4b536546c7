#ifndef WEFT_RUNTIME_LAUNCH_WORLD_STORE_H_
#define WEFT_RUNTIME_LAUNCH_WORLD_STORE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/store/forwarding_store.h"

namespace weft {

// A world's store, whose waits end when a rank of the world has failed: whoever waits for a key that a dead
// rank was to set would otherwise wait for its whole timeout. Shares the other store.
//
// Cost:    a wait looks for failures every 100 ms; all else is the other store's.
// Threads: any.
// Errors:  the other store's; from Get and Wait those of `throw_if_failed`.
class WorldStore final : public ForwardingStore {
 public:
  // `throw_if_failed` throws once a rank has failed; it may be called by any thread.
  WorldStore(std::shared_ptr<Store> store, std::function<void()> throw_if_failed);

  std::string Get(absl::string_view key, std::chrono::milliseconds timeout) override;
  void Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) override;

 private:
  const std::function<void()> throw_if_failed_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_WORLD_STORE_H_
