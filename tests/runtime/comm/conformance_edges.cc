// Messages by directed edge and tag: nothing waits for anything of another edge, direction or tag.

#include <algorithm>
#include <random>

#include "runtime/comm/edges.h"
#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

Edges MakeEdges(World& world, const std::vector<Edge>& edges) {
  return Edges(
      "pp", AllRanks(world), world.rank(), edges,
      [&](const std::string& name, const std::vector<int>& ranks) { return world.NewGroup(name, ranks); });
}

// Message `ordinal` of an edge and tag.
Tensor MessageOf(World& world, int from, int to, int tag, int ordinal, int64_t count) {
  return InputTensor<int64_t>(world, from * 100 + to * 10 + tag, count, 1000 * ordinal);
}

void ExpectMessage(World& world, const Tensor& got, int from, int to, int tag, int ordinal) {
  const std::vector<int64_t> expected =
      MessageOf(world, from, to, tag, ordinal, got.num_elements()).ToVector<int64_t>();
  Expect(got.ToVector<int64_t>() == expected, "message ", ordinal, " of ", from, "->", to, " tag ", tag,
         " is another");
}

TEST_P(CommConformance, ReceivesMayBeIssuedBeforeSends) {
  Run(2, [](World& world) {
    Edges edges = MakeEdges(world, {{0, 1}, {1, 0}});
    const int me = world.rank(), peer = 1 - me;
    int ordinal = 0;
    for (int64_t count : {0, 1, 100, 100003}) {
      const Tensor got = OutputTensor<int64_t>(world, count);
      const Work received = edges.Recv(got, peer, 0, {.async = true});
      edges.Send(MessageOf(world, me, peer, 0, ordinal, count), peer, 0);  // blocks
      AwaitOnHost(world, received);
      ExpectMessage(world, got, peer, me, 0, ordinal++);
    }
  });
}

TEST_P(CommConformance, MessagesMeetByTag) {
  Run(2, [](World& world) {
    constexpr int kTags = 3;
    Edges edges = MakeEdges(world, {{0, 1, kTags}});
    const int64_t count = 5000;
    std::vector<Work> sent;
    for (int i = 0; i < kTags; ++i) {
      if (world.rank() == 0) {
        sent.push_back(edges.Send(MessageOf(world, 0, 1, i, 0, count), 1, i, {.async = true}));
      } else {
        const int tag = kTags - 1 - i;  // the last one first, blocking
        const Tensor got = OutputTensor<int64_t>(world, count);
        AwaitOnHost(world, edges.Recv(got, 0, tag));
        ExpectMessage(world, got, 0, 1, tag, 0);
      }
    }
    for (const Work& work : sent) AwaitOnHost(world, work);
  });
}

// Every member issues all it sends and receives in an order of its own, and waits afterwards.
TEST_P(CommConformance, OutstandingMessagesKeepTheirOrderWithinATag) {
  for (const int num_ranks : {2, 4}) {
    Run(num_ranks, [this](World& world) {
      constexpr int kTags = 2, kMessages = 5;
      const int n = world.size(), me = world.rank();
      std::vector<Edge> declared;  // a chain, both ways: a pipeline's activations and gradients
      for (int i = 0; i + 1 < n; ++i) {
        declared.push_back({i, i + 1, kTags});
        declared.push_back({i + 1, i, kTags});
      }
      Edges edges = MakeEdges(world, declared);
      for (int round = 0; round < std::max(1, Repeats(4)); ++round) {
        struct Queue {
          int from = 0, to = 0, tag = 0;
          std::vector<Tensor> tensors = {};
          std::vector<Work> works = {};
        };
        std::vector<Queue> queues;
        for (const Edge& edge : declared) {
          for (int tag = 0; tag < kTags; ++tag) {
            if (edge.from == me || edge.to == me) queues.push_back({edge.from, edge.to, tag});
          }
        }
        std::vector<size_t> order;
        for (size_t i = 0; i < queues.size(); ++i) order.insert(order.end(), kMessages, i);
        std::shuffle(order.begin(), order.end(), std::mt19937(17 * round + me));
        for (const size_t i : order) {
          Queue& queue = queues[i];
          const int ordinal = static_cast<int>(queue.works.size());
          const int64_t count = ordinal % 2 == 0 ? 3 : 20011;
          if (queue.from == me) {
            queue.tensors.push_back(MessageOf(world, me, queue.to, queue.tag, ordinal, count));
            queue.works.push_back(edges.Send(queue.tensors.back(), queue.to, queue.tag, {.async = true}));
          } else {
            queue.tensors.push_back(OutputTensor<int64_t>(world, count));
            queue.works.push_back(edges.Recv(queue.tensors.back(), queue.from, queue.tag, {.async = true}));
          }
        }
        for (const Queue& queue : queues) {
          for (size_t i = 0; i < queue.works.size(); ++i) {
            AwaitOnHost(world, queue.works[i]);
            ExpectMessage(world, queue.tensors[i], queue.from, queue.to, queue.tag, static_cast<int>(i));
          }
        }
      }
    });
  }
}

