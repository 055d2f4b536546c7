// How failures of nodes are counted, and what follows.

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/message_of.h"
#include "tests/tools/launcher/rendezvous_node.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

TEST(FailureCountTest, FailuresCountSinceTheLastSave) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 1, 1);
  options.max_restarts = 1;
  options.has_saved = [](int64_t generation) { return generation < 3; };
  Node a(store, options);
  for (int generation = 0; generation < 5; ++generation) {
    a.Start();
    const Assignment assignment = a.Get();
    EXPECT_EQ(assignment.generation, generation);
    EXPECT_EQ(assignment.restarts, generation == 0 ? 0 : generation < 4 ? 1 : 2) << generation;
    const GenerationEnd end = a.rendezvous->Publish(Failure("x"));
    EXPECT_EQ(end.saved, generation < 3);
    // Generation 3 saved nothing: it is the restart that there was, after generation 2.
    EXPECT_EQ(end.restart, generation < 3) << generation;
    if (!end.restart) break;
  }
}

// How often node b may fail, `seconds` after each other, until it is left out; at most 6 times.
int FailuresUntilLeftOut(int64_t seconds, int saved_generation) {
  const auto store = std::make_shared<HashStore>();
  int64_t now_s = 1000;
  const auto options = [&](const std::string& id) {
    StoreRendezvousOptions made = Options(id, 1, 2);
    made.max_restarts = 100;
    made.now_s = [&] { return now_s; };
    made.has_saved = [=](int64_t generation) { return generation == saved_generation; };
    return made;
  };
  Node a(store, options("a")), b(store, options("b"));
  StartInOrder(store, {&a, &b});
  for (int failures = 1; failures <= 6; ++failures) {
    EXPECT_EQ(a.Get().num_nodes, 2);
    b.Get();
    GenerationEnd end = Failure("x");
    end.node = "b";
    b.rendezvous->Publish(end);
    a.AwaitEnd();
    now_s += seconds;
    b.Start();
    if (b.next.wait_for(milliseconds(200)) == std::future_status::ready) {
      EXPECT_EQ(MessageOf([&] { b.next.get(); }),
                "node host_b is left out of the job: its workers failed 3 times within 10 minutes without a "
                "save between them");
      a.Start();
      EXPECT_EQ(a.Get().num_nodes, 1);
      return failures;
    }
    a.Start();
  }
  a.Get();
  b.Get();
  return 6;
}

TEST(FailureCountTest, ANodeThatFailsAgainAndAgainIsLeftOut) {
  EXPECT_EQ(FailuresUntilLeftOut(/*seconds=*/1, /*saved_generation=*/-1), 3);
  EXPECT_EQ(FailuresUntilLeftOut(/*seconds=*/299, /*saved_generation=*/-1), 3);
  // Never three within ten minutes.
  EXPECT_EQ(FailuresUntilLeftOut(/*seconds=*/301, /*saved_generation=*/-1), 6);
  // A save between the second and the third.
  EXPECT_EQ(FailuresUntilLeftOut(/*seconds=*/1, /*saved_generation=*/2), 5);
}

// Where the others are too few without it, it goes on.
TEST(FailureCountTest, TheQuorumIsNotLeftOut) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 1, 1);
  options.max_restarts = 100;
  Node a(store, options);
  for (int generation = 0; generation < 5; ++generation) {
    a.Start();
    EXPECT_EQ(a.Get().generation, generation);
    GenerationEnd end = Failure("x");
    end.node = "a";
    EXPECT_TRUE(a.rendezvous->Publish(end).restart);
  }
}

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

// A node that is told to stop is no failure: those that are enough without it go on, also where no failure may be.
TEST(FailureCountTest, ANodeThatLeavesIsNoFailure) {
  const auto store = std::make_shared<HashStore>();
  const auto options = [](const std::string& id) {
    StoreRendezvousOptions made = Options(id, 1, 3);
    made.max_restarts = 0;
    return made;
  };
  Node a(store, options("a")), b(store, options("b")), c(store, options("c"));
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
TEST(FailureCountTest, ANodeThatLeavesIsReplaced) {
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

TEST(FailureCountTest, WithoutRestartsTooFewEndWhenANodeLeaves) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 2, 2);
  options.max_restarts = 0;
  Node a(store, options);
  options.id = "b";
  Node b(store, options);
  StartInOrder(store, {&a, &b});
  a.Get();
  b.Get();
  EXPECT_FALSE(OthersGoOn(b, "b"));
  EXPECT_FALSE(a.AwaitEnd().restart);
}

// With the node that keeps the store the store goes.
TEST(FailureCountTest, WithoutTheStoresNodeNobodyGoesOn) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 1, 2);
  options.max_restarts = 0;
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

// A node that waits for a place may be gone, so it does not count as one of the others.
TEST(FailureCountTest, NodesThatWaitAreNotCounted) {
  const auto store = std::make_shared<HashStore>();
  StoreRendezvousOptions options = Options("a", 1, 1);
  options.max_restarts = 100;
  Node a(store, options);
  a.Start();
  a.Get();
  auto waiting = std::make_unique<Node>(store, Options("b", 1, 1));
  waiting->Start();
  AwaitState(store, "\"waiting\":[\"b\"]");
  waiting->cancelled = true;
  waiting.reset();
  for (int failure = 0; failure < 4; ++failure) {
    // As if b had died without a word.
    MeetingState state = MeetingState::FromText(store->TryGet("state").value());
    state.waiting = {"b"};
    store->Set("state", state.ToText());
    GenerationEnd end = Failure("x");
    end.node = "a";
    EXPECT_TRUE(a.rendezvous->Publish(end).restart);
    a.Start();
    EXPECT_EQ(a.Get().generation, failure + 1);
  }
}

// The node that keeps the store stays until the job is over, so that the others can go on.
TEST(FailureCountTest, TheStoresNodeWaitsOutsideForTheEnd) {
  const auto store = std::make_shared<HashStore>();
  const auto options = [&](const std::string& id) {
    StoreRendezvousOptions made = Options(id, 1, 2);
    made.max_restarts = 100;
    made.holds_store = id == "a";
    made.join_timeout = milliseconds(300);
    return made;
  };
  Node a(store, options("a")), b(store, options("b"));
  StartInOrder(store, {&a, &b});
  for (int failure = 0; failure < 3; ++failure) {
    a.Get();
    b.Get();
    GenerationEnd end = Failure("x");
    end.node = "a";
    a.rendezvous->Publish(end);
    b.AwaitEnd();
    a.Start();
    b.Start();
  }
  EXPECT_EQ(b.Get().num_nodes, 1);
  EXPECT_TRUE(IsWaiting(a, milliseconds(600)));
  b.rendezvous->Done();
  // Then it is told how, and stays until b has read that too.
  a.Get();
  EXPECT_EQ(a.AwaitEnd().kind, GenerationEnd::Kind::kFinished);
  auto leaving = std::async(std::launch::async, [&] { a.rendezvous->Leave(); });
  EXPECT_EQ(leaving.wait_for(milliseconds(200)), std::future_status::timeout);
  EXPECT_EQ(b.AwaitEnd().kind, GenerationEnd::Kind::kFinished);
  b.rendezvous->Leave();
  EXPECT_EQ(leaving.wait_for(kLong), std::future_status::ready);
}

}  // namespace
}  // namespace weft
