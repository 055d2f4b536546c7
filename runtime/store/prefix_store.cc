#include "runtime/store/prefix_store.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"

namespace weft {

PrefixStore::PrefixStore(std::shared_ptr<Store> store, absl::string_view prefix)
    : store_(std::move(store)), prefix_(prefix) {
  WEFT_REQUIRE(store_ != nullptr, "a PrefixStore wants a store to be a part of");
}

void PrefixStore::Set(absl::string_view key, absl::string_view value) { store_->Set(Whole(key), value); }

std::string PrefixStore::Get(absl::string_view key, std::chrono::milliseconds timeout) {
  return store_->Get(Whole(key), timeout);
}

std::optional<std::string> PrefixStore::TryGet(absl::string_view key) { return store_->TryGet(Whole(key)); }

int64_t PrefixStore::Add(absl::string_view key, int64_t amount) { return store_->Add(Whole(key), amount); }

void PrefixStore::Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) {
  store_->Wait(Whole(keys), timeout);
}

bool PrefixStore::Check(absl::Span<const std::string> keys) { return store_->Check(Whole(keys)); }

std::string PrefixStore::CompareSet(absl::string_view key, absl::string_view expected,
                                    absl::string_view desired) {
  return store_->CompareSet(Whole(key), expected, desired);
}

bool PrefixStore::Delete(absl::string_view key) { return store_->Delete(Whole(key)); }

std::string PrefixStore::Whole(absl::string_view key) const {
  RequireKey(key);  // an empty one would be the prefix, which is none
  return absl::StrCat(prefix_, key);
}

std::vector<std::string> PrefixStore::Whole(absl::Span<const std::string> keys) const {
  std::vector<std::string> whole;
  whole.reserve(keys.size());
  for (const std::string& key : keys) whole.push_back(Whole(key));
  return whole;
}

}  // namespace weft
