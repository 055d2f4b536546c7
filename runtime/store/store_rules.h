#ifndef WEFT_RUNTIME_STORE_STORE_RULES_H_
#define WEFT_RUNTIME_STORE_STORE_RULES_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// What store.h promises of every store and each of them would otherwise say in words of its own.

// Errors: InvalidArgument for an empty key or one above Store::kMaxKeyBytes.
void RequireKey(absl::string_view key);
void RequireKeys(absl::Span<const std::string> keys);

// Errors: InvalidArgument, naming `key`, for a value above Store::kMaxValueBytes.
void RequireValue(absl::string_view key, absl::string_view value);

// The number under `key`, whose text is `held`, plus `amount`.
// Errors: InvalidArgument for a text that is no decimal number of 64 bits, or a sum beyond 64 bits.
int64_t SumOf(absl::string_view key, absl::string_view held, int64_t amount);

// Throws DeadlineExceeded, naming the first few of `missing` keys and the `timeout` that has passed.
[[noreturn]] void ThrowMissing(absl::Span<const std::string> missing, std::chrono::milliseconds timeout);

// A key or another short text for a message: what does not print escaped, and cut where it is long.
std::string QuotedKey(absl::string_view key);

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_STORE_RULES_H_
