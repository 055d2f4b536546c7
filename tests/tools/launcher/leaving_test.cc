// Nodes that are told to stop: who goes on without them, and who is told.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "runtime/store/forwarding_store.h"
#include "runtime/store/hash_store.h"
#include "tests/message_of.h"
#include "tests/tools/launcher/rendezvous_node.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Publishes that the node of `leaver` was told to stop, and returns whether the others go on.
bool OthersGoOn(Node& leaver, const std::string& id) {
  return leaver.rendezvous
      ->Publish({.kind = GenerationEnd::Kind::kLeft,
                 .restart = true,
                 .exit_code = 143,
                 .node = id,
                 .headline = "left"})
      .restart;
}

StoreRendezvousOptions WithoutRestarts(const std::string& id, int least, int most) {
  StoreRendezvousOptions made = Options(id, least, most);
  made.max_restarts = 0;
  return made;
}

// A node that is told to stop is no failure: those that are enough without it go on, also where no failure may be.
TEST(LeavingTest, ANodeThatLeavesIsNoFailure) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, WithoutRestarts("a", 1, 3)), b(store, WithoutRestarts("b", 1, 3)),
      c(store, WithoutRestarts("c", 1, 3));
  StartInOrder(store, {&a, &b, &c});
  for (Node* const node : {&a, &b, &c}) node->Get();
  EXPECT_TRUE(OthersGoOn(c, "c"));
  for (Node* const node : {&a, &b}) {
    node->AwaitEnd();
    node->Start();
  }
  const Assignment of_a = a.Get();
  EXPECT_EQ(of_a.num_nodes, 2);
  EXPECT_EQ(of_a.restarts, 0);
  b.Get();
  EXPECT_TRUE(OthersGoOn(b, "b"));
  a.AwaitEnd();
  a.Start();
  const Assignment alone = a.Get();
  EXPECT_EQ(alone.num_nodes, 1);
  EXPECT_EQ(alone.restarts, 0);
  // Nobody is left to go on.
  EXPECT_FALSE(OthersGoOn(a, "a"));
}

// Those that are too few wait for another in its place if there may be restarts at all, however many have been used up.
TEST(LeavingTest, ANodeThatLeavesIsReplaced) {
  const auto store = std::make_shared<HashStore>();
  const auto options = [](const std::string& id) {
    StoreRendezvousOptions made = Options(id, 2, 2);
    made.max_restarts = 1;
    return made;
  };
  Node a(store, options("a")), b(store, options("b")), c(store, options("c"));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  EXPECT_TRUE(b.rendezvous->Publish(Failure("x")).restart);
  for (Node* const node : {&a, &b}) {
    node->AwaitEnd();
    node->Start();
  }
  EXPECT_EQ(a.Get().restarts, 1);
  b.Get();
  EXPECT_TRUE(OthersGoOn(b, "b"));
  a.AwaitEnd();
  a.Start();
  c.Start();
  const Assignment of_a = a.Get();
  EXPECT_EQ(of_a.generation, 2);
  EXPECT_EQ(of_a.restarts, 1);  // the failure before
  c.Get();
  EXPECT_FALSE(c.rendezvous->Publish(Failure("y")).restart);
}

// Two nodes, of which so many must be there, and no restarts.
struct TwoWithoutRestarts {
  explicit TwoWithoutRestarts(int least)
      : a(store, WithoutRestarts("a", least, 2)), b(store, WithoutRestarts("b", least, 2)) {
    StartInOrder(store, {&a, &b});
    a.Get();
    b.Get();
  }

  const std::shared_ptr<HashStore> store = std::make_shared<HashStore>();
  Node a, b;
};

TEST(LeavingTest, WithoutRestartsTooFewEndWhenANodeLeaves) {
  TwoWithoutRestarts nodes(2);
  EXPECT_FALSE(OthersGoOn(nodes.b, "b"));
  EXPECT_FALSE(nodes.a.AwaitEnd().restart);
}

// Of three nodes, two must be there, and there are no restarts.
struct ThreeOfWhichTwo {
  ThreeOfWhichTwo() {
    StartInOrder(store, {&a, &b, &c});
    for (Node* const node : {&a, &b, &c}) node->Get();
  }
  static StoreRendezvousOptions OptionsOf(const std::string& id) {
    StoreRendezvousOptions made = WithoutRestarts(id, 2, 3);
    made.join_timeout = std::chrono::seconds(5);
    return made;
  }
  std::string WhatAHears() {
    a.AwaitEnd();
    a.Start();
    return MessageOf([&] { a.next.get(); });
  }

  const std::shared_ptr<HashStore> store = std::make_shared<HashStore>();
  Node a{store, OptionsOf("a")}, b{store, OptionsOf("b")}, c{store, OptionsOf("c")};
};

TEST(LeavingTest, WithoutRestartsTooFewEndWhenASecondNodeLeaves) {
  ThreeOfWhichTwo nodes;
  EXPECT_TRUE(OthersGoOn(nodes.b, "b"));
  EXPECT_TRUE(OthersGoOn(nodes.c, "c"));  // as b's end says, which was first
  EXPECT_EQ(nodes.WhatAHears(), "the job is over: left");
}

