// Nodes for which a job has no place: whose place they take.

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/tools/launcher/rendezvous_node.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

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

}  // namespace
}  // namespace weft
