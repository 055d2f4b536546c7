// Communication that lanes run lies beside what the rank computes: seen in the trace, with collectives that are held
// back until backward has returned, so that no machine is too slow for it.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "examples/gpt_plan.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "parallel/parallelize.h"
#include "runtime/comm/worker.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

// Closed while backward runs.
class Gate {
 public:
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
    num_waiting_ = 0;
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // Returns when it is open.
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  // Returns when somebody stands before it.
  void AwaitSomebody() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return num_waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int num_waiting_ = 0;
};

// Another communicator, whose operations on a lane wait at the gate.
class GatedCommunicator final : public Communicator {
 public:
  GatedCommunicator(std::shared_ptr<Communicator> inner, Gate* gate)
      : Communicator(inner->name(), inner->rank(), inner->ranks(), /*ledger=*/nullptr),
        inner_(std::move(inner)),
        gate_(gate) {}

  void Fail(absl::StatusCode code, const std::string& message) override { inner_->Fail(code, message); }
  void SetInBackground() override { inner_->SetInBackground(); }

 protected:
  Work Submit(Operation&& operation) override {
    if (operation.options.worker != nullptr) {
      operation.options.worker->Submit([gate = gate_] { gate->Pass(); });
      gate_->AwaitSomebody();
    }
    std::vector<CollectivePart> parts;
    for (const Operation::Part& part : operation.parts) {
      const auto& counts = part.descriptor.counts;
      parts.push_back({part.input, part.output, {counts.begin(), counts.end()}});
    }
    const CollectiveDescriptor& what = operation.descriptor;
    if (operation.parts.empty()) {
      parts.push_back({operation.input, operation.output, {what.counts.begin(), what.counts.end()}});
    }
    switch (what.kind) {
      case CollectiveKind::kAllReduce:
        return inner_->AllReduceEach(parts, what.op, operation.options);
      case CollectiveKind::kAllGather:
        return inner_->AllGatherEach(parts, operation.options);
      case CollectiveKind::kReduceScatter:
        return inner_->ReduceScatterEach(parts, what.op, operation.options);
      default:
        ThrowInvalidArgument("this test does not forward ", what.ToString());
    }
  }

 private:
  const std::shared_ptr<Communicator> inner_;
  Gate* const gate_;
};

class GatedWorld final : public World {
 public:
  GatedWorld(World& inner, Gate* gate)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, inner.allocator(), inner.tracer()),
        inner_(inner),
        gate_(gate) {}
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_shared<GatedCommunicator>(inner_.NewGroup(name, ranks), gate_);
  }

 private:
  World& inner_;
  Gate* const gate_;
};

struct Interval {
  double begin = 0;
  double end = 0;
};

// The spans of a category on one lane of a rank.
std::vector<Interval> SpansOf(const nlohmann::json& trace, const std::string& category, int rank, int lane) {
  std::vector<Interval> spans;
  for (const nlohmann::json& event : trace) {
    if (event["ph"] != "X" || event["cat"] != category || event["pid"] != rank || event["tid"] != lane)
      continue;
    const double begin = event["ts"].get<double>();
    spans.push_back({begin, begin + event["dur"].get<double>()});
  }
  return spans;
}

int CountInside(const std::vector<Interval>& inner, const std::vector<Interval>& outer) {
  int count = 0;
  for (const Interval& span : inner) {
    for (const Interval& around : outer) {
      if (around.begin <= span.begin && span.end <= around.end) {
        ++count;
        break;
      }
    }
  }
  return count;
}

TEST(OverlapTest, BackwardComputesWhileGradientsMove) {
  Tracer tracer;
  RunRanks(2,
           [](World& plain) {
             Gate gate;
             GatedWorld world(plain, &gate);
             Gpt model({.vocabulary = 31, .context = 8, .layers = 3, .heads = 2, .dim = 16});
             const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
             Plan plan = GptPlan(mesh, DataPlan::kDdp, /*sequence_parallel=*/false);
             plan.set_scheduler({.bucket_mb = 0.01});
             const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF32});
             const Tensor ones = Tensor::FromValues<int32_t>({2, 8}, std::vector<int32_t>(16, 1));
             const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
             Backward(model.Loss(tokens, tokens).Mean());  // learns the order
             for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
             const DTensor loss = model.Loss(tokens, tokens).Mean();
             gate.Close();
             Backward(loss);  // returns, though no gradient has moved
             int num_pending = 0;
             for (const Parameter* parameter : model.AllParameters()) {
               num_pending +=
                   parameter->grad().impl()->pending() && !parameter->grad().impl()->pending()->Test();
             }
             EXPECT_EQ(num_pending, std::ssize(model.AllParameters()));
             gate.Open();
             for (const Parameter* parameter : model.AllParameters()) {
               EXPECT_EQ(parameter->grad().ToLocal().num_elements(), parameter->spec().shape.num_elements());
             }
             world.FinishWork();
           },
           {.threads_per_rank = 1, .tracer = &tracer});
  const nlohmann::json trace = nlohmann::json::parse(tracer.ToChromeJson());
  for (const int rank : {0, 1}) {
    const std::vector<Interval> ops = SpansOf(trace, "op", rank, static_cast<int>(Lane::kInline));
    const std::vector<Interval> moves = SpansOf(trace, "comm", rank, static_cast<int>(Lane::kGrad));
    EXPECT_GT(moves.size(), 5u);
    // All of backward but what came before its first bucket: most of three blocks.
    EXPECT_GT(CountInside(ops, moves), 30) << "of " << ops.size() << " ops on rank " << rank;
  }
}

}  // namespace
}  // namespace weft
