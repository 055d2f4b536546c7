#ifndef WEFT_RUNTIME_LAUNCH_WORLD_STORE_H_
#define WEFT_RUNTIME_LAUNCH_WORLD_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/store/store.h"

namespace weft {

// A world's store, whose waits end when a rank of the world has failed: whoever waits for a key that a dead
// rank was to set would otherwise wait for its whole timeout. Shares the other store.
//
// Cost:    a wait looks for failures every 100 ms; all else is the other store's.
// Threads: any.
// Errors:  the other store's; from Get and Wait those of `throw_if_failed`.
class WorldStore final : public Store {
 public:
  // `throw_if_failed` throws once a rank has failed; it may be called by any thread.
  WorldStore(std::shared_ptr<Store> store, std::function<void()> throw_if_failed);

  void Set(absl::string_view key, absl::string_view value) override { store_->Set(key, value); }
  std::string Get(absl::string_view key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> TryGet(absl::string_view key) override { return store_->TryGet(key); }
  int64_t Add(absl::string_view key, int64_t amount) override { return store_->Add(key, amount); }
  void Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) override;
  bool Check(absl::Span<const std::string> keys) override { return store_->Check(keys); }
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override {
    return store_->CompareSet(key, expected, desired);
  }
  bool Delete(absl::string_view key) override { return store_->Delete(key); }

 private:
  const std::shared_ptr<Store> store_;
  const std::function<void()> throw_if_failed_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_WORLD_STORE_H_
