// What the flight recorder says that a rank waits for is what the rank's own thread waits for: a lane's worker that waits
// for another lane is no business of it. Scatters are held back until that worker waits, while the rank computes.

#include <gtest/gtest.h>

#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "parallel/parallelize.h"
#include "parallel/scheduler/task_graph.h"
#include "runtime/comm/work_state.h"
#include "runtime/comm/worker.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/scheduler/forward_operation.h"

namespace weft {
namespace {

// What the recorder said whenever a thread that is not the rank's began to wait for an operation.
class Notes {
 public:
  void Add(uint64_t awaited) {
    if (std::this_thread::get_id() == rank_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    awaited_.push_back(awaited);
    changed_.notify_all();
  }
  // Returns when `count` such waits have begun.
  std::vector<uint64_t> Await(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return awaited_.size() >= count; });
    return awaited_;
  }

  void Clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    awaited_.clear();
  }

  std::latch* held = nullptr;  // what operations on lanes are held back by

 private:
  const std::thread::id rank_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> awaited_;
};

class NotingState final : public WorkState {
 public:
  NotingState(Work inner, Notes* notes) : inner_(std::move(inner)), notes_(*notes) {}
  bool finished() const override { return inner_.Test(); }
  void Wait() override {
    notes_.Add(recorder()->Snapshot().awaited);
    inner_.WaitOnWorker();
  }
  bool WaitFor(std::chrono::milliseconds timeout) override { return inner_.WaitFor(timeout); }

 private:
  const Work inner_;
  Notes& notes_;
};

class NotingCommunicator final : public Communicator {
 public:
  NotingCommunicator(std::shared_ptr<Communicator> inner, Notes* notes)
      : Communicator(inner->name(), inner->rank(), inner->ranks(), /*ledger=*/nullptr),
        inner_(std::move(inner)),
        notes_(*notes) {}
  void Fail(absl::StatusCode code, const std::string& message) override { inner_->Fail(code, message); }
  void SetInBackground() override { inner_->SetInBackground(); }

 protected:
  Work Submit(Operation&& operation) override {
    Worker* const worker = operation.options.worker;
    if (worker == nullptr) return ForwardOperation(*inner_, operation);
    if (notes_.held != nullptr) worker->Submit([held = notes_.held] { held->wait(); });
    return Work(std::make_shared<NotingState>(ForwardOperation(*inner_, operation), &notes_));
  }

 private:
  const std::shared_ptr<Communicator> inner_;
  Notes& notes_;
};

// Operations over `axes` are noted, and held where the notes say so.
class NotingWorld final : public World {
 public:
  NotingWorld(World& inner, Notes* notes, std::string axes)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, inner.allocator(), inner.tracer()),
        inner_(inner),
        notes_(notes),
        axes_(std::move(axes)) {}
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    std::shared_ptr<Communicator> group = inner_.NewGroup(name, ranks);
    if (name != axes_) return group;
    return std::make_shared<NotingCommunicator>(std::move(group), notes_);
  }

 private:
  World& inner_;
  Notes* const notes_;
  const std::string axes_;
};

class Product : public Module {
 public:
  Parameter weight{this, "weight", {.shape = {4, 4}, .initializer = Initializer::Normal(0, 0.3)}};

 protected:
  DTensor Forward(const DTensor& x) override { return MatMul(x, weight.Value()); }
};

TEST(AwaitedLanesTest, AHeldScatterUnderHsdpIsNotWhatTheRankWaitsFor) {
  RunRanks(4, [](World& plain) {
    Notes notes;
    NotingWorld world(plain, &notes, "shard");
    Product model;
    const Plan plan = {{"", FullyShard("shard")}, {"", DataParallel("replica")}};
    const auto context = Parallelize(model, world, DeviceMesh::Parse("replica=2,shard=2"), plan, {});
    const DTensor x =
        RandomNormal(context, DType::kF32, {4, 4}, Layout::Parse("[replica.shard, -]", context->mesh()));
    Backward(Sum(Square(model(x))));  // learns the order
    model.weight.grad().ToLocal();
    model.weight.ClearGrad();
    notes.Clear();
    const DTensor loss = Sum(Square(model(x)));
    std::latch open(1);
    notes.held = &open;
    Backward(loss);
    // The replicas' lane waits for the scatter's by now, and this thread for nothing.
    EXPECT_EQ(notes.Await(1), std::vector<uint64_t>{0});
    EXPECT_EQ(world.flight_recorder().Snapshot().awaited, 0);
    open.count_down();
    EXPECT_EQ(model.weight.grad().ToLocal().num_elements(), 8);
    world.FinishWork();
  });
}

TEST(AwaitedLanesTest, NorIsWhatTasksOfAGraphWaitFor) {
  RunRanks(2, [](World& plain) {
    Notes notes;
    NotingWorld world(plain, &notes, "dp");
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const Layout whole(/*ndim=*/1, /*num_axes=*/1);
    const DTensor x = Full(context, DType::kF64, {4}, 1).Redistribute(whole.WithPartial(0));
    const auto moves = [&] { return std::vector<EachMove>{{.source = x, .to = whole}}; };
    std::latch open(1);
    notes.held = &open;
    TaskGraph graph(context);
    const auto sum = graph.Communicate("sum", Lane::kGrad, moves);
    graph.Communicate("again", Lane::kParam, moves, {sum});
    graph.Host("host", [] {}, {sum});
    graph.Compute("compute", [&] {
      EXPECT_EQ(notes.Await(2), (std::vector<uint64_t>{0, 0}));
      EXPECT_EQ(world.flight_recorder().Snapshot().awaited, 0);
      open.count_down();
    });
    graph.Run();
    world.FinishWork();
  });
}

}  // namespace
}  // namespace weft
