#include "runtime/store/hash_store.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"

namespace weft {
namespace {

// What the waiting thread and the callback share; the callback may outlive the wait.
struct Arrival {
  std::mutex mutex;
  std::condition_variable arrived;
  KeySpace::Value value;
};

}  // namespace

void HashStore::Set(absl::string_view key, absl::string_view value) { space_.Set(key, value); }

std::string HashStore::Get(absl::string_view key, std::chrono::milliseconds timeout) {
  return *Await({std::string(key)}, timeout);
}

std::optional<std::string> HashStore::TryGet(absl::string_view key) {
  const KeySpace::Value value = space_.TryGet(key);
  return value == nullptr ? std::nullopt : std::optional<std::string>(*value);
}

int64_t HashStore::Add(absl::string_view key, int64_t amount) { return space_.Add(key, amount); }

void HashStore::Wait(absl::Span<const std::string> keys, std::chrono::milliseconds timeout) {
  if (!keys.empty()) Await({keys.begin(), keys.end()}, timeout);
}

bool HashStore::Check(absl::Span<const std::string> keys) { return space_.Missing(keys).empty(); }

std::string HashStore::CompareSet(absl::string_view key, absl::string_view expected,
                                  absl::string_view desired) {
  return space_.CompareSet(key, expected, desired);
}

bool HashStore::Delete(absl::string_view key) { return space_.Delete(key); }

KeySpace::Value HashStore::Await(std::vector<std::string> keys, std::chrono::milliseconds timeout) {
  const auto arrival = std::make_shared<Arrival>();
  const KeySpace::WaiterId id = space_.WhenThere(std::move(keys), [arrival](const KeySpace::Value& value) {
    const std::lock_guard<std::mutex> lock(arrival->mutex);
    arrival->value = value;
    arrival->arrived.notify_one();
  });
  const auto there = [&] { return arrival->value != nullptr; };
  std::unique_lock<std::mutex> lock(arrival->mutex);
  if (arrival->arrived.wait_for(lock, ClampTimeout(timeout), there)) return arrival->value;
  lock.unlock();
  const std::optional<std::vector<std::string>> missing = space_.Cancel(id);
  if (missing.has_value()) ThrowMissing(*missing, timeout);
  // It came at the last moment: the callback is running.
  lock.lock();
  WEFT_CHECK(arrival->arrived.wait_for(lock, std::chrono::minutes(1), there), "a callback that never ended");
  return arrival->value;
}

}  // namespace weft