TEST(LeavingTest, WithoutRestartsTooFewEndWhenASecondNodeLeavesBeforeTheNextGeneration) {
  for (const bool has_come_back : {false, true}) {
    ThreeOfWhichTwo nodes;
    EXPECT_TRUE(OthersGoOn(nodes.b, "b"));
    nodes.c.AwaitEnd();
    if (!has_come_back) nodes.c.cancelled = true;
    nodes.c.Start();
    if (has_come_back) AwaitState(nodes.store, "\"generation\":1");
    nodes.c.cancelled = true;
    EXPECT_FALSE(nodes.c.next.get().has_value());
    EXPECT_EQ(nodes.WhatAHears(), "the job is over: node host_c was told to stop");
  }
}

// A later job of the same name is another one, which has nothing to do with what this one was started with.
TEST(LeavingTest, WithoutRestartsAJobThatAllNodesLeaveIsOver) {
  TwoWithoutRestarts nodes(1);
  EXPECT_TRUE(OthersGoOn(nodes.b, "b"));
  EXPECT_TRUE(OthersGoOn(nodes.a, "a"));
  EXPECT_EQ(MeetingState::FromText(nodes.store->TryGet("state").value()).closed, "left");
}

// The ranks save in the time that a node leaves them, which is after its word.
TEST(LeavingTest, ASaveAfterTheEndCounts) {
  const auto store = std::make_shared<HashStore>();
  std::atomic<bool> has_saved = false;
  const auto options = [&](const std::string& id) {
    StoreRendezvousOptions made = Options(id, 1, 2);
    made.max_restarts = 1;
    made.has_saved = [&](int64_t generation) { return generation == 1 && has_saved; };
    return made;
  };
  Node a(store, options("a")), b(store, options("b"));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  GenerationEnd failure = Failure("x");
  failure.node = "a";
  a.rendezvous->Publish(failure);
  b.AwaitEnd();
  for (Node* const node : {&a, &b}) node->Start();
  EXPECT_EQ(a.Get().restarts, 1);
  b.Get();
  EXPECT_TRUE(OthersGoOn(b, "b"));
  has_saved = true;
  a.AwaitEnd();
  a.Start();
  EXPECT_EQ(a.Get().restarts, 0);
  EXPECT_EQ(MeetingState::FromText(store->TryGet("state").value()).failures, std::vector<NodeFailure>());
  EXPECT_TRUE(a.rendezvous->Publish(failure).restart);
}

// With the node that keeps the store the store goes.
TEST(LeavingTest, WithoutTheStoresNodeNobodyGoesOn) {
  for (const int max_restarts : {0, 3}) {
    const auto store = std::make_shared<HashStore>();
    StoreRendezvousOptions options = Options("a", 1, 2);
    options.max_restarts = max_restarts;
    options.holds_store = true;
    Node a(store, options);
    options.id = "b";
    options.holds_store = false;
    Node b(store, options);
    StartInOrder(store, {&a, &b});
    a.Get();
    b.Get();
    EXPECT_FALSE(OthersGoOn(a, "a"));
    EXPECT_FALSE(b.AwaitEnd().restart);
  }
}

TEST(LeavingTest, ANodeThatLeavesIsNotExpected) {
  const auto store = std::make_shared<HashStore>();
  Node a(store, Options("a", 1, 2)), b(store, Options("b", 1, 2));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  b.rendezvous->Publish({.kind = GenerationEnd::Kind::kLeft,
                         .restart = true,
                         .exit_code = 143,
                         .node = "b",
                         .headline = "left"});
  EXPECT_EQ(a.AwaitEnd().kind, GenerationEnd::Kind::kLeft);
  a.Start();
  EXPECT_EQ(a.Get().num_nodes, 1);  // though b beats still
}

// Several at once, of which one word is the generation's end: by Publish, or when the node would have come back.
TEST(LeavingTest, NodesThatLeaveTogetherAreNotExpected) {
  const auto store = std::make_shared<HashStore>();
  std::vector<std::unique_ptr<Node>> nodes;
  for (const char* id : {"a", "b", "c", "d"}) {
    nodes.push_back(std::make_unique<Node>(store, Options(id, 1, 4)));
  }
  StartInOrder(store, {nodes[0].get(), nodes[1].get(), nodes[2].get(), nodes[3].get()});
  for (const auto& node : nodes) node->Get();
  const auto leaves = [](const std::string& id) {
    return GenerationEnd{.kind = GenerationEnd::Kind::kLeft, .restart = true, .node = id, .headline = "left"};
  };
  nodes[1]->rendezvous->Publish(leaves("b"));
  nodes[2]->rendezvous->Publish(leaves("c"));
  nodes[3]->AwaitEnd();
  nodes[3]->cancelled = true;
  nodes[3]->Start();
  EXPECT_FALSE(nodes[3]->next.get().has_value());
  nodes[0]->AwaitEnd();
  nodes[0]->Start();
  ASSERT_FALSE(IsWaiting(*nodes[0], kLong / 2));  // though all beat still
  EXPECT_EQ(nodes[0]->Get().num_nodes, 1);
}

