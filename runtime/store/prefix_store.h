#ifndef WEFT_RUNTIME_STORE_PREFIX_STORE_H_
#define WEFT_RUNTIME_STORE_PREFIX_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/store/store.h"

namespace weft {

// The part of another store whose keys begin with `prefix`, which is put before every key as it is: it ends
// with a '/' where one is wanted. Shares the other store. Messages name the whole keys.
//
// Errors: InvalidArgument from the constructor for no store; the other store's.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, absl::string_view prefix);

  void Set(absl::string_view key, absl::string_view value) override;
  std::string Get(absl::string_view key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> TryGet(absl::string_view key) override;
  int64_t Add(absl::string_view key, int64_t amount) override;
  void Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) override;
  bool Check(absl::Span<const std::string> keys) override;
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override;
  bool Delete(absl::string_view key) override;

  const std::string& prefix() const { return prefix_; }

 private:
  std::string Whole(absl::string_view key) const;
  std::vector<std::string> Whole(absl::Span<const std::string> keys) const;

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_PREFIX_STORE_H_
