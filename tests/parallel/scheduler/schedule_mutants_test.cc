// Is the comparison with one rank sharp for mistakes of a schedule, too? Each of these, planted on purpose, must make it
// fail, or an error must name it.

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/comm/worker.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"
#include "tests/parallel/scheduler/forward_operation.h"

namespace weft {
namespace {

constexpr int kParameters = 29;

TrainingRun RunUnder(const std::string& plan, int64_t steps = 1, int64_t microbatches = 1) {
  const std::string mesh = plan == "hsdp" ? "replica=2,shard=2" : "dp=2";
  TrainingRun run =
      RunOf({.plan = plan, .mesh = mesh, .microbatches = microbatches, .batch = 5, .steps = steps}, mesh);
  run.plan.set_scheduler({.bucket_mb = 0.005});  // many buckets
  return run;
}

const TrainingResult& OneRank() {
  static const TrainingResult result = Train(RunOf({.plan = "", .mesh = "", .batch = 5, .steps = 2}, ""));
  return result;
}

// What the comparison with one rank says, of the steps that the run has.
std::vector<std::string> Verdict(const TrainingRun& run) {
  TrainingResult expected = OneRank();
  expected.losses.resize(run.steps);
  std::erase_if(expected.gradients, [&](const auto& of_step) { return of_step.first > run.steps; });
  return Differences(expected, Train(run), kF64Tolerance);
}

// Mistakes in what a rank does with an operation.
struct Mistake {
  // kLeavesOutWait: what the operation makes is not there at all; kWaitsForNothing: it comes, when all that should have
  // waited for it is over.
  enum class Kind { kNone, kSwapsOrder, kLeavesOutWait, kWaitsForNothing, kFreesEarly };
  Kind kind = Kind::kNone;
  int64_t at = -1;                    // the operation on a lane, from 0; of kSwapsOrder: a leaf
  std::vector<int64_t> num_ops = {};  // on lanes, by rank
  // Of kWaitsForNothing, by rank: where the rank is in its step, and how it runs what is late.
  struct Late {
    bool in_update = false;
    bool is_of_update = false;
    std::function<void()> run = nullptr;
  };
  std::vector<Late> late = {};
};

class MistakenCommunicator final : public Communicator {
 public:
  MistakenCommunicator(std::shared_ptr<Communicator> inner, Mistake* mistake, int world_rank)
      : Communicator(inner->name(), inner->rank(), inner->ranks(), /*ledger=*/nullptr),
        inner_(std::move(inner)),
        mistake_(*mistake),
        rank_(world_rank) {}

  void Fail(absl::StatusCode code, const std::string& message) override { inner_->Fail(code, message); }
  void SetInBackground() override { inner_->SetInBackground(); }

 protected:
  Work Submit(Operation&& operation) override {
    if (operation.options.worker == nullptr) return Inline(operation);
    if (mistake_.num_ops[rank_]++ != mistake_.at) return ForwardOperation(*inner_, operation);
    switch (mistake_.kind) {
      case Mistake::Kind::kLeavesOutWait:
        Overwrite(operation);
        return Work();
      case Mistake::Kind::kWaitsForNothing:
        RunLate(operation);
        return Work();
      case Mistake::Kind::kFreesEarly:
        FreeInputs(operation);
        return ForwardOperation(*inner_, operation);
      default:
        return ForwardOperation(*inner_, operation);
    }
  }

 private:
  // The agreement on the order of gradients: the place of each leaf. Rank 1 hears of another.
  Work Inline(const Operation& operation) {
    const Work work = ForwardOperation(*inner_, operation);
    const bool is_order = operation.descriptor.dtype == DType::kI64 && operation.output.defined() &&
                          operation.output.num_elements() == kParameters;
    if (mistake_.kind != Mistake::Kind::kSwapsOrder || !is_order || rank_ != 1) return work;
    work.Wait();
    int64_t* const words = operation.output.data<int64_t>();
    std::swap(words[mistake_.at], words[mistake_.at + 1]);
    return work;
  }

  // What is read in the place of results is whatever lies there.
  static void Overwrite(const Operation& operation) {
    operation.ForEachTensor([&](const Tensor& tensor) {
      if (tensor.defined() && !IsInput(operation, tensor)) {
        FillTensor(tensor, std::numeric_limits<double>::quiet_NaN());
      }
    });
  }

  // On the lane, as it would have been, by a transport so slow that the update has been made by then; what the update
  // issues, when the next has been made. Until then its results are what lay there.
  void RunLate(const Operation& operation) {
    Overwrite(operation);
    Mistake::Late& late = mistake_.late[rank_];
    late.is_of_update = late.in_update;
    late.run = [inner = inner_, operation] { ForwardOperation(*inner, operation).Wait(); };
  }

  // As if somebody else wrote to the memory before it has been read.
  void FreeInputs(const Operation& operation) {
    std::vector<Tensor> inputs = {operation.input};
    for (const Operation::Part& part : operation.parts) inputs.push_back(part.input);
    operation.options.worker->Submit([inputs] {
      for (const Tensor& input : inputs) {
        if (input.defined()) FillTensor(input, std::numeric_limits<double>::quiet_NaN());
      }
    });
  }