// The others wait for its workers, so it has to know.
TEST(LeavingTest, ANodeThatIsCancelledWhenTheOthersHaveBegunIsToldSo) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions slow = Options("a", 1, 2);
  slow.poll = seconds(4);  // and signs of life all the same
  Node a(store, slow), b(store, Options("b", 1, 2));
  StartInOrder(store, {&a, &b});
  EXPECT_EQ(b.Get().num_nodes, 2);
  a.cancelled = true;
  const std::optional<Assignment> assignment = a.next.get();
  ASSERT_TRUE(assignment.has_value());
  EXPECT_EQ(assignment->num_nodes, 2);
  a.rendezvous->Publish(
      {.kind = GenerationEnd::Kind::kLeft, .restart = true, .node = "a", .headline = "left"});
  EXPECT_EQ(b.AwaitEnd().kind, GenerationEnd::Kind::kLeft);
  b.Start();
  EXPECT_EQ(b.Get().num_nodes, 1);
}

// The others' ranks save as long as the leaving node's may, and need the store for it.
TEST(LeavingTest, WhoHoldsTheStoreStaysWhileTheOthersSave) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions of_a = Options("a", 2, 2);
  of_a.holds_store = true;
  Node a(store, of_a), b(store, Options("b", 2, 2));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  a.rendezvous->Publish({.kind = GenerationEnd::Kind::kLeft,
                         .restart = true,
                         .exit_code = 143,
                         .node = "a",
                         .headline = "left",
                         .grace = kLong});
  auto leaving = std::async(std::launch::async, [&] { a.rendezvous->Leave(); });
  EXPECT_EQ(b.AwaitEnd().kind, GenerationEnd::Kind::kLeft);
  EXPECT_EQ(leaving.wait_for(of_a.silence * 3 / 2), std::future_status::timeout);
  b.rendezvous->Leave();
  EXPECT_EQ(leaving.wait_for(kLong / 2), std::future_status::ready);
}

// Where a failure was first, the others begin again, are told that the job is over, and need the store no more.
TEST(LeavingTest, WhoHoldsTheStoreEndsTheJobWhateverElseHasHappened) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions of_a = Options("a", 1, 2);
  of_a.holds_store = true;
  of_a.silence = kLong;
  Node a(store, of_a), b(store, Options("b", 1, 2));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  EXPECT_TRUE(b.rendezvous->Publish(Failure("x")).restart);
  a.rendezvous->Publish(
      {.kind = GenerationEnd::Kind::kLeft, .restart = true, .node = "a", .headline = "left"});
  auto leaving = std::async(std::launch::async, [&] { a.rendezvous->Leave(); });
  EXPECT_EQ(leaving.wait_for(milliseconds(200)), std::future_status::timeout);
  b.Start();
  EXPECT_EQ(leaving.wait_for(kLong / 2), std::future_status::ready);
  EXPECT_EQ(MessageOf([&] { b.next.get(); }), "the job is over: left");
}

// Counts what is added to the number of nodes that have left the first generation.
class StoreThatCountsLeaving : public ForwardingStore {
 public:
  StoreThatCountsLeaving() : ForwardingStore(std::make_shared<HashStore>()) {}
  int64_t Add(absl::string_view key, int64_t amount) override {
    if (key == "left/0") ++num_adds;
    return ForwardingStore::Add(key, amount);
  }
  std::atomic<int> num_adds = 0;
};

// Each change is a record in a store with a journal, so whoever waits for the others only reads.
TEST(LeavingTest, ANodeThatWaitsForTheOthersToLeaveWritesOnce) {
  const auto store = std::make_shared<StoreThatCountsLeaving>();
  StoreRendezvousOptions of_a = Options("a", 2, 2);
  of_a.silence = kLong;
  Node a(store, of_a), b(store, Options("b", 2, 2));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  a.rendezvous->Publish({.kind = GenerationEnd::Kind::kFinished});
  b.AwaitEnd();
  auto leaving = std::async(std::launch::async, [&] { a.rendezvous->Leave(); });
  EXPECT_EQ(leaving.wait_for(milliseconds(200)), std::future_status::timeout);
  b.rendezvous->Leave();
  EXPECT_EQ(leaving.wait_for(kLong / 2), std::future_status::ready);
  EXPECT_EQ(store->num_adds, 2);
}

TEST(LeavingTest, ANodeThatIsNotCountedWritesNothingWhenItLeaves) {
  const auto store = std::make_shared<StoreThatCountsLeaving>();
  Node a(store, Options("a", 2, 2)), b(store, Options("b", 2, 2));
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  b.rendezvous->Publish(
      {.kind = GenerationEnd::Kind::kLost, .restart = true, .node = "b", .headline = "lost"});
  a.AwaitEnd();
  for (Node* const node : {&a, &b}) node->rendezvous->Leave();
  EXPECT_EQ(store->num_adds, 1);
}

}  // namespace
}  // namespace weft
