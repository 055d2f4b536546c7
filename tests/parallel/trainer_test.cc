#include "parallel/trainer.h"

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/inspect/comm_report.h"
#include "dtensor/nn/linear.h"
#include "examples/gpt_plan.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

GptConfig Tiny() { return {.vocabulary = 31, .context = 6, .layers = 1, .heads = 2, .dim = 8}; }

TrainerOptions Options(double grad_clip = 1) {
  return {.schedule = {.peak = 1e-2, .floor = 1e-3, .warmup_steps = 2, .total_steps = 6},
          .adamw = {.beta2 = 0.99, .weight_decay = 0.1},
          .grad_clip = grad_clip};
}

// A tiny GPT on a mesh, and a batch for it.
struct Job {
  Job(World& world, const std::string& mesh_text, DataPlan data, double grad_clip = 1)
      : mesh(DeviceMesh::Parse(mesh_text)), model(Tiny()) {
    const Plan plan = GptPlan(mesh, data, /*sequence_parallel=*/false);
    context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    std::vector<int32_t> values;
    for (int32_t i = 0; i < 24; ++i) values.push_back(i * 7 % 31);
    tokens =
        DTensor::Distribute(context, Tensor::FromValues<int32_t>({4, 6}, values), BatchLayout(mesh, plan));
    trainer.emplace(model, Options(grad_clip));
  }
  DTensor Loss() { return model.Loss(tokens, tokens).Mean(); }
  StepMetrics Step(bool stop = false) {
    return trainer->Step(/*num_tokens=*/24, [&] { return Loss(); }, stop);
  }

  DeviceMesh mesh;
  Gpt model;
  IntrusivePtr<MeshContext> context;
  DTensor tokens;
  std::optional<Trainer> trainer;
};

// What `body` returns on each rank.
template <class T>
std::vector<T> OnRanks(int num_ranks, const std::function<T(World&)>& body) {
  std::vector<T> results(num_ranks);
  RunRanks(num_ranks, [&](World& world) { results[world.rank()] = body(world); });
  return results;
}

TEST(TrainerTest, MetricsAgreeAcrossRanks) {
  const auto results = OnRanks<std::vector<StepMetrics>>(4, [](World& world) {
    Job job(world, "dp=2,tp=2", DataPlan::kFsdp);
    std::vector<StepMetrics> steps;
    for (int step = 1; step <= 3; ++step) {
      steps.push_back(job.Step());
      EXPECT_GE(steps.back().peak_bytes, world.allocator()->stats().live_bytes);
    }
    return steps;
  });
  const std::vector<StepMetrics>& first = results[0];
  for (size_t rank = 1; rank < results.size(); ++rank) {
    for (size_t i = 0; i < first.size(); ++i) {
      // Time is each rank's own.
      StepMetrics metrics = results[rank][i];
      metrics.step_ms = first[i].step_ms;
      metrics.tokens_per_s = first[i].tokens_per_s;
      EXPECT_EQ(metrics, first[i]) << "rank " << rank << ", step " << i + 1;
    }
  }
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(first[i].lr, Options().schedule.At(first[i].step));
    EXPECT_GT(first[i].grad_norm, 0);
    EXPECT_GT(first[i].step_ms, 0);
    EXPECT_NEAR(first[i].tokens_per_s * first[i].step_ms * 1e-3, 24, 1e-6);
    EXPECT_GT(first[i].comm_fraction, 0);
    EXPECT_LE(first[i].comm_fraction, 1);
    EXPECT_GT(first[i].exposed_fraction, 0);
    EXPECT_LE(first[i].exposed_fraction, 1);
    EXPECT_LE(first[i].waiting_fraction, first[i].exposed_fraction);
    // Every step moves the same; but the first gathers the root's unit for itself, too: embedding and head, which tp
    // splits, positions and the last norm, which it does not.
    const int64_t root_bytes = (2 * 31 * 8 + 2 * (6 * 8 + 2 * 8)) * 8;
    EXPECT_EQ(first[i].comm_bytes, first[1].comm_bytes + (i == 0 ? root_bytes : 0));
    EXPECT_FALSE(first[i].stop);
  }
  EXPECT_NEAR(first[0].loss, std::log(31.0), 0.1);  // of a model that knows nothing yet
  EXPECT_LT(first[2].loss, first[0].loss);
}

