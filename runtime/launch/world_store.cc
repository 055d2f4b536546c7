#include "runtime/launch/world_store.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

// No store can be told from outside to end a wait, so a long one is made of short ones.
constexpr milliseconds kLook{100};

// A store that is gone was kept by a rank that has failed, or that went when it heard of another's failure: the
// world is about to hear who it was, which says more.
void AwaitReason(const std::function<void()>& throw_if_failed) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  do {
    throw_if_failed();
    std::this_thread::sleep_for(milliseconds(5));
  } while (std::chrono::steady_clock::now() < deadline);
}

// Calls `wait` with short timeouts until it returns, a rank has failed or `timeout` has passed; false then.
template <class Wait>
bool InShortWaits(milliseconds timeout, const std::function<void()>& throw_if_failed, const Wait& wait) {
  const auto deadline = std::chrono::steady_clock::now() + ClampTimeout(timeout);
  while (true) {
    throw_if_failed();
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      wait(std::clamp(left, milliseconds(0), kLook));
      return true;
    } catch (const Error& error) {
      if (error.code() == absl::StatusCode::kAborted) AwaitReason(throw_if_failed);
      if (error.code() != absl::StatusCode::kDeadlineExceeded) throw;
    }
    if (left <= kLook) return false;
  }
}

}  // namespace

WorldStore::WorldStore(std::shared_ptr<Store> store, std::function<void()> throw_if_failed)
    : ForwardingStore(std::move(store)), throw_if_failed_(std::move(throw_if_failed)) {}

std::string WorldStore::Get(absl::string_view key, milliseconds timeout) {
  std::string value;
  const auto get = [&](milliseconds left) { value = ForwardingStore::Get(key, left); };
  if (!InShortWaits(timeout, throw_if_failed_, get)) ThrowMissing({std::string(key)}, timeout);
  return value;
}

void WorldStore::Wait(absl::Span<const std::string> keys, milliseconds timeout) {
  const auto wait = [&](milliseconds left) { ForwardingStore::Wait(keys, left); };
  if (InShortWaits(timeout, throw_if_failed_, wait)) return;
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (!ForwardingStore::Check({key})) missing.push_back(key);
  }
  if (!missing.empty()) ThrowMissing(missing, timeout);
}

}  // namespace weft
