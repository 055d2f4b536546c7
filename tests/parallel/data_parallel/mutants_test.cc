// Is the comparison of gpt_equality_test sharp? Each of these mistakes, planted on purpose, must make it
// fail; most leave the loss of the step as it is.

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "dtensor/nn/embedding.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/parallel/data_parallel/claim.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

TrainingRun RunOn(const std::string& mesh, DataPlan data = DataPlan::kDdp, int64_t batch = 4) {
  TrainingRun run;
  run.make_model = MakeGpt(SmallGptConfig());
  run.mesh = DeviceMesh::Parse(mesh);
  if (!mesh.empty()) run.plan = GptPlan(run.mesh, data, /*sequence_parallel=*/false);
  run.batch = batch;
  return run;
}

// What the comparison with one rank says of a first step in f64.
std::vector<std::string> Verdict(const TrainingRun& run) {
  TrainingRun one = run;
  one.mesh = DeviceMesh();
  one.plan = Plan();
  one.mean = TrainingRun().mean;
  one.after_backward = nullptr;
  one.wrap_world = nullptr;
  return Differences(Train(one), Train(run), kF64Tolerance);
}

bool Mentions(const std::vector<std::string>& verdict, absl::string_view what) {
  return std::any_of(verdict.begin(), verdict.end(),
                     [&](const std::string& line) { return absl::StartsWith(line, what); });
}

TEST(MutantsTest, WithoutAMistakeThereIsNoDifference) {
  for (const char* mesh : {"dp=2", "tp=2", "dp=4"})
    EXPECT_EQ(absl::StrJoin(Verdict(RunOn(mesh)), "\n"), "") << mesh;
}

TEST(MutantsTest, AllGradientsTimesTwo) {
  TrainingRun run = RunOn("dp=2");
  run.after_backward = [](const std::vector<Parameter*>& parameters) {
    for (Parameter* parameter : parameters) parameter->SetGrad(2 * parameter->grad());
  };
  const std::vector<std::string> verdict = Verdict(run);
  EXPECT_EQ(verdict.size(), 30u) << "29 gradients and their norm";
  EXPECT_FALSE(Mentions(verdict, "loss"));
}

TEST(MutantsTest, OneGradientAllReducedTwice) {
  TrainingRun run = RunOn("dp=2");
  run.after_backward = [](const std::vector<Parameter*>& parameters) {
    const auto is_small = [](Parameter* parameter) { return parameter->path() == "blocks.1.ln_2.bias"; };
    Parameter& parameter = **std::find_if(parameters.begin(), parameters.end(), is_small);
    const DTensor& gradient = parameter.grad();
    const DTensor terms = DTensor::FromLocal(gradient.context(), gradient.ToLocal(),
                                             gradient.layout().WithPartial(0), gradient.shape());
    parameter.SetGrad(terms.Redistribute(gradient.layout()));
  };
  const std::vector<std::string> verdict = Verdict(run);
  EXPECT_TRUE(Mentions(verdict, "gradient of blocks.1.ln_2.bias after step 1: off by 1.00e+00"));
  EXPECT_EQ(verdict.size(), 2u) << "it and the norm:\n" << absl::StrJoin(verdict, "\n");
}

TEST(MutantsTest, BatchMeansAveragedUnweighted) {
  // Each rank divides by its own count, then the ranks' means are averaged: as data parallelism is done by
  // hand.
  const auto unweighted = [](const LossSum& loss) {
    const Layout replicated(/*ndim=*/0, loss.sum.layout().num_axes());
    const double count = std::max(1.0, loss.count.ToLocal().ToVector<double>()[0]);
    const Tensor local = Tensor::FromValues<double>({}, {count});
    const DTensor mine = DTensor::FromLocal(loss.sum.context(), local, replicated, {});
    const DTensor mean = Div(loss.sum, mine);  // a sum over ranks of their means
    return Claim(mean, mean.layout().WithPartial(0, ReduceOp::kAvg), mean.ToLocal());
  };
  for (const auto& [mesh, batch] : {std::pair("dp=4", 5), std::pair("dp=2", 5)}) {
    TrainingRun run = RunOn(mesh, DataPlan::kDdp, batch);
    run.mean = unweighted;
    const std::vector<std::string> verdict = Verdict(run);
    EXPECT_TRUE(Mentions(verdict, "loss of step 1")) << mesh << ", batch " << batch;
    EXPECT_TRUE(Mentions(verdict, "gradient of wte.weight")) << mesh << ", batch " << batch;
  }
}

// Forwards to another communicator, but for the `skipped`-th all-reduce (from 0), which it answers with the
// input.
class SkippingCommunicator final : public Communicator {
 public:
  SkippingCommunicator(std::shared_ptr<Communicator> inner, int64_t skipped, int64_t* num_seen)
      : Communicator(inner->name(), inner->rank(), inner->ranks(), /*ledger=*/nullptr),
        inner_(std::move(inner)),
        skipped_(skipped),
        num_seen_(num_seen) {}

  void Fail(absl::StatusCode code, const std::string& message) override { inner_->Fail(code, message); }