TEST(TrainerTest, CommBytesAreTheLedgersWithoutTheMetrics) {
  RunRanks(4, [](World& world) {
    Job job(world, "dp=2,tp=2", DataPlan::kDdp);
    const StepMetrics first = job.Step();
    const int64_t learning = CollectCommReport(*job.context).BytesFor(Purpose::kMetric);
    const StepMetrics metrics = job.Step();
    EXPECT_EQ(metrics.comm_bytes, first.comm_bytes);
    const CommReport report = CollectCommReport(*job.context);
    // Two all-reduces over four ranks, of four numbers and of two; in the first step, the order of the gradients.
    EXPECT_EQ(report.BytesFor(Purpose::kMetric), 2 * 3 * (32 + 16));
    const int64_t num_leaves = std::ssize(job.model.AllParameters());
    EXPECT_EQ(learning, report.BytesFor(Purpose::kMetric) + 2 * 3 * 24 * num_leaves);
    EXPECT_EQ(metrics.comm_bytes, report.TotalBytes() - report.BytesFor(Purpose::kMetric));
    EXPECT_GT(metrics.comm_bytes, 0);
  });
}

TEST(TrainerTest, OneRankMovesNothing) {
  RunRanks(1, [](World& world) {
    Job job(world, "", DataPlan::kDdp);
    const StepMetrics metrics = job.Step();
    EXPECT_EQ(metrics.comm_bytes, 0);
    EXPECT_TRUE(job.Step(/*stop=*/true).stop);
  });
}

TEST(TrainerTest, AnyRanksWishToStopReachesAll) {
  for (int wishing : {0, 3}) {
    const auto results = OnRanks<std::vector<bool>>(4, [&](World& world) {
      Job job(world, "dp=4", DataPlan::kDdp);
      std::vector<bool> stops;
      for (int step = 1; step <= 2; ++step)
        stops.push_back(job.Step(world.rank() == wishing && step == 2).stop);
      return stops;
    });
    for (const std::vector<bool>& stops : results) EXPECT_EQ(stops, (std::vector<bool>{false, true}));
  }
}

std::map<std::string, std::vector<double>> Values(Module& model) {
  std::map<std::string, std::vector<double>> values;
  for (const Parameter* parameter : model.AllParameters()) {
    values[parameter->path()] = parameter->at_rest().ToLocal().ToVector<double>();
  }
  return values;
}

std::map<std::string, std::vector<double>> Values(const Optimizer& optimizer) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& [name, tensor] : optimizer.State()) values[name] = tensor.ToLocal().ToVector<double>();
  return values;
}

TEST(TrainerTest, AStepWhoseNormIsNotFiniteChangesNothing) {
  // Clipping or not; the gradient is infinite or not a number.
  for (double grad_clip : {1.0, 0.0}) {
    for (double factor : {double{INFINITY}, std::nan("")}) {
      RunRanks(2, [&](World& world) {
        Job job(world, "dp=2", DataPlan::kFsdp, grad_clip);
        job.Step();
        const auto parameters = Values(job.model);
        const auto state = Values(job.trainer->optimizer());
        const StepMetrics bad = job.trainer->Step(24, [&] { return job.Loss() * factor; });
        EXPECT_EQ(bad.step, 2);
        EXPECT_FALSE(std::isfinite(bad.loss));
        EXPECT_FALSE(std::isfinite(bad.grad_norm));
        EXPECT_EQ(Values(job.model), parameters);
        EXPECT_EQ(Values(job.trainer->optimizer()), state);
        EXPECT_EQ(state.at("updates"), std::vector<double>{1});
        const StepMetrics good = job.Step();
        EXPECT_EQ(good.step, 3);  // an attempt is a step: schedule, data and random bits have moved on
        EXPECT_EQ(good.lr, Options().schedule.At(3));
        EXPECT_EQ(job.context->state().step(), 3u);
        EXPECT_EQ(Values(job.trainer->optimizer()).at("updates"), std::vector<double>{2});
        EXPECT_TRUE(std::isfinite(good.grad_norm));
        EXPECT_NE(Values(job.model), parameters);
      });
    }
  }
}

