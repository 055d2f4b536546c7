// Nodes that meet in a store, as threads over one HashStore.

#include "tools/launcher/rendezvous/store_rendezvous.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/store/forwarding_store.h"
#include "runtime/store/hash_store.h"
#include "tests/message_of.h"
#include "tests/tools/launcher/rendezvous_node.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Kind = GenerationEnd::Kind;

TEST(StoreRendezvousTest, RanksFollowTheOrderOfArrival) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 3, 3)), b(store, Options("b", 3, 3)), c(store, Options("c", 3, 3));
  StartInOrder(store, {&c, &a, &b});
  const Assignment expected = {.num_nodes = 3, .world_size = 6, .master_addr = "meet", .master_port = 5};
  Assignment of_c = expected, of_a = expected, of_b = expected;
  of_a.node_rank = 1;
  of_a.rank_offset = 2;
  of_b.node_rank = 2;
  of_b.rank_offset = 4;
  EXPECT_EQ(c.Get(), of_c);
  EXPECT_EQ(a.Get(), of_a);
  EXPECT_EQ(b.Get(), of_b);
}

TEST(StoreRendezvousTest, FixedRanksAreKept) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions first = Options("a", 2, 2);
  StoreRendezvousOptions second = Options("b", 2, 2);
  first.fixed_rank = 1;
  second.fixed_rank = 0;
  Node a(store, first), b(store, second);
  StartInOrder(store, {&a, &b});
  EXPECT_EQ(a.Get().node_rank, 1);
  EXPECT_EQ(b.Get().node_rank, 0);
  // A third launcher that claims a rank which is taken, while the nodes gather again.
  a.rendezvous->Publish(Failure("x"));
  b.AwaitEnd();
  b.Start();
  StoreRendezvousOptions third = Options("c", 2, 2);
  third.fixed_rank = 0;
  Node c(store, third);
  AwaitState(store, "\"running\":false");
  c.Start();
  EXPECT_EQ(InvalidArgumentMessage([&] { c.next.get(); }),
            "--node_rank=0 is that of node host_b already: each node needs its own");
  a.Start();
  EXPECT_EQ(a.Get().node_rank, 1);
  EXPECT_EQ(b.Get().node_rank, 0);
}

TEST(StoreRendezvousTest, AFailureRestartsAllAndKeepsTheOrder) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 2, 2)), b(store, Options("b", 2, 2));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  for (int restart = 1; restart <= 2; ++restart) {
    const GenerationEnd end = b.rendezvous->Publish(Failure(absl::StrCat("fault ", restart)));
    EXPECT_TRUE(end.restart);
    EXPECT_EQ(a.AwaitEnd(), end);
    // The second to come publishes nothing, and learns what was first.
    EXPECT_EQ(a.rendezvous->Publish(Failure("later")), end);
    b.Start();
    a.Start();
    const Assignment of_a = a.Get();
    const Assignment of_b = b.Get();
    EXPECT_EQ(of_a.generation, restart);
    EXPECT_EQ(of_b.restarts, restart);
    EXPECT_EQ(of_a.node_rank, 0);
    EXPECT_EQ(of_b.node_rank, 1);
  }
  const GenerationEnd last = a.rendezvous->Publish(Failure("fault 3", 9));
  EXPECT_FALSE(last.restart);
  EXPECT_EQ(b.AwaitEnd(), last);
  EXPECT_EQ(last.exit_code, 9);
  EXPECT_EQ(last.report, "why");
  Node late(store, Options("late", 2, 2));
  late.Start();
  EXPECT_EQ(MessageOf([&] { late.next.get(); }), "the job is over: fault 3");
}

// Lets another be faster with the first change of the nodes' state.
class OvertakenStore : public ForwardingStore {
 public:
  OvertakenStore(std::shared_ptr<Store> store, std::function<void()> overtake)
      : ForwardingStore(std::move(store)), overtake_(std::move(overtake)) {}

  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override {
    if (key == "state" && !is_overtaken_.exchange(true)) overtake_();
    return ForwardingStore::CompareSet(key, expected, desired);
  }

 private:
  const std::function<void()> overtake_;
  std::atomic<bool> is_overtaken_ = false;
};

TEST(StoreRendezvousTest, NodesThatComeAtTheSameMomentKeepTheirOrder) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 2, 2));
  Node b(std::make_shared<OvertakenStore>(store, [&] { StartInOrder(store, {&a}); }), Options("b", 2, 2));
  b.Start();
  EXPECT_EQ(b.Get().node_rank, 1);
  EXPECT_EQ(a.Get().node_rank, 0);
  EXPECT_THAT(store->TryGet("state").value(), HasSubstr("\"num_arrivals\":2"));
  b.rendezvous->Publish(Failure("x"));
  a.AwaitEnd();
  b.Start();
  AwaitState(store, "\"running\":false");
  a.Start();
  EXPECT_EQ(a.Get().node_rank, 0);
  EXPECT_EQ(b.Get().node_rank, 1);
}

