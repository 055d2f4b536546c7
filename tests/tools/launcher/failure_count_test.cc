// How failures of nodes are counted, and what follows.

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
    // It opens the next generation, and whether it is left out stands there.
    AwaitState(store, absl::StrCat("\"generation\":", failures));
    if (MeetingState::FromText(store->TryGet("state").value()).IsLeftOut("b")) {
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

// Each node dates its failures by its own clock. Here that of b is an hour ahead.
TEST(FailureCountTest, ClocksOfTwoNodesAreNotCompared) {
  const auto store = std::make_shared<HashStore>();
  const auto options = [](const std::string& id, int64_t now_s) {
    StoreRendezvousOptions made = Options(id, 1, 2);
    made.max_restarts = 100;
    made.now_s = [now_s] { return now_s; };
    return made;
  };
  Node a(store, options("a", 1000)), b(store, options("b", 4600));
  StartInOrder(store, {&a, &b});
  for (const bool is_a : {true, false, true, false, true}) {
    EXPECT_EQ(a.Get().num_nodes, 2);
    b.Get();
    GenerationEnd end = Failure("x");
    end.node = is_a ? "a" : "b";
    (is_a ? a : b).rendezvous->Publish(end);
    (is_a ? b : a).AwaitEnd();
    a.Start();
    b.Start();
  }
  EXPECT_EQ(MessageOf([&] { a.next.get(); }),
            "node host_a is left out of the job: its workers failed 3 times within 10 minutes without a "
            "save between them");
  EXPECT_EQ(b.Get().num_nodes, 1);
}

// What a clock has dated before it was set back says nothing of the last ten minutes.
TEST(FailureCountTest, AClockThatIsSetBackBeginsAnew) {
  MeetingState state;
  for (const int64_t time_s : {5000, 5300, 1700}) {
    GenerationEnd end = Failure("x");
    end.node = "a";
    end.time_s = time_s;
    state.Reopen(end);
  }
  EXPECT_EQ(state.failures, (std::vector<NodeFailure>{{"a", 1700}}));
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

// The node that keeps the store stays until the job is over, so that the others can go on. Here it is "a", left out; "b"
// runs alone.
struct StoresNodeLeftOut {
  explicit StoresNodeLeftOut(milliseconds join_timeout) {
    const auto options = [&](const std::string& id) {
      StoreRendezvousOptions made = Options(id, 1, 2);
      made.max_restarts = 100;
      made.holds_store = id == "a";
      made.join_timeout = join_timeout;
      return made;
    };
    a = std::make_unique<Node>(store, options("a"));
    b = std::make_unique<Node>(store, options("b"));
    StartInOrder(store, {a.get(), b.get()});
    for (int failure = 0; failure < 3; ++failure) {
      a->Get();
      b->Get();
      GenerationEnd end = Failure("x");
      end.node = "a";
      a->rendezvous->Publish(end);
      b->AwaitEnd();
      a->Start();
      b->Start();
    }
    EXPECT_EQ(b->Get().num_nodes, 1);
  }

  // "b" is told to stop, or its machine dies.
  void LoseB(bool is_told) {
    if (is_told) {
      b->rendezvous->Publish(
          {.kind = GenerationEnd::Kind::kLeft, .restart = true, .node = "b", .headline = "left"});
      b->rendezvous->Leave();
    }
    b.reset();
  }

  const std::shared_ptr<HashStore> store = std::make_shared<HashStore>();
  std::unique_ptr<Node> a, b;
};

TEST(FailureCountTest, TheStoresNodeWaitsOutsideForTheEnd) {
  StoresNodeLeftOut nodes(milliseconds(1000));
  EXPECT_TRUE(IsWaiting(*nodes.a, milliseconds(2000)));
  nodes.b->rendezvous->Done();
  // Then it is told how, and stays until b has read that too.
  nodes.a->Get();
  EXPECT_EQ(nodes.a->AwaitEnd().kind, GenerationEnd::Kind::kFinished);
  auto leaving = std::async(std::launch::async, [&] { nodes.a->rendezvous->Leave(); });
  EXPECT_EQ(leaving.wait_for(milliseconds(200)), std::future_status::timeout);
  EXPECT_EQ(nodes.b->AwaitEnd().kind, GenerationEnd::Kind::kFinished);
  nodes.b->rendezvous->Leave();
  EXPECT_EQ(leaving.wait_for(kLong), std::future_status::ready);
}

TEST(FailureCountTest, TheStoresNodeDoesNotWaitOutsideForANodeThatIsGone) {
  for (const bool is_told : {true, false}) {
    StoresNodeLeftOut nodes(milliseconds(1000));
    nodes.LoseB(is_told);
    // As long as another may come.
    ASSERT_FALSE(IsWaiting(*nodes.a, kLong / 2)) << is_told;
    EXPECT_EQ(MessageOf([&] { nodes.a->next.get(); }),
              "waited 1 s: 0 of 1 nodes are at meet:5; --rdzv_conf=join_timeout=SECONDS waits longer");
    EXPECT_EQ(MeetingState::FromText(nodes.store->TryGet("state").value()).closed,
              "node host_a has waited in vain");
  }
}

TEST(FailureCountTest, AnotherGoesOnInTheStoreOfANodeThatIsLeftOut) {
  for (const bool is_told : {true, false}) {
    StoresNodeLeftOut nodes(kLong);
    nodes.LoseB(is_told);
    StoreRendezvousOptions options = Options("c", 1, 2);
    options.max_restarts = 100;
    Node c(nodes.store, options);
    c.Start();
    ASSERT_FALSE(IsWaiting(c, kLong / 2)) << is_told;
    const Assignment of_c = c.Get();
    EXPECT_EQ(of_c.generation, 4);
    EXPECT_EQ(of_c.num_nodes, 1);
    EXPECT_TRUE(IsWaiting(*nodes.a, milliseconds(100)));
    c.rendezvous->Done();
    nodes.a->Get();
    EXPECT_EQ(nodes.a->AwaitEnd().kind, GenerationEnd::Kind::kFinished);
  }
}

}  // namespace
}  // namespace weft