  static bool IsInput(const Operation& operation, const Tensor& tensor) {
    bool is_input = operation.input.defined() && operation.input.data() == tensor.data();
    for (const Operation::Part& part : operation.parts) is_input |= part.input.data() == tensor.data();
    return is_input;
  }

  const std::shared_ptr<Communicator> inner_;
  Mistake& mistake_;
  const int rank_;
};

class MistakenWorld final : public World {
 public:
  MistakenWorld(World& inner, Mistake* mistake)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, inner.allocator(), inner.tracer()),
        inner_(inner),
        mistake_(mistake) {}
  ~MistakenWorld() override { mistake_->late[rank()].run = nullptr; }  // of an update that was the last

  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_shared<MistakenCommunicator>(inner_.NewGroup(name, ranks), mistake_, rank());
  }

 private:
  World& inner_;
  Mistake* const mistake_;
};

// The verdict with a mistake; or the error that it led to.
std::vector<std::string> VerdictWith(TrainingRun run, Mistake* mistake) {
  mistake->num_ops.assign(run.mesh.num_ranks(), 0);
  mistake->late.assign(run.mesh.num_ranks(), {});
  run.wrap_world = [=](World& world) { return std::make_unique<MistakenWorld>(world, mistake); };
  const auto late_of = [=](const std::vector<Parameter*>& parameters) -> Mistake::Late& {
    return mistake->late[parameters[0]->at_rest().context()->world().rank()];
  };
  run.after_backward = [=](const std::vector<Parameter*>& parameters) {
    late_of(parameters).in_update = true;
  };
  run.after_update = [=](const std::vector<Parameter*>& parameters) {
    Mistake::Late& late = late_of(parameters);
    late.in_update = false;
    if (!std::exchange(late.is_of_update, false) && late.run) std::exchange(late.run, nullptr)();
  };
  std::vector<std::string> verdict;
  const std::string error = MessageOf([&] { verdict = Verdict(run); });
  return error == "no error" ? verdict : std::vector<std::string>{error};
}

TEST(ScheduleMutantsTest, WithoutAMistakeThereIsNoDifference) {
  for (const char* plan : {"ddp", "zero1", "zero2", "fsdp", "hsdp"}) {
    Mistake none;
    EXPECT_EQ(absl::StrJoin(VerdictWith(RunUnder(plan, /*steps=*/2, /*microbatches=*/3), &none), "\n"), "")
        << plan;
    EXPECT_GT(none.num_ops[0], 0);
  }
}

// The communicator says so: of different shapes by their counts, of one shape by what the operations are of.
TEST(ScheduleMutantsTest, OneRanksOrderOfBucketsSwapped) {
  TrainingRun run = RunUnder("ddp", /*steps=*/2);
  run.plan.set_scheduler({.bucket_mb = 1e-6});  // one parameter each
  for (int64_t leaf = 0; leaf + 1 < kParameters; ++leaf) {
    Mistake mistake = {.kind = Mistake::Kind::kSwapsOrder, .at = leaf, .num_ops = {}};
    const std::string verdict = absl::StrJoin(VerdictWith(run, &mistake), "\n");
    EXPECT_THAT(verdict,
                testing::ContainsRegex("rank 0 called all_reduce.f64, sum, count [0-9]+ #[0-9a-f]+., "
                                       "rank 1 called all_reduce.f64, sum, count [0-9]+ #"))
        << "leaves " << leaf << " and " << leaf + 1;
  }
}

// Every operation on a lane, in turn. The last ones of a plan that gathers after the update (ZeRO), or ahead of the next step (the
// root's unit and the one behind it), are for a step that never comes.
void ExpectEachCaught(Mistake::Kind kind, const std::string& plan) {
  const TrainingRun run = RunUnder(plan, /*steps=*/2);
  Mistake none;
  VerdictWith(run, &none);
  const int64_t total = none.num_ops[0];
  const int64_t num_ahead = plan == "ddp" ? 0 : plan == "zero2" ? 1 : 2;
  ASSERT_GT(total, 6);
  for (int64_t at = 0; at < total; ++at) {
    Mistake mistake = {.kind = kind, .at = at, .num_ops = {}};
    const bool is_needed = at + num_ahead < total;
    EXPECT_EQ(!VerdictWith(run, &mistake).empty(), is_needed)
        << plan << ", operation " << at << " of " << total;
  }
}

TEST(ScheduleMutantsTest, AWaitLeftOut) {
  for (const char* plan : {"ddp", "zero2", "fsdp", "hsdp"})
    ExpectEachCaught(Mistake::Kind::kLeavesOutWait, plan);
}

// The operation runs all the same, but nobody waits for it.
TEST(ScheduleMutantsTest, AWaitForALateOperationLeftOut) {
  for (const char* plan : {"ddp", "zero2", "fsdp", "hsdp"})
    ExpectEachCaught(Mistake::Kind::kWaitsForNothing, plan);
}