// Nobody waits: both threads look, as one that computes would at its next pause.
TEST_P(CommConformance, MessagesAreUnderWayWhileTheRankComputes) {
  Run(2, [](World& world) {
    if (!OnCpu(world)) return;  // an emulated stream runs when somebody waits for it
    Edges edges = MakeEdges(world, {{0, 1}, {1, 0}});
    const int me = world.rank(), peer = 1 - me;
    const int64_t count = 1 << 18;
    const Tensor got = OutputTensor<int64_t>(world, count);
    const Tensor sent = MessageOf(world, me, peer, 0, 0, count);
    const Work receive = edges.Recv(got, peer, 0, {.async = true});
    const Work send = edges.Send(sent, peer, 0, {.async = true});
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    volatile uint64_t computed = 0;
    while (!receive.Test() || !send.Test()) {
      for (int i = 0; i < 1000; ++i) computed = Mix(computed);
      Expect(std::chrono::steady_clock::now() < give_up, "the messages do not move by themselves");
    }
    ExpectMessage(world, got, peer, me, 0, 0);
  });
}

TEST_P(CommConformance, UndeclaredEdgesAreMisuse) {
  Run(2, [](World& world) {
    Edges edges = MakeEdges(world, {{0, 1, 2}});
    const Tensor tensor = InputTensor<float>(world, 0, 1);
    const int me = world.rank();
    ExpectContains(ErrorOf(absl::StatusCode::kInvalidArgument, [&] { edges.Send(tensor, 1 - me, 2); }),
                   {absl::StrCat("edges 'pp': member ", me, " has no edge ", me, "->", 1 - me, " tag 2"),
                    "it has 0->1 tag 0, 0->1 tag 1"});
    for (const auto& [edge, text] : std::vector<std::pair<Edge, std::string>>{
             {{0, 2}, "edge 0->2 leaves the group, which has 2 members"},
             {{1, 1}, "edge 1->1 leads to itself"},
             {{0, 1, 0}, "edge 0->1 has 0 tags, expected at least 1"}}) {
      ExpectContains(ErrorOf(absl::StatusCode::kInvalidArgument, [&] { MakeEdges(world, {edge}); }), {text});
    }
    ExpectContains(ErrorOf(absl::StatusCode::kInvalidArgument,
                           [&] {
                             MakeEdges(world, {{0, 1}, {0, 1}});
                           }),
                   {"edge 0->1 is given twice"});
  });
}

// The error names the edge, and whoever has not come; the other way still works.
TEST_P(CommConformance, AnEdgeThatFailsEndsAlone) {
  Run(2, [](World& world) {
    Edges edges = MakeEdges(world, {{0, 1}, {1, 0}});
    if (world.rank() == 1) {
      edges.queue(0, 1, 0).set_timeout(milliseconds(50));
      const Tensor got = OutputTensor<int64_t>(world, 3);
      const std::string message = ErrorOf(absl::StatusCode::kDeadlineExceeded, [&] {
        AwaitOnHost(world, edges.Recv(got, 0, 0, {.async = true}));
      });
      ExpectContains(message, {"group 'pp 0->1 tag 0'", "world rank 1 waited 50 ms", "[0]"});
      AwaitOnHost(world, edges.Send(MessageOf(world, 1, 0, 0, 0, 3), 0, 0));
    } else {
      const Tensor got = OutputTensor<int64_t>(world, 3);
      AwaitOnHost(world, edges.Recv(got, 1, 0));
      ExpectMessage(world, got, 1, 0, 0, 0);
    }
  });
}

}  // namespace
}  // namespace weft
