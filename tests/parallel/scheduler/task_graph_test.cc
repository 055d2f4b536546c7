#include "parallel/scheduler/task_graph.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using Task = TaskGraph::Task;

void OnRanks(int num_ranks, const std::function<void(const IntrusivePtr<MeshContext>&)>& body) {
  RunRanks(num_ranks,
           [&](World& world) { body(Bind(world, DeviceMesh::Parse(absl::StrCat("dp=", num_ranks)))); });
}

TEST(TaskGraphTest, CollectivesGoFirstAndInTheOrderOfInsertion) {
  OnRanks(1, [](const IntrusivePtr<MeshContext>& context) {
    TaskGraph graph(context);
    const auto nothing = [] {};
    const auto no_moves = [] { return std::vector<EachMove>(); };
    const Task a = graph.Compute("a", nothing);
    const Task b = graph.Compute("b", nothing);
    const Task first = graph.Communicate("first", Lane::kParam, no_moves, {b});
    const Task second = graph.Communicate("second", Lane::kGrad, no_moves);
    const Task host = graph.Host("host", nothing, {second});
    const Task c = graph.Compute("c", nothing, {first});
    graph.DependsOn(a, c);  // inserted before it
    // "second" is ready at once, but waits for "first", as on a rank where it is not.
    EXPECT_EQ(graph.Order(), (std::vector<Task>{b, first, second, host, c, a}));
    EXPECT_EQ(TaskGraph(context).Order(), std::vector<Task>());
  });
}

TEST(TaskGraphTest, NamesTheCircle) {
  OnRanks(1, [](const IntrusivePtr<MeshContext>& context) {
    const auto nothing = [] {};
    const auto no_moves = [] { return std::vector<EachMove>(); };
    int num_run = 0;
    TaskGraph graph(context);
    graph.Compute("before", [&] { ++num_run; });
    const Task a = graph.Compute("a", nothing, {0});
    const Task b = graph.Host("b", nothing, {a});
    const Task c = graph.Compute("c", nothing, {b});
    EXPECT_EQ(graph.Order().size(), 4u);
    graph.DependsOn(a, c);
    EXPECT_EQ(MessageOf([&] { graph.Run(); }),
              "TaskGraph: tasks wait for each other in a circle: 'a' after 'c' after 'b' after 'a'");
    EXPECT_EQ(num_run, 0);

    // A circle through the order of issue.
    TaskGraph issued(context);
    const Task first = issued.Communicate("first", Lane::kParam, no_moves);
    const Task second = issued.Communicate("second", Lane::kGrad, no_moves);
    issued.DependsOn(first, issued.Compute("between", nothing, {second}));
    EXPECT_EQ(
        MessageOf([&] { issued.Order(); }),
        "TaskGraph: tasks wait for each other in a circle: 'first' after 'between' after 'second' issued "
        "after 'first'");

    TaskGraph alone(context);
    const Task self = alone.Compute("self", nothing);
    alone.DependsOn(self, self);
    EXPECT_EQ(MessageOf([&] { alone.Order(); }),
              "TaskGraph: tasks wait for each other in a circle: 'self' after 'self'");
  });
}

TEST(TaskGraphTest, RefusesWhatThereIsNot) {
  OnRanks(1, [](const IntrusivePtr<MeshContext>& context) {
    TaskGraph graph(context);
    EXPECT_EQ(MessageOf([&] { graph.Compute("x", nullptr); }), "TaskGraph: task 'x' has no function");
    EXPECT_EQ(MessageOf([&] { graph.Communicate("x", Lane::kGrad, nullptr); }),
              "TaskGraph: task 'x' has no function");
    EXPECT_EQ(MessageOf([&] { graph.Host("x", [] {}, {0}); }),
              "TaskGraph: there is no task 0; the graph has 0");
    const Task task = graph.Host("x", [] {});
    EXPECT_EQ(MessageOf([&] { graph.DependsOn(task, 7); }), "TaskGraph: there is no task 7; the graph has 1");
    EXPECT_EQ(MessageOf([&] { graph.Results(task); }),
              "TaskGraph: task 'x' does not communicate: it has no results");
  });
}

