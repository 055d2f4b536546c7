// Nodes that meet in a store, as threads over one HashStore.

#ifndef WEFT_TESTS_TOOLS_LAUNCHER_RENDEZVOUS_NODE_H_
#define WEFT_TESTS_TOOLS_LAUNCHER_RENDEZVOUS_NODE_H_

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/store/hash_store.h"
#include "tools/launcher/rendezvous/store_rendezvous.h"

namespace weft {

// Longer than anything takes.
constexpr std::chrono::seconds kLong{60};

inline StoreRendezvousOptions Options(const std::string& id, int min_nodes, int max_nodes) {
  return {.id = id,
          .host = absl::StrCat("host_", id),
          .min_nodes = min_nodes,
          .max_nodes = max_nodes,
          .workers_per_node = 2,
          .max_restarts = 2,
          .master_addr = "meet",
          .master_port = 5,
          .poll = std::chrono::milliseconds(5),
          .beat = std::chrono::milliseconds(50),
          .silence = std::chrono::milliseconds(1500),
          .join_timeout = kLong,
          .last_call = kLong};
}

// A node whose launcher waits for the next generation on a thread of its own.
struct Node {
  Node(std::shared_ptr<Store> store, const StoreRendezvousOptions& options)
      : rendezvous(std::make_unique<StoreRendezvous>(std::move(store), options)) {}

  void Start() {
    next = std::async(std::launch::async,
                      [this] { return rendezvous->Next([this] { return cancelled.load(); }); });
  }
  Assignment Get() { return next.get().value(); }
  // How the generation ended, if it does in time.
  GenerationEnd AwaitEnd() {
    const std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::now() + kLong;
    while (!rendezvous->End() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return rendezvous->End().value();
  }

  std::atomic<bool> cancelled{false};
  std::unique_ptr<StoreRendezvous> rendezvous;
  std::future<std::optional<Assignment>> next;
};

inline bool IsWaiting(Node& node, std::chrono::milliseconds bound) {
  return node.next.wait_for(bound) == std::future_status::timeout;
}

// Waits until the nodes' state in the store holds `text`.
inline void AwaitState(const std::shared_ptr<Store>& store, const std::string& text) {
  const std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::now() + kLong;
  while (store->TryGet("state").value_or("").find(text) == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << text;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Starts the nodes one after the other, each when the one before has come.
inline void StartInOrder(const std::shared_ptr<Store>& store, const std::vector<Node*>& nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i]->Start();
    AwaitState(store, absl::StrCat("\"num_arrivals\":", i + 1));
  }
}

inline GenerationEnd Failure(const std::string& headline, int code = 7) {
  return {.kind = GenerationEnd::Kind::kFailed,
          .restart = true,
          .exit_code = code,
          .headline = headline,
          .report = "why"};
}

}  // namespace weft

#endif  // WEFT_TESTS_TOOLS_LAUNCHER_RENDEZVOUS_NODE_H_