TEST(TrainerTest, GoesOnAfterAGivenStep) {
  RunRanks(1, [](World& world) {
    Job job(world, "", DataPlan::kDdp);
    EXPECT_EQ(job.trainer->step(), 0);
    job.trainer->set_step(3);
    EXPECT_EQ(job.Step().step, 4);
    EXPECT_EQ(job.trainer->step(), 4);
    EXPECT_EQ(Values(job.trainer->optimizer()).at("updates"), std::vector<double>{1});
  });
}

TEST(TrainerTest, ClippingScalesTheGradientAndReportsTheNormBefore) {
  // AdamW's first step does not see the scale, its moments do: m = (1 - beta1) * scale * gradient.
  const auto first_moment = [](double grad_clip) {
    std::pair<double, double> norm_and_moment;
    RunRanks(1, [&](World& world) {
      Job job(world, "", DataPlan::kDdp, grad_clip);
      norm_and_moment.first = job.Step().grad_norm;
      norm_and_moment.second = Values(job.trainer->optimizer()).at("wpe.m")[0];
    });
    return norm_and_moment;
  };
  const auto [norm, moment] = first_moment(0);
  const auto [same_norm, same_moment] = first_moment(1e9);
  const auto [clipped_norm, clipped_moment] = first_moment(1e-3);
  EXPECT_GT(norm, 1e-2);
  EXPECT_EQ(same_norm, norm);
  EXPECT_EQ(clipped_norm, norm);
  EXPECT_EQ(same_moment, moment);
  EXPECT_NEAR(clipped_moment / moment, 1e-3 / norm, 1e-4 * 1e-3 / norm);  // the norm is regularised by 1e-6
}

// Divides each row by its sum: not finite where a row sums to zero.
class Fragile : public Module {
 public:
  Fragile(Module* parent, std::string name) : Module(parent, std::move(name)) {}

 protected:
  DTensor Forward(const DTensor& x) override { return Div(x, Sum(x, {1}, /*keep_dims=*/true)); }
};

class ThreeLayers : public Module {
 public:
  Linear first{this, "first", 2, 4};
  Fragile fragile{this, "fragile"};
  Linear last{this, "last", 4, 1};

 protected:
  DTensor Forward(const DTensor& x) override { return last(fragile(first(x))); }
};

// A step on four rows over two ranks, then the search.
void FindIn(World& world, const std::vector<double>& rows, double last_weight) {
  ThreeLayers model;
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  const auto context = Parallelize(model, world, mesh, {{"", DataParallel("dp")}}, {.dtype = DType::kF64});
  model.last.weight.at_rest().ToLocal().data<double>()[2] = last_weight;
  Trainer trainer(model, Options());
  const Tensor full = Tensor::FromValues<double>({4, 2}, rows);
  const DTensor x = DTensor::Distribute(context, full, Layout::Parse("[dp, -]", mesh));
  const auto loss = [&] { return Mean(Square(model(x))); };
  trainer.Step(4, loss);
  trainer.FindNonFinite(loss);
  EXPECT_FALSE(context->state().check_finite());
}

std::string MessageOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
    return error.message();
  }
  return "nothing was thrown";
}

TEST(TrainerTest, FindNonFiniteNamesTheFirstModule) {
  // The last row is zero: on rank 1, the bias being zero, its sum is. The modules after it are not finite
  // either.
  EXPECT_EQ(
      MessageOf([] { RunRanks(2, [](World& world) {
                       FindIn(world, {1, 2, 3, 4, 5, 6, 0, 0}, 1);
                     }); }),
      "rank 1: step 1: output of module 'fragile' (f64[4, 4] [dp, -]) is not finite: local element 4 is nan");
}

TEST(TrainerTest, FindNonFiniteNamesAParameterThatAlreadyIsNot) {
  const std::string message = MessageOf([] {
    RunRanks(2, [](World& world) { FindIn(world, {1, 2, 3, 4, 5, 6, 7, 8}, INFINITY); });
  });
  EXPECT_EQ(message.substr(message.find("step")),
            "step 1: parameter 'last.weight' (f64[4, 1] [-, -]) is not finite: local element 2 is inf");
}

TEST(TrainerTest, FindNonFiniteReturnsWhereAllIsWell) {
  RunRanks(2, [](World& world) { FindIn(world, {1, 2, 3, 4, 5, 6, 7, 8}, 1); });
}

}  // namespace
}  // namespace weft
