#include "runtime/store/store_rules.h"

#include <charconv>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/store/store.h"

namespace weft {

void RequireKey(absl::string_view key) {
  WEFT_REQUIRE(!key.empty(), "a store's key must not be empty");
  WEFT_REQUIRE(static_cast<int64_t>(key.size()) <= Store::kMaxKeyBytes, "a store's key has at most ",
               Store::kMaxKeyBytes, " bytes, ", QuotedKey(key), " has ", key.size());
}

void RequireKeys(absl::Span<const std::string> keys) {
  for (const std::string& key : keys) RequireKey(key);
}

void RequireValue(absl::string_view key, absl::string_view value) {
  WEFT_REQUIRE(static_cast<int64_t>(value.size()) <= Store::kMaxValueBytes, "a store's value has at most ",
               Store::kMaxValueBytes, " bytes, that for ", QuotedKey(key), " has ", value.size());
}

int64_t SumOf(absl::string_view key, absl::string_view held, int64_t amount) {
  int64_t number = 0;
  const char* const end = held.data() + held.size();
  const auto [rest, failure] = std::from_chars(held.data(), end, number);
  WEFT_REQUIRE(failure == std::errc() && rest == end, "cannot add to ", QuotedKey(key), ": it holds ",
               QuotedKey(held), ", not a number");
  int64_t sum = 0;
  WEFT_REQUIRE(!__builtin_add_overflow(number, amount, &sum), "cannot add ", amount, " to ", QuotedKey(key),
               ", which holds ", number, ": the sum has more than 64 bits");
  return sum;
}

void ThrowMissing(absl::Span<const std::string> missing, std::chrono::milliseconds timeout) {
  constexpr size_t kMostNamed = 8;
  std::string names;
  for (const std::string& key : missing.subspan(0, kMostNamed)) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", QuotedKey(key));
  }
  if (missing.size() > kMostNamed) absl::StrAppend(&names, " and ", missing.size() - kMostNamed, " more");
  Throw(absl::StatusCode::kDeadlineExceeded, "waited ",
        absl::StrFormat("%.3g s", static_cast<double>(ClampTimeout(timeout).count()) / 1e3), " for ", names,
        ": not in the store");
}

std::string QuotedKey(absl::string_view key) {
  constexpr size_t kMostShown = 120;
  const bool cut = key.size() > kMostShown;
  return absl::StrCat("'", absl::CHexEscape(key.substr(0, kMostShown)), cut ? "..." : "", "'");
}

}  // namespace weft
