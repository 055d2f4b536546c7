#ifndef WEFT_RUNTIME_STORE_HASH_STORE_H_
#define WEFT_RUNTIME_STORE_HASH_STORE_H_

#include "runtime/store/key_space.h"
#include "runtime/store/store.h"

namespace weft {

// A store in this process's memory: for ranks that are threads, and for tests.
//
// Lifetime: outlives every call; those who share it own it together (std::shared_ptr).
class HashStore : public Store {
 public:
  void Set(absl::string_view key, absl::string_view value) override;
  std::string Get(absl::string_view key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> TryGet(absl::string_view key) override;
  int64_t Add(absl::string_view key, int64_t amount) override;
  void Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) override;
  bool Check(absl::Span<const std::string> keys) override;
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override;
  bool Delete(absl::string_view key) override;

 private:
  // The value of the first key.
  KeySpace::Value Await(std::vector<std::string> keys, std::chrono::milliseconds timeout);

  KeySpace space_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_HASH_STORE_H_
