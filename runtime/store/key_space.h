#ifndef WEFT_RUNTIME_STORE_KEY_SPACE_H_
#define WEFT_RUNTIME_STORE_KEY_SPACE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// The keys and values of one store in this process's memory, with a cap on their bytes, and who waits for
// which keys. Nobody blocks here: waiting is a callback, so that a server needs no thread for each client
// that waits. Owns its values; the calls mean what they mean in store.h.
//
// Units:   bytes are those of keys and values plus kEntryBytes an entry.
// Cost:    a Set looks again at a waiter only if the key is the one that it last found missing, so N waiters
//          for the same N keys cost O(N^2) look-ups in all, not O(N^3).
// Threads: any. Callbacks run on the thread of the call that made the last key appear, under no lock.
// Errors:  as in store.h; ResourceExhausted for what would exceed the cap.
class KeySpace {
 public:
  using Value = std::shared_ptr<const std::string>;
  // Called with the value of the first key at the moment at which all keys were there. Does not throw.
  using Ready = std::function<void(const Value& first)>;
  using WaiterId = uint64_t;

  static constexpr int64_t kEntryBytes = 64;

  explicit KeySpace(int64_t max_bytes = std::numeric_limits<int64_t>::max()) : max_bytes_(max_bytes) {}

  // What is there already stays, if it is more.
  void set_max_bytes(int64_t max_bytes);

  // Takes the place of `reserved` bytes, so what was reserved for this entry always has room.
  void Set(absl::string_view key, absl::string_view value, int64_t reserved = 0);
  Value TryGet(absl::string_view key) const;  // null if there is none
  int64_t Add(absl::string_view key, int64_t amount);
  std::string CompareSet(absl::string_view key, absl::string_view expected, absl::string_view desired);
  bool Delete(absl::string_view key);
  std::vector<std::string> Missing(absl::Span<const std::string> keys) const;

  // Calls `ready` once, at once if all of `keys` are there and else when they are; `keys` is not empty.
  WaiterId WhenThere(std::vector<std::string> keys, Ready ready);

  // Forgets a waiter and returns the keys that it still lacks; nullopt if its callback has run or is about
  // to.
  std::optional<std::vector<std::string>> Cancel(WaiterId id);

  // Counts bytes that are kept elsewhere on behalf of this space's users (see SetOnDisconnect), or gives them
  // back: a positive or negative amount.
  void Reserve(int64_t num_bytes);

  // Errors: ResourceExhausted if Set(key, value) would exceed the cap.
  void RequireRoomFor(absl::string_view key, absl::string_view value) const;

  // Calls `visit` for every key, in no order. It does not use this space.
  void ForEach(const std::function<void(const std::string& key, const Value& value)>& visit) const;

  int64_t num_bytes() const;

  // What an entry counts for.
  static int64_t BytesOf(absl::string_view key, absl::string_view value) {
    return static_cast<int64_t>(key.size() + value.size()) + kEntryBytes;
  }

 private:
  struct Waiter {
    std::vector<std::string> keys;
    Ready ready;
    size_t position = 0;  // the key that was last found missing
  };
  struct Fired {
    Ready ready;
    Value first;
  };

  // These want the lock held.
  Value Find(absl::string_view key) const;
  std::vector<Fired> Store(absl::string_view key, absl::string_view value, int64_t reserved = 0);
  bool AllThere(Waiter& waiter) const;
  void RequireRoom(absl::string_view key, int64_t more) const;

  static void Call(const std::vector<Fired>& fired);

  mutable std::mutex mutex_;
  int64_t max_bytes_;
  std::unordered_map<std::string, Value> values_;
  std::unordered_map<WaiterId, Waiter> waiters_;
  std::unordered_map<std::string, std::vector<WaiterId>> waiters_of_;  // by the key that they lack
  WaiterId next_id_ = 1;
  int64_t num_bytes_ = 0;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_STORE_KEY_SPACE_H_
