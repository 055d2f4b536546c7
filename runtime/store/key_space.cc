#include "runtime/store/key_space.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"

namespace weft {

void KeySpace::set_max_bytes(int64_t max_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  max_bytes_ = max_bytes;
}

void KeySpace::Set(absl::string_view key, absl::string_view value, int64_t reserved) {
  RequireKey(key);
  RequireValue(key, value);
  std::unique_lock<std::mutex> lock(mutex_);
  const std::vector<Fired> fired = Store(key, value, reserved);
  lock.unlock();
  Call(fired);
}

KeySpace::Value KeySpace::TryGet(absl::string_view key) const {
  RequireKey(key);
  const std::lock_guard<std::mutex> lock(mutex_);
  return Find(key);
}

int64_t KeySpace::Add(absl::string_view key, int64_t amount) {
  RequireKey(key);
  std::unique_lock<std::mutex> lock(mutex_);
  const Value held = Find(key);
  const int64_t sum = SumOf(key, held == nullptr ? "0" : absl::string_view(*held), amount);
  const std::vector<Fired> fired = Store(key, absl::StrCat(sum));
  lock.unlock();
  Call(fired);
  return sum;
}

std::string KeySpace::CompareSet(absl::string_view key, absl::string_view expected,
                                 absl::string_view desired) {
  RequireKey(key);
  RequireValue(key, expected);
  RequireValue(key, desired);
  std::unique_lock<std::mutex> lock(mutex_);
  const Value held = Find(key);
  if (held == nullptr && !expected.empty()) return std::string(expected);
  if (held != nullptr && *held != expected) return *held;
  const std::vector<Fired> fired = Store(key, desired);
  lock.unlock();
  Call(fired);
  return std::string(desired);
}

bool KeySpace::Delete(absl::string_view key) {
  RequireKey(key);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto held = values_.find(std::string(key));
  if (held == values_.end()) return false;
  num_bytes_ -= BytesOf(key, *held->second);
  values_.erase(held);
  return true;
}

std::vector<std::string> KeySpace::Missing(absl::Span<const std::string> keys) const {
  RequireKeys(keys);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (!values_.contains(key)) missing.push_back(key);
  }
  return missing;
}

KeySpace::WaiterId KeySpace::WhenThere(std::vector<std::string> keys, Ready ready) {
  WEFT_CHECK(!keys.empty(), "nothing to wait for");
  RequireKeys(keys);
  std::unique_lock<std::mutex> lock(mutex_);
  const WaiterId id = next_id_++;
  Waiter waiter = {.keys = std::move(keys), .ready = std::move(ready)};
  if (AllThere(waiter)) {
    const Value first = Find(waiter.keys[0]);
    lock.unlock();
    waiter.ready(first);
    return id;
  }
  waiters_of_[waiter.keys[waiter.position]].push_back(id);
  waiters_.emplace(id, std::move(waiter));
  return id;
}

std::optional<std::vector<std::string>> KeySpace::Cancel(WaiterId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = waiters_.find(id);
  if (found == waiters_.end()) return std::nullopt;
  const Waiter waiter = std::move(found->second);
  waiters_.erase(found);
  const auto others = waiters_of_.find(waiter.keys[waiter.position]);
  std::erase(others->second, id);
  if (others->second.empty()) waiters_of_.erase(others);
  std::vector<std::string> missing;
  for (const std::string& key : waiter.keys) {
    if (!values_.contains(key)) missing.push_back(key);
  }
  return missing;
}

void KeySpace::Reserve(int64_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RequireRoom("a last will", num_bytes);
  num_bytes_ += num_bytes;
}

void KeySpace::RequireRoomFor(absl::string_view key, absl::string_view value) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Value held = Find(key);
  RequireRoom(key, BytesOf(key, value) - (held == nullptr ? 0 : BytesOf(key, *held)));
}

void KeySpace::ForEach(const std::function<void(const std::string& key, const Value& value)>& visit) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, value] : values_) visit(key, value);
}

int64_t KeySpace::num_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_bytes_;
}

KeySpace::Value KeySpace::Find(absl::string_view key) const {
  const auto held = values_.find(std::string(key));
  return held == values_.end() ? nullptr : held->second;
}

std::vector<KeySpace::Fired> KeySpace::Store(absl::string_view key, absl::string_view value,
                                             int64_t reserved) {
  const std::string name(key);
  const Value held = Find(key);
  const int64_t more = BytesOf(key, value) - (held == nullptr ? 0 : BytesOf(key, *held)) - reserved;
  RequireRoom(key, more);
  num_bytes_ += more;
  values_[name] = std::make_shared<const std::string>(value);
  std::vector<Fired> fired;
  const auto found = waiters_of_.find(name);
  if (held != nullptr || found == waiters_of_.end()) return fired;
  const std::vector<WaiterId> candidates = std::move(found->second);
  waiters_of_.erase(found);
  for (const WaiterId id : candidates) {
    Waiter& waiter = waiters_.at(id);
    if (AllThere(waiter)) {
      fired.push_back({.ready = std::move(waiter.ready), .first = Find(waiter.keys[0])});
      waiters_.erase(id);
    } else {
      waiters_of_[waiter.keys[waiter.position]].push_back(id);
    }
  }
  return fired;
}

// Goes on where it stood, and from the start again before it says yes: keys may have been deleted.
bool KeySpace::AllThere(Waiter& waiter) const {
  const auto is_missing = [this](const std::string& key) { return !values_.contains(key); };
  auto missing = std::find_if(waiter.keys.begin() + static_cast<int64_t>(waiter.position), waiter.keys.end(),
                              is_missing);
  if (missing == waiter.keys.end()) {
    missing = std::find_if(waiter.keys.begin(), waiter.keys.end(), is_missing);
  }
  waiter.position = missing - waiter.keys.begin();
  return missing == waiter.keys.end();
}

void KeySpace::RequireRoom(absl::string_view key, int64_t more) const {
  if (more <= 0 || num_bytes_ <= max_bytes_ - more) return;
  Throw(absl::StatusCode::kResourceExhausted, "the store is full: it holds ", num_bytes_, " of ", max_bytes_,
        " bytes, and ", QuotedKey(key), " takes ", more, " more");
}

void KeySpace::Call(const std::vector<Fired>& fired) {
  for (const Fired& waiter : fired) waiter.ready(waiter.first);
}

}  // namespace weft
