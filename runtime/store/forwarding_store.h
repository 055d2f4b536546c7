#ifndef WEFT_RUNTIME_STORE_FORWARDING_STORE_H_
#define WEFT_RUNTIME_STORE_FORWARDING_STORE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/store/store.h"

namespace weft {

// Another store, which it shares: every call is the other's. Stores that differ from another in a few calls override those.
//
// Cost, threads, errors: the other store's.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  void Set(absl::string_view key, absl::string_view value) override { store_->Set(key, value); }
  std::string Get(absl::string_view key, std::chrono::milliseconds timeout) override {
    return store_->Get(key, timeout);
  }
  std::optional<std::string> TryGet(absl::string_view key) override { return store_->TryGet(key); }
  int64_t Add(absl::string_view key, int64_t amount) override { return store_->Add(key, amount); }
  void Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) override {
    store_->Wait(keys, timeout);
  }
  bool Check(absl::Span<const std::string> keys) override { return store_->Check(keys); }
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override {
    return store_->CompareSet(key, expected, desired);
  }
  bool Delete(absl::string_view key) override { return store_->Delete(key); }

 private:
  const std::shared_ptr<Store> store_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_FORWARDING_STORE_H_