// From lane to lane, through the host and through computing: each task sees what it waits for. Many times, with
// delays where another order would show.
TEST(TaskGraphTest, EachTaskSeesWhatItWaitsFor) {
  OnRanks(3, [](const IntrusivePtr<MeshContext>& context) {
    const DeviceMesh& mesh = context->mesh();
    const Layout split = Layout::Parse("[dp]", mesh), whole = Layout::Parse("[-]", mesh);
    const Layout partial = Layout::Parse("[-] P{dp}", mesh);
    DTensor x, y;
    std::atomic<int> written = 0;
    int seen = 0;
    TaskGraph graph(context);
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
    const Task make =
        graph.Compute("make", [&] { x = RandomNormal(context, DType::kF64, {30}).Redistribute(partial); });
    const Task host = graph.Host("host", [&] { pause(), written = written + 1; });
    const Task scatter =
        graph.Communicate("scatter", Lane::kGrad,
                          [&] { return std::vector<EachMove>{{.source = x, .to = split}}; }, {make, host});
    // On a lane of its own, without a reader in between.
    const Task gather = graph.Communicate(
        "gather", Lane::kParam,
        [&] { return std::vector<EachMove>{{.source = graph.Results(scatter)[0], .to = whole}}; }, {scatter});
    const Task after = graph.Host("after", [&] { pause(), written = written * 10; }, {gather});
    graph.Compute("use", [&] { seen = written, y = 2 * graph.Results(gather)[0]; }, {gather, after});
    for (int i = 0; i < 10; ++i) {
      written = 0;
      graph.Run();
      EXPECT_EQ(seen, 10);
      EXPECT_TRUE(SameBits(y.ToLocal(), (2 * x.Redistribute(split).Redistribute(whole)).ToLocal()));
    }
  });
}

// A dependency without a tensor: the later lane's worker waits, and the rank's thread does not.
TEST(TaskGraphTest, TheLaterLaneWaits) {
  OnRanks(2, [](const IntrusivePtr<MeshContext>& context) {
    const Layout whole(/*ndim=*/1, /*num_axes=*/1);
    const DTensor x = Full(context, DType::kF64, {4}, 1).Redistribute(whole.WithPartial(0));
    std::atomic<bool> open = false;
    TaskGraph graph(context);
    const Task slow = graph.Host("slow", [&] {
      while (!open) std::this_thread::yield();
    });
    const Task sum = graph.Communicate(
        "sum", Lane::kGrad, [&] { return std::vector<EachMove>{{.source = x, .to = whole}}; }, {slow});
    const Task again = graph.Communicate(
        "again", Lane::kParam, [&] { return std::vector<EachMove>{{.source = x, .to = whole}}; }, {sum});
    bool was_pending = false;
    graph.Compute("compute", [&] {
      // Issued, and held back by the host task.
      was_pending = !graph.Results(sum)[0].impl()->pending()->Test() &&
                    !graph.Results(again)[0].impl()->pending()->Test();
      open = true;
    });
    graph.Run();
    EXPECT_TRUE(was_pending);
    EXPECT_EQ(graph.Results(again)[0].ToLocal().ToVector<double>(),
              graph.Results(sum)[0].ToLocal().ToVector<double>());
  });
}

TEST(TaskGraphTest, TheFirstErrorIsThrownWhenTheHostHasEnded) {
  OnRanks(1, [](const IntrusivePtr<MeshContext>& context) {
    std::atomic<bool> open = false, ended = false;
    TaskGraph graph(context);
    graph.Host("slow", [&] {
      while (!open) std::this_thread::yield();
      ended = true;
    });
    const Task fails = graph.Compute("fails", [&] {
      open = true;
      ThrowInvalidArgument("the test says so");
    });
    bool ran = false;
    graph.Compute("never", [&] { ran = true; }, {fails});
    EXPECT_EQ(MessageOf([&] { graph.Run(); }), "the test says so");
    EXPECT_TRUE(ended);
    EXPECT_FALSE(ran);

    TaskGraph host(context);
    host.Host("fails", [] { ThrowInvalidArgument("so does the host"); });
    EXPECT_EQ(MessageOf([&] { host.Run(); }), "so does the host");
  });
}

}  // namespace
}  // namespace weft