 protected:
  Work Submit(Operation&& operation) override {
    const CollectiveDescriptor& what = operation.descriptor;
    switch (what.kind) {
      case CollectiveKind::kAllReduce:
        if (!operation.parts.empty())
          return inner_->AllReduceEach(PartsOf(operation), what.op, operation.options);
        // Agreement on the order of gradients changes no value.
        if (IsFloating(what.dtype) && (*num_seen_)++ == skipped_) {
          CopyTensor(operation.input, operation.output);
          return Work();
        }
        return inner_->AllReduce(operation.input, operation.output, what.op, operation.options);
      case CollectiveKind::kAllGather:
        return inner_->AllGather(operation.input, operation.output, what.counts, operation.options);
      case CollectiveKind::kReduceScatter:
        return inner_->ReduceScatter(operation.input, operation.output, what.counts, what.op,
                                     operation.options);
      default:
        ThrowInvalidArgument("a GPT does not ask for ", what.ToString());
    }
  }

 private:
  static std::vector<CollectivePart> PartsOf(const Operation& operation) {
    std::vector<CollectivePart> parts;
    for (const Operation::Part& part : operation.parts) parts.push_back({part.input, part.output, {}});
    return parts;
  }

  const std::shared_ptr<Communicator> inner_;
  const int64_t skipped_;
  int64_t* num_seen_;
};

class SkippingWorld final : public World {
 public:
  SkippingWorld(World& inner, int64_t skipped, int64_t* num_seen)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, inner.allocator(), inner.tracer()),
        inner_(inner),
        skipped_(skipped),
        num_seen_(num_seen) {}

  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    std::shared_ptr<Communicator> group = inner_.NewGroup(name, ranks);
    if (name != "tp") return group;
    return std::make_shared<SkippingCommunicator>(std::move(group), skipped_, num_seen_);
  }

 private:
  World& inner_;
  const int64_t skipped_;
  int64_t* num_seen_;
};

TEST(MutantsTest, OneTensorParallelAllReduceSkipped) {
  // A step of two blocks makes 15: four a block, the embedding's, the head's, three of the loss, and the
  // gradient norm's. Reading the loss makes none (every rank has it), gathering for the comparison makes none
  // either.
  TrainingRun run = RunOn("tp=2");
  const TrainingRun plain = RunOn("");
  const TrainingResult expected = Train(plain);
  std::vector<int64_t> num_seen(2);  // by rank
  const int64_t total = 14;
  for (int64_t skipped = 0; skipped <= total; ++skipped) {
    num_seen = {0, 0};
    run.wrap_world = [&](World& world) {
      return std::make_unique<SkippingWorld>(world, skipped, &num_seen[world.rank()]);
    };
    const std::vector<std::string> verdict = Differences(expected, Train(run), kF64Tolerance);
    // The last one skips what never comes, and shows that the decorated world is a sound one.
    EXPECT_EQ(verdict.empty(), skipped == total)
        << "all-reduce " << skipped << ": " << absl::StrJoin(verdict, "\n");
    EXPECT_EQ(num_seen, (std::vector<int64_t>{total, total})) << "all-reduce " << skipped;
  }
}

// A row-parallel product that adds its bias on every rank, if `mistaken`: before the sum over ranks, not
// once.
class RowProduct : public Module {
 public:
  RowProduct(Module* parent, std::string name, int64_t in, int64_t out, bool mistaken)
      : Module(parent, std::move(name)),
        weight(this, "weight",
               {.shape = {in, out}, .initializer = Initializer::Normal(0, 0.1), .shard_dims = {.row = 0}}),
        bias(this, "bias", {.shape = {out}, .initializer = Initializer::Normal(0, 0.1)}),
        mistaken_(mistaken) {}

  Parameter weight;
  Parameter bias;

 protected:
  DTensor Forward(const DTensor& x) override {
    const DTensor y = MatMul(x, weight.Value());  // Partial, where the input features are split
    const DTensor value = bias.Value();
    if (!mistaken_ || !y.layout().HasPartial()) return y + value;
    return y + Claim(value, value.layout().WithPartial(0), value.ToLocal());
  }

 private:
  const bool mistaken_;
};

class TwoProducts : public Module {
 public:
  explicit TwoProducts(bool mistaken) : down(this, "down", 12, 257, mistaken) {}

  Embedding embedding{this, "embedding", 257, 8};
  Linear up{this, "up", 8, 12};
  RowProduct down;

 protected:
  DTensor Forward(const DTensor& tokens) override { return down(Gelu(up(embedding(tokens)))); }
};

TEST(MutantsTest, ABiasAddedOnEveryRank) {
  for (bool mistaken : {false, true}) {
    TrainingRun run;
    run.make_model = [mistaken] { return std::make_unique<TwoProducts>(mistaken); };
    run.mesh = DeviceMesh::Parse("tp=2");
    run.plan = {{"up", ColumnParallel("tp")}, {"down", RowParallel("tp")}};
    const std::vector<std::string> verdict = Verdict(run);
    EXPECT_EQ(verdict.empty(), !mistaken) << absl::StrJoin(verdict, "\n");
    EXPECT_EQ(Mentions(verdict, "loss of step 1"), mistaken);
  }
}

TEST(MutantsTest, OneWrongElementOfAnInitialValue) {
  TrainingResult expected = Train(RunOn(""));
  TrainingResult actual = expected;
  EXPECT_TRUE(Differences(expected, actual, kF64Tolerance).empty());
  double& element = actual.initial["wpe"][17];
  element = std::nextafter(element, 1);
  EXPECT_EQ(Differences(expected, actual, kF64Tolerance), std::vector<std::string>{"initial value of wpe"});
  actual = expected;
  actual.losses[0] = std::nan("");
  EXPECT_EQ(Differences(expected, actual, kF64Tolerance).size(), 1u);
}

}  // namespace
}  // namespace weft