TEST(StoreRendezvousTest, AGenerationThatEndedBeforeASlowNodeSawItIsToldAllTheSame) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions slow = Options("a", 2, 2);
  slow.poll = milliseconds(300);
  slow.max_restarts = 0;
  Node a(store, slow);
  StoreRendezvousOptions fast = Options("b", 2, 2);
  fast.max_restarts = 0;
  Node b(store, fast);
  StartInOrder(store, {&a, &b});
  b.Get();
  const GenerationEnd end = b.rendezvous->Publish(Failure("at once"));
  EXPECT_FALSE(end.restart);
  EXPECT_EQ(a.Get().node_rank, 0);
  EXPECT_EQ(a.rendezvous->End(), end);
}

TEST(StoreRendezvousTest, ItIsFinishedWhenAllAreDone) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 2, 2)), b(store, Options("b", 2, 2));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  a.rendezvous->Done();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(a.rendezvous->End().has_value());
  b.rendezvous->Done();
  EXPECT_EQ(a.AwaitEnd().kind, Kind::kFinished);
  // Whoever holds the store leaves last.
  auto leaving = std::async(std::launch::async, [&] { a.rendezvous->Leave(); });
  EXPECT_EQ(leaving.wait_for(milliseconds(200)), std::future_status::timeout);
  EXPECT_EQ(b.AwaitEnd().kind, Kind::kFinished);
  b.rendezvous->Leave();
  EXPECT_EQ(leaving.wait_for(kLong), std::future_status::ready);
}

TEST(StoreRendezvousTest, MinWaitsForTheLastCall) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 1, 3);
  options.last_call = milliseconds(400);
  Node a(store, options);
  const Clock::time_point begin = Clock::now();
  a.Start();
  EXPECT_EQ(a.Get().num_nodes, 1);
  EXPECT_GE(Clock::now() - begin, milliseconds(400));
}

TEST(StoreRendezvousTest, MaxEndsTheLastCall) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 1, 2)), b(store, Options("b", 1, 2));
  StartInOrder(store, {&a, &b});  // the last call would last for kLong
  EXPECT_EQ(a.Get().num_nodes, 2);
  EXPECT_EQ(b.Get().num_nodes, 2);
}

TEST(StoreRendezvousTest, ALateNodeJoinsWhereThereIsRoom) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 1, 2);
  options.last_call = milliseconds(50);
  options.max_restarts = 0;
  Node a(store, options);
  a.Start();
  EXPECT_EQ(a.Get().num_nodes, 1);
  options.id = "b";
  Node b(store, options);
  b.Start();
  const GenerationEnd end = a.AwaitEnd();
  EXPECT_EQ(end.kind, Kind::kGrow);
  EXPECT_TRUE(end.restart);  // and costs no restart
  a.Start();
  EXPECT_EQ(a.Get().num_nodes, 2);
  const Assignment of_b = b.Get();
  EXPECT_EQ(of_b.node_rank, 1);
  EXPECT_EQ(of_b.generation, 1);
  EXPECT_EQ(of_b.restarts, 0);
}

TEST(StoreRendezvousTest, ALateNodeWaitsWhereThereIsNone) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 1, 1));
  a.Start();
  a.Get();
  Node b(store, Options("b", 1, 1));
  b.Start();
  EXPECT_TRUE(IsWaiting(b, milliseconds(300)));
  EXPECT_FALSE(a.rendezvous->End().has_value());
  b.cancelled = true;
  EXPECT_FALSE(b.next.get().has_value());
}

TEST(StoreRendezvousTest, ALostNodeIsNoticedAndDoneWithout) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 2, 3)), c(store, Options("c", 2, 3));
  auto b = std::make_unique<Node>(store, Options("b", 2, 3));
  StartInOrder(store, {b.get(), &a, &c});
  b->Get();
  a.Get();
  c.Get();
  const Clock::time_point lost = Clock::now();
  b.reset();  // it beats no more, and says nothing
  const GenerationEnd end = a.AwaitEnd();
  EXPECT_EQ(end.kind, Kind::kLost);
  EXPECT_EQ(end.headline, "node host_b was lost: no sign of life for 1.5 s");
  EXPECT_EQ(c.AwaitEnd(), end);
  a.Start();
  c.Start();
  const Assignment of_a = a.Get();
  EXPECT_EQ(of_a.node_rank, 0);
  EXPECT_EQ(of_a.num_nodes, 2);
  EXPECT_EQ(of_a.world_size, 4);
  EXPECT_EQ(of_a.restarts, 1);
  EXPECT_EQ(c.Get().node_rank, 1);
  EXPECT_LT(Clock::now() - lost, seconds(30));  // not the last call of kLong
}