TEST(ScheduleMutantsTest, ABufferFreedEarly) {
  for (const char* plan : {"ddp", "zero2", "fsdp", "hsdp"}) {
    ExpectEachCaught(Mistake::Kind::kFreesEarly, plan);
  }
}

// A sink that is given everything twice.
class TwiceSink final : public GradientSink {
 public:
  explicit TwiceSink(GradientSink* inner) : inner_(*inner) {}
  void Deliver(int leaf, DTensor gradient) override {
    inner_.Deliver(leaf, gradient);
    inner_.Deliver(leaf, gradient);
  }
  // The other leaves' are enough.
  void Forget(int /*leaf*/) noexcept override {}
  void EndPass() override {}
  void AbandonPass() noexcept override {}

 private:
  GradientSink& inner_;
};

TEST(ScheduleMutantsTest, AGradientDeliveredTwice) {
  for (const char* plan : {"ddp", "fsdp"}) {
    for (const int64_t microbatches : {1, 3}) {
      TrainingRun run = RunUnder(plan, /*steps=*/2, microbatches);
      run.after_parallelize = [](Module& model) {
        const std::vector<Parameter*> parameters = model.AllParameters();
        LeafNode& leaf = parameters[7]->leaf();  // other leaves keep the buckets
        leaf.set_sink(std::make_shared<TwiceSink>(leaf.sink()), 7);
      };
      const std::string path = MakeGpt(SmallGptConfig())()->AllParameters()[7]->path();
      EXPECT_TRUE(absl::StrContains(
          MessageOf([&] { Train(run); }),
          absl::StrCat("the gradient of '", path, "' was delivered twice in one backward pass")))
          << MessageOf([&] { Train(run); });
    }
  }
}

TEST(ScheduleMutantsTest, MicrobatchesAveragedByBatch) {
  for (const char* plan : {"ddp", "zero2", "fsdp"}) {
    TrainingRun run = RunUnder(plan, /*steps=*/1, /*microbatches=*/3);
    run.over_total = [](const LossSum& part, const DTensor& /*total*/) { return (1.0 / 3) * part.Mean(); };
    const std::vector<std::string> verdict = Verdict(run);
    ASSERT_FALSE(verdict.empty()) << plan;
    EXPECT_TRUE(absl::StartsWith(verdict[0], "loss of step 1")) << verdict[0];
  }
}

// Copies are told from stale ones by the versions of their parameters: here an update does not count.
TEST(ScheduleMutantsTest, AUnitThatStaysFromTheLastStep) {
  for (const bool is_stale : {false, true}) {
    TrainingRun run = RunUnder("fsdp_never", /*steps=*/2);
    if (is_stale) {
      run.after_update = [](const std::vector<Parameter*>& parameters) {
        for (Parameter* parameter : parameters) parameter->at_rest().impl()->writes->version = 0;
      };
    }
    const std::vector<std::string> verdict = Verdict(run);
    EXPECT_EQ(verdict.empty(), !is_stale) << absl::StrJoin(verdict, "\n");
    if (is_stale) {
      EXPECT_TRUE(absl::StartsWith(verdict[0], "loss of step 2")) << verdict[0];
    }
  }
}

// The root's unit is gathered ahead when the update has been made. Whoever changes its parameters after that makes the
// gather stale: here that does not count. The blocks', which nothing gathers before they are used, have the change.
TEST(ScheduleMutantsTest, AGatheredUnitOfTheLastStep) {
  const auto halve = [](bool counts) {
    return [=](const std::vector<Parameter*>& parameters) {
      for (Parameter* parameter : parameters) {
        const int64_t before = parameter->at_rest().impl()->version();
        const NoGradGuard no_grad(parameter->at_rest().context()->state());
        parameter->Load(0.5 * parameter->at_rest());
        if (!counts) parameter->at_rest().impl()->writes->version = before;
      }
    };
  };
  TrainingRun one_rank = RunOf({.plan = "", .mesh = "", .batch = 5, .steps = 2}, "");
  one_rank.after_update = halve(/*counts=*/true);
  const TrainingResult expected = Train(one_rank);
  for (const bool is_stale : {false, true}) {
    for (const int prefetch : {1, 0}) {
      TrainingRun run = RunUnder("fsdp", /*steps=*/2);
      run.plan.set_scheduler({.bucket_mb = 0.005, .prefetch = prefetch});
      run.after_update = halve(!is_stale);
      const std::vector<std::string> verdict = Differences(expected, Train(run), kF64Tolerance);
      const bool is_caught = is_stale && prefetch > 0;  // what is not gathered ahead is never stale
      EXPECT_EQ(verdict.empty(), !is_caught)
          << "prefetch " << prefetch << ": " << absl::StrJoin(verdict, "\n");
      if (is_caught) {
        EXPECT_TRUE(absl::StartsWith(verdict[0], "loss of step 2")) << verdict[0];
      }
    }
  }
}

}  // namespace
}  // namespace weft
