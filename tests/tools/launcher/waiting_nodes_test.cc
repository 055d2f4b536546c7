// Nodes for which a job has no place: how long they wait, and whose place they take.

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"
#include "tests/tools/launcher/rendezvous_node.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Kind = GenerationEnd::Kind;

// Comes to the job of the others, which has no place for it.
void StartWithoutAPlace(const std::shared_ptr<Store>& store, Node& node, const std::string& id) {
  node.Start();
  AwaitState(store, absl::StrCat("\"waiting\":[\"", id, "\"]"));
}

// Its workers may take their time to end.
TEST(WaitingNodesTest, ANodeThatLivesKeepsItsPlaceHoweverLateItComesBack) {
  for (const int min_nodes : {1, 2}) {
    const auto store = std::make_shared<HashStore>();
    const auto options = [&](const std::string& id) {
      StoreRendezvousOptions made = Options(id, min_nodes, 2);
      made.silence = kLong;
      return made;
    };
    Node a(store, options("a")), b(store, options("b")), c(store, options("c"));
    StartInOrder(store, {&a, &b});
    a.Get();
    b.Get();
    StartWithoutAPlace(store, c, "c");
    b.rendezvous->Publish(Failure("x"));
    a.AwaitEnd();
    b.Start();
    EXPECT_TRUE(IsWaiting(b, milliseconds(300)));
    a.Start();
    ASSERT_FALSE(IsWaiting(a, kLong / 2));
    const Assignment of_a = a.Get();
    EXPECT_EQ(of_a.generation, 1);
    EXPECT_EQ(of_a.node_rank, 0);
    EXPECT_EQ(b.Get().node_rank, 1);
    EXPECT_TRUE(IsWaiting(c, milliseconds(100)));
    c.cancelled = true;
    EXPECT_FALSE(c.next.get().has_value());
  }
}

TEST(WaitingNodesTest, ANodeThatDiesBeforeItComesBackLosesItsPlace) {
  const auto store = std::make_shared<HashStore>();
  auto a = std::make_unique<Node>(store, Options("a", 2, 2));
  Node b(store, Options("b", 2, 2)), c(store, Options("c", 2, 2));
  StartInOrder(store, {a.get(), &b});
  a->Get();
  b.Get();
  StartWithoutAPlace(store, c, "c");
  b.rendezvous->Publish(Failure("x"));
  a.reset();
  b.Start();
  EXPECT_EQ(b.Get().node_rank, 0);
  EXPECT_EQ(c.Get().node_rank, 1);
}

// As with --monitor_interval=30.
TEST(WaitingNodesTest, ASignalEndsTheWaitHoweverSeldomANodeLooks) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 2, 2);
  options.poll = kLong / 4;
  Node a(store, options);
  StartInOrder(store, {&a});
  ASSERT_TRUE(IsWaiting(a, milliseconds(300)));
  a.cancelled = true;
  EXPECT_FALSE(IsWaiting(a, kLong / 12));
  EXPECT_FALSE(a.next.get().has_value());
}

TEST(WaitingNodesTest, ANodeWaitsForAPlaceAsLongAsTheJobRuns) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("b", 1, 1);
  options.join_timeout = milliseconds(100);
  Node a(store, Options("a", 1, 1)), b(store, options);
  a.Start();
  a.Get();
  b.Start();
  EXPECT_TRUE(IsWaiting(b, milliseconds(500)));
  a.rendezvous->Done();
  EXPECT_EQ(MessageOf([&] { b.next.get(); }), "the job is over: it has finished");
}

// Others may be faster than the node whose store they meet in.
struct WithoutAPlaceForTheStore {
  explicit WithoutAPlaceForTheStore(int max_restarts) {
    const auto options = [&](const std::string& id) {
      StoreRendezvousOptions made = Options(id, 2, 2);
      made.max_restarts = max_restarts;
      made.holds_store = id == "a";
      if (made.holds_store) made.join_timeout = milliseconds(300);
      return made;
    };
    a = std::make_unique<Node>(store, options("a"));
    b = std::make_unique<Node>(store, options("b"));
    c = std::make_unique<Node>(store, options("c"));
    StartInOrder(store, {b.get(), c.get()});
    b->Get();
    c->Get();
    StartWithoutAPlace(store, *a, "a");
  }

  const std::shared_ptr<HashStore> store = std::make_shared<HashStore>();
  std::unique_ptr<Node> a, b, c;
};

TEST(WaitingNodesTest, TheStoresNodeWithoutAPlaceStaysUntilTheEnd) {
  WithoutAPlaceForTheStore nodes(/*max_restarts=*/2);
  EXPECT_TRUE(IsWaiting(*nodes.a, milliseconds(900)));
  nodes.b->rendezvous->Done();
  nodes.c->rendezvous->Done();
  nodes.a->Get();
  EXPECT_EQ(nodes.a->AwaitEnd().kind, Kind::kFinished);
  auto leaving = std::async(std::launch::async, [&] { nodes.a->rendezvous->Leave(); });
  EXPECT_EQ(leaving.wait_for(milliseconds(200)), std::future_status::timeout);
  for (Node* const node : {nodes.b.get(), nodes.c.get()}) {
    EXPECT_EQ(node->AwaitEnd().kind, Kind::kFinished);
    node->rendezvous->Leave();
  }
  EXPECT_EQ(leaving.wait_for(kLong), std::future_status::ready);
}

// Nobody else is left to tell it.
TEST(WaitingNodesTest, TheStoresNodeWithoutAPlaceFindsThatAllOthersAreLost) {
  WithoutAPlaceForTheStore nodes(/*max_restarts=*/0);
  nodes.b.reset();
  nodes.c.reset();
  ASSERT_FALSE(IsWaiting(*nodes.a, kLong / 2));
  nodes.a->Get();
  const GenerationEnd end = nodes.a->AwaitEnd();
  EXPECT_EQ(end.kind, Kind::kLost);
  EXPECT_FALSE(end.restart);
  EXPECT_EQ(end.exit_code, 1);
}

// Both leave, each with the other's word as the generation's end.
TEST(WaitingNodesTest, TheStoresNodeWithoutAPlaceHearsThatAllOthersHaveLeft) {
  const auto store = std::make_shared<HashStore>();
  const auto options = [&](const std::string& id) {
    StoreRendezvousOptions made = Options(id, 1, 2);
    made.max_restarts = 0;
    made.holds_store = id == "a";
    return made;
  };
  Node a(store, options("a")), b(store, options("b")), c(store, options("c"));
  StartInOrder(store, {&b, &c});
  b.Get();
  c.Get();
  StartWithoutAPlace(store, a, "a");
  for (const auto& [node, id] : {std::pair(&b, "b"), std::pair(&c, "c")}) {
    node->rendezvous->Publish({.kind = Kind::kLeft, .restart = true, .node = id, .headline = "left"});
  }
  ASSERT_FALSE(IsWaiting(a, kLong / 2));
  EXPECT_EQ(MessageOf([&] { a.next.get(); }), "the job is over: left");
}

}  // namespace
}  // namespace weft