TEST(StoreRendezvousTest, ANodeThatDiesBeforeItComesBackIsNotWaitedFor) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 1, 2));
  auto b = std::make_unique<Node>(store, Options("b", 1, 2));
  StartInOrder(store, {&a, b.get()});
  a.Get();
  b->Get();
  a.rendezvous->Publish(Failure("a worker that lost its peer"));
  b.reset();
  a.Start();
  EXPECT_EQ(a.Get().num_nodes, 1);
}

// A store whose disk is full while `full`: what changes something waits for room.
class FillingStore : public HashStore {
 public:
  int64_t Add(absl::string_view key, int64_t amount) override {
    AwaitRoom();
    return HashStore::Add(key, amount);
  }
  std::string CompareSet(absl::string_view key, absl::string_view expected,
                         absl::string_view desired) override {
    AwaitRoom();
    return HashStore::CompareSet(key, expected, desired);
  }

  std::atomic<bool> full{false};

 private:
  void AwaitRoom() const {
    while (full) std::this_thread::sleep_for(milliseconds(1));
  }
};

TEST(StoreRendezvousTest, AFullStoreIsNoSilence) {
  const auto store = std::make_shared<FillingStore>();
  StoreRendezvousOptions of_a = Options("a", 1, 1), of_b = Options("b", 1, 1);
  for (StoreRendezvousOptions* const options : {&of_a, &of_b}) options->store_apart = true;
  Node a(store, of_a), b(store, of_b);
  StartInOrder(store, {&a});
  a.Get();
  b.Start();
  AwaitState(store, "\"b\"");
  store->full = true;
  std::this_thread::sleep_for(2 * of_b.silence);
  store->full = false;
  EXPECT_TRUE(IsWaiting(b, of_b.silence / 2));
  EXPECT_FALSE(a.rendezvous->End().has_value());
  b.cancelled = true;
  EXPECT_FALSE(b.next.get().has_value());
}

TEST(StoreRendezvousTest, NodesThatDoNotFitAreToldSo) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 2, 2));
  StartInOrder(store, {&a});
  Node other(store, Options("b", 1, 2));
  other.Start();
  EXPECT_EQ(InvalidArgumentMessage([&] { other.next.get(); }),
            "node host_b was started with --nnodes=1:2, the others with 2:2");
  StoreRendezvousOptions options = Options("c", 2, 2);
  options.workers_per_node = 3;
  Node c(store, options);
  c.Start();
  const std::string why =
      "node host_c starts 3 workers, the others 2: --nproc_per_node must be the same on all nodes";
  EXPECT_EQ(InvalidArgumentMessage([&] { c.next.get(); }), why);
  // At the start it is a mistake of the whole job, and no node waits in vain.
  EXPECT_EQ(MessageOf([&] { a.next.get(); }), absl::StrCat("the job is over: ", why));
}

TEST(StoreRendezvousTest, TooFewNodesAreAnError) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 2, 2);
  options.join_timeout = milliseconds(200);
  Node a(store, options);
  a.Start();
  EXPECT_EQ(
      MessageOf([&] { a.next.get(); }),
      "waited 0.2 s: 1 of 2 nodes are at meet:5 (host_a); --rdzv_conf=join_timeout=SECONDS waits longer");
  // It has withdrawn: two others make up the job.
  Node b(store, Options("b", 2, 2)), c(store, Options("c", 2, 2));
  b.Start();
  c.Start();
  EXPECT_EQ(b.Get().num_nodes, 2);
  c.Get();
}

TEST(StoreRendezvousTest, ManyNodesThatComeAtOnceGetOneRankEach) {
  const auto store = std::make_shared<HashStore>();
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 16; ++i) {
    nodes.push_back(std::make_unique<Node>(store, Options(absl::StrCat("n", i), 16, 16)));
  }
  for (auto& node : nodes) node->Start();
  std::vector<int> times(16, 0);
  for (auto& node : nodes) ++times.at(static_cast<size_t>(node->Get().node_rank));
  EXPECT_EQ(times, std::vector<int>(16, 1));
}

TEST(StoreRendezvousTest, ForeignBytesInTheStoreAreAnError) {
  const auto store = std::make_shared<HashStore>();
  store->Set("state", "garbage");
  Node a(store, Options("a", 1, 1));
  a.Start();
  EXPECT_THAT(MessageOf([&] { a.next.get(); }),
              HasSubstr("the nodes' meeting cannot be read from the store"));
}

}  // namespace
}  // namespace weft
