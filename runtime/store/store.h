#ifndef WEFT_RUNTIME_STORE_STORE_H_
#define WEFT_RUNTIME_STORE_STORE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// A small key-value map that the processes of a job share: where they leave addresses, take numbers, and wait
// for each other. For rendezvous and diagnosis, not for data: values are at most kMaxValueBytes.
//
// Keys and values are any bytes; a key is not empty. Each call is atomic, and calls that have returned are
// seen by every later call of any process. A timeout below zero is one of zero: the call looks once.
//
// Threads: any.
// Errors:  InvalidArgument for an empty key, a key or value that is too large, or Add to what is not a number
//          or beyond 64 bits; ResourceExhausted when the store is full;
//          DeadlineExceeded from what waits, naming the keys that are still missing and how long it waited;
//          Aborted when the store itself is gone or refuses this client, naming its address and why.
// Source:  the stores of torch.distributed (set, get, add, wait, check, compare_set, delete_key).
class Store {
 public:
  static constexpr int64_t kMaxKeyBytes = 1 << 14;
  static constexpr int64_t kMaxValueBytes = 1 << 20;

  virtual ~Store() = default;

  virtual void Set(absl::string_view key, absl::string_view value) = 0;

  // The value, once there is one.
  virtual std::string Get(absl::string_view key, std::chrono::milliseconds timeout) = 0;

  // The value, or nullopt if there is none now.
  virtual std::optional<std::string> TryGet(absl::string_view key) = 0;

  // Adds `amount` to the number under `key`, 0 if there is none, and returns the sum. Numbers are kept as
  // decimal text, so Get reads them and Set makes them.
  virtual int64_t Add(absl::string_view key, int64_t amount) = 0;

  // Returns once all of `keys` are there.
  virtual void Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) = 0;

  // True if all of `keys` are there now.
  virtual bool Check(absl::Span<const std::string> keys) = 0;

  // Sets `key` to `desired` if it holds `expected`, or if it is not there and `expected` is empty; returns
  // what it holds afterwards, `expected` if it is still not there.
  //
  //   held     expected  desired  returns  holds afterwards
  //   nothing  ""        "b"      "b"      "b"
  //   nothing  "a"       "b"      "a"      nothing
  //   ""       ""        "b"      "b"      "b"
  //   "a"      "a"       "b"      "b"      "b"
  //   "a"      "x"       "b"      "a"      "a"
  //   "a"      ""        "b"      "a"      "a"
  virtual std::string CompareSet(absl::string_view key, absl::string_view expected,
                                 absl::string_view desired) = 0;

  // True if the key was there.
  virtual bool Delete(absl::string_view key) = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_STORE_H_
