#include "parallel/trainer.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/inspect/comm_report.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "runtime/comm/flight_clock.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/trainer/trainer_job.h"

namespace weft {
namespace {

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
      const int64_t begun_ns = FlightClock();
      steps.push_back(job.Step());
      // What comm_fraction, which ends at 1, is made of.
      const double busy = world.ledger().busy_seconds();
      EXPECT_LE(busy, static_cast<double>(FlightClock() - begun_ns) * 1e-9) << "step " << step;
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
    EXPECT_EQ(first[i].lr, kSchedule.At(first[i].step));
    EXPECT_GT(first[i].grad_norm, 0);
    EXPECT_GT(first[i].step_ms, 0);
    EXPECT_NEAR(first[i].tokens_per_s * first[i].step_ms * 1e-3, 24, 1e-6);
    EXPECT_GT(first[i].comm_fraction, 0);
    EXPECT_LE(first[i].comm_fraction, 1);
    EXPECT_GT(first[i].exposed_fraction, 0);
    EXPECT_LE(first[i].exposed_fraction, 1);
    EXPECT_LE(first[i].waiting_fraction, first[i].exposed_fraction);
    // Every step moves the same; but the first gathers the root's unit for itself, too, and the first block's: embedding, head,
    // products and biases of columns, which tp splits, positions, norms and biases of rows, which it does not.
    const int64_t root_bytes = (2 * 31 * 8 + 2 * (6 * 8 + 2 * 8)) * 8;
    const int64_t block_bytes = (12 * 8 * 8 + 7 * 8 + 2 * (2 * 2 * 8 + 2 * 8)) * 8;
    EXPECT_EQ(first[i].comm_bytes, first[1].comm_bytes + (i == 0 ? root_bytes + block_bytes : 0));
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
    // One all-reduce over four ranks, of nine numbers and two per rank; in the first step, the order of the
    // gradients.
    EXPECT_EQ(report.BytesFor(Purpose::kMetric), 2 * 3 * (9 + 2 * 4) * 8);
    const int64_t num_leaves = std::ssize(job.model.AllParameters());
    EXPECT_EQ(learning, report.BytesFor(Purpose::kMetric) + 2 * 3 * 8 * num_leaves);
    EXPECT_EQ(metrics.comm_bytes, report.TotalBytes() - report.BytesFor(Purpose::kMetric));
    EXPECT_GT(metrics.comm_bytes, 0);
  });
}

// Of the right order nothing is said, whatever the plan issues.
TEST(TrainerTest, TheOrderOfIssuesIsComparedAfterEachStep) {
  for (const DataPlan plan : {DataPlan::kDdp, DataPlan::kFsdp}) {
    std::string message;
    try {
      RunRanks(4,
               [&](World& world) {
                 Job job(world, "dp=2,tp=2", plan);
                 const auto group = world.NewGroup("extra", {0, 1, 2, 3});
                 for (int step = 1; step <= 3; ++step) {
                   for (int i = 0; i < 2; ++i) {
                     const bool swaps = world.rank() == 2 && step == 3;
                     const PathGuard path(job.context->state(), job.context->state().PathId(
                                                                    (i == 1) != swaps ? "second" : "first"));
                     const Tensor tensor = Tensor::FromValues<float>({1}, {1.0f});
                     group->AllReduce(tensor, tensor, ReduceOp::kSum, {.tag = job.context->state().tag()});
                   }
                   job.Step();
                 }
               },
               {.threads_per_rank = 1, .check_issue_order = true});
    } catch (const Error& error) {
      message = error.message();
    }
    EXPECT_NE(
        message.find(
            "check_issue_order, comparison 3: rank 2 issued all_reduce(f32, sum, count 1) on axis extra "
            "(second, activation) as collective "),
        std::string::npos)
        << message;
  }
}

// The worst rank's waits since the step before, and those of one step alone.
TEST(TrainerTest, TheWaitForDataIsTheWorstRanks) {
  RunRanks(4, [](World& world) {
    Job job(world, "dp=2,tp=2", DataPlan::kFsdp);
    for (const double wait : {0.25, 0.5}) job.trainer->NoteDataWait(wait * (world.rank() == 2 ? 1 : 0.5));
    EXPECT_EQ(job.Step().data_wait_s, 0.75);
    if (world.rank() == 3) job.trainer->NoteDataWait(2);
    EXPECT_EQ(job.Step().data_wait_s, 2);
    EXPECT_EQ(job.Step().data_wait_s, 0);
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

// On one rank and on two, by hand: p -= lr g, where the schedule halves lr each step and the bias has a tenth.
TEST(TrainerTest, TakesAnyOptimizerAndAnySchedule) {
  for (const char* mesh_text : {"", "dp=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      class Model : public Module {
       public:
        Linear layer{this, "layer", 2, 1};

       protected:
        DTensor Forward(const DTensor& x) override { return layer(x); }
      } model;
      const Plan plan = mesh.num_axes() == 0 ? Plan() : Plan({{"", FullyShard("dp")}});
      const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
      model.layer.weight.Load(Full(context, DType::kF64, {2, 1}, 1));
      Sgd sgd(model.AllParameters(), {.groups = {{.path = "layer.bias", .lr_scale = 0.1}}});
      std::vector<int64_t> asked;
      Trainer trainer(model, sgd,
                      {.schedule =
                           [&](int64_t step) {
                             asked.push_back(step);
                             return std::pow(0.5, static_cast<double>(step));
                           },
                       .grad_clip = 0});
      const Layout layout =
          mesh.num_axes() == 0 ? Layout::Parse("[-, -]", mesh) : Layout::Parse("[dp, -]", mesh);
      const Tensor rows = Tensor::FromValues<double>({2, 2}, {1, 2, 3, 4});
      const DTensor x = DTensor::Distribute(context, rows, layout);
      // The mean of x w + b: its gradients are the columns' means, 2 and 3, and 1.
      for (int step = 1; step <= 2; ++step) trainer.Step(2, [&] { return Mean(model(x)); });
      EXPECT_EQ(asked, (std::vector<int64_t>{1, 2}));
      EXPECT_EQ(model.layer.weight.at_rest().FullTensor().ToVector<double>(),
                (std::vector<double>{1 - 0.75 * 2, 1 - 0.75 * 3}));
      EXPECT_NEAR(model.layer.bias->at_rest().FullTensor().ToVector<double>()[0], -0.075, 1e-16);
    });
  }
}

// Parts of 4, 2 and 2 rows, whose losses are means: the update of the mean over all eight, and one warning.
TEST(TrainerTest, MeansOfMicrobatchesWeighByRows) {
  class Model : public Module {
   public:
    Linear layer{this, "layer", 3, 2};

   protected:
    DTensor Forward(const DTensor& x) override { return layer(x); }
  };
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  for (const Plan& plan : {Plan({{"", DataParallel("dp")}}), Plan({{"", FullyShard("dp")}})}) {
    RunRanks(2, [&](World& world) {
      const auto trained = [&](const std::function<void(Trainer&, Model&, const Tensor&)>& step) {
        Model model;
        const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
        Sgd sgd(model.AllParameters(), {});
        Trainer trainer(model, sgd, {.schedule = [](int64_t) { return 0.5; }, .grad_clip = 0});
        std::vector<double> values;
        for (int i = 0; i < 24; ++i) values.push_back(std::sin(i * i));
        for (int i = 0; i < 2; ++i) step(trainer, model, Tensor::FromValues<double>({8, 3}, values));
        std::vector<double> weights = model.layer.weight.at_rest().FullTensor().ToVector<double>();
        weights.push_back(trainer.Flush().value().loss);
        return weights;
      };
      const auto mean_of = [&](Model& model, const Tensor& rows) {
        const Layout layout = Layout::Parse("[dp, -]", mesh);
        return Mean(Square(model(DTensor::Distribute(model.context(), rows, layout))));
      };
      const std::vector<double> whole = trained([&](Trainer& trainer, Model& model, const Tensor& rows) {
        trainer.Step(8, [&] { return mean_of(model, rows); });
      });
      std::vector<std::string> warnings;
      const std::vector<double> in_parts = trained([&](Trainer& trainer, Model& model, const Tensor& rows) {
        model.context()->state().set_warning_sink([&](const std::string& line) { warnings.push_back(line); });
        const int64_t first[] = {0, 4, 6, 8};
        const auto count = [&](int i) { return first[i + 1] - first[i]; };
        trainer.Step(3, count, [&](int i) { return mean_of(model, rows.Slice(0, first[i], count(i))); });
      });
      for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(in_parts[i], whole[i], 1e-13);
      EXPECT_EQ(warnings,
                std::vector<std::string>{
                    "Trainer::Step: the losses of 3 microbatches are means and weigh by rows; where "
                    "rows count different numbers of tokens, give sums: the count of each part "
                    "(CountTargets) and a LossSum (CrossEntropy, MseLoss)"});
    });
  }
}

TEST(TrainerTest, MicrobatchesHaveRows) {
  RunRanks(1, [](World& world) {
    Job job(world, "", DataPlan::kDdp);
    const auto message = [&](int microbatches, int64_t rows) {
      return MessageOf([&] {
        job.trainer->Step(
            microbatches, [&](int) { return rows; }, [&](int) { return job.Loss(); });
      });
    };
    EXPECT_EQ(message(0, 4), "Trainer::Step: expected at least one microbatch, got 0");
    EXPECT_EQ(message(2, 0), "Trainer::Step: expected at least one row in microbatch 0, got 0");
  });
}

TEST(TrainerTest, WrongOptionsAreRefused) {
  RunRanks(1, [](World& world) {
    Job job(world, "", DataPlan::kDdp);
    EXPECT_EQ(MessageOf([&] { Trainer(job.model, *job.adamw, {.schedule = nullptr}); }),
              "Trainer: expected a schedule, got an empty function");
    EXPECT_EQ(MessageOf([&] { Trainer(job.model, *job.adamw, {.grad_clip = -1}); }),
              "Trainer: expected a grad_clip of at least 0, got -1");
    EXPECT_EQ(MessageOf([&] { Trainer(job.model, *job.adamw, {.grad_clip = NAN}); }),
              "Trainer: expected a grad_clip of at least 0, got nan");
    EXPECT_EQ(MessageOf([&] { Trainer(job.model, *job.adamw, {.check_replicas_every = -2}); }),
              "Trainer: expected a check_replicas_every of at least 0, got -2");
  });
}

TEST(TrainerTest, CallbacksSeeEveryStepAfterItsUpdate) {
  RunRanks(2, [](World& world) {
    Job job(world, "dp=2", DataPlan::kFsdp);
    std::vector<std::string> calls;
    std::vector<std::vector<double>> biases;
    const auto logging = [&](const char* name) {
      return TrainerCallback{.on_step_end =
                                 [&calls, &job, &biases, name](Trainer&, int64_t step) {
                                   calls.push_back(absl::StrCat(name, " ends ", step));
                                   biases.push_back(ValuesOf(job.model).at("wpe"));
                                 },
                             .on_metrics =
                                 [&calls, name](Trainer&, const StepMetrics& metrics) {
                                   calls.push_back(absl::StrCat(name, " sees ", metrics.step));
                                 }};
    };
    Trainer trainer(job.model, *job.adamw,
                    {.schedule = kSchedule, .callbacks = {logging("a"), {}, logging("b")}});
    for (int step = 1; step <= 2; ++step) {
      trainer.Step(24, [&] { return job.Loss(); });
      EXPECT_EQ(biases.back(), ValuesOf(job.model).at("wpe"));
    }
    trainer.Flush();
    EXPECT_EQ(calls, (std::vector<std::string>{"a ends 1", "b ends 1", "a sees 1", "b sees 1", "a ends 2",
                                               "b ends 2", "a sees 2", "b sees 2"}));
    EXPECT_EQ(biases[0], biases[1]);
    EXPECT_NE(biases[0], biases[2]);
  });
}

TEST(TrainerTest, ARecordComesOneStepLate) {
  RunRanks(2, [](World& world) {
    Job job(world, "dp=2", DataPlan::kDdp);
    Job same(world, "dp=2", DataPlan::kDdp);
    const auto step = [&](bool stop) {
      return job.trainer->Step(
          24, [&] { return job.Loss(); }, stop);
    };
    EXPECT_FALSE(job.trainer->Flush());
    EXPECT_FALSE(step(/*stop=*/world.rank() == 1));
    for (int64_t before = 1; before <= 2; ++before) {
      const std::optional<StepMetrics> record = step(/*stop=*/false);
      const StepMetrics at_once = same.Step();
      ASSERT_TRUE(record);
      EXPECT_EQ(record->step, before);
      EXPECT_EQ(record->loss, at_once.loss);
      EXPECT_EQ(record->grad_norm, at_once.grad_norm);
      EXPECT_EQ(record->num_tokens, 24);
      EXPECT_EQ(record->stop, before == 1);
      EXPECT_TRUE(record->finite && record->updated);
    }
    EXPECT_EQ(job.trainer->Flush().value().step, 3);
    EXPECT_FALSE(job.trainer->Flush());
  });
}

// An optimizer whose update waits on rank 1 until rank 0 has come out of its step.
class Waiting : public Sgd {
 public:
  Waiting(Module& model, std::latch& left) : Sgd(model.AllParameters(), {}), left_(left) {}

 protected:
  void Update(absl::Span<const int> indices, double lr, const DTensor& scale) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const bool waits = value(indices[0]).context()->world().rank() == 1;
    while (waits && !left_.try_wait() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_TRUE(!waits || left_.try_wait()) << "rank 0 waits in its step for the record of that step";
    Sgd::Update(indices, lr, scale);
  }

 private:
  std::latch& left_;
};

TEST(TrainerTest, NobodyWaitsForTheRecordWithinTheStep) {
  std::latch left(1);
  RunRanks(2, [&](World& world) {
    Job job(world, "dp=2", DataPlan::kDdp);
    Waiting optimizer(job.model, left);
    Trainer trainer(job.model, optimizer);
    trainer.Step(24, [&] { return job.Loss(); });
    if (world.rank() == 0) left.count_down();
    EXPECT_EQ(trainer.Flush().value().step, 1);
  });
}

TEST(TrainerTest, GoesOnAfterAGivenStep) {
  RunRanks(1, [](World& world) {
    Job job(world, "", DataPlan::kDdp);
    EXPECT_EQ(job.trainer->step(), 0);
    job.trainer->set_step(3);
    EXPECT_EQ(job.Step().step, 4);
    EXPECT_EQ(job.trainer->step(), 4);
    EXPECT_EQ(ValuesOf(job.trainer->optimizer()).at("updates"), std::vector<double>{1});
  });
}

TEST(TrainerTest, ClippingScalesTheGradientAndReportsTheNormBefore) {
  // AdamW's first step does not see the scale, its moments do: m = (1 - beta1) * scale * gradient.
  const auto first_moment = [](double grad_clip) {
    std::pair<double, double> norm_and_moment;
    RunRanks(1, [&](World& world) {
      Job job(world, "", DataPlan::kDdp, grad_clip);
      norm_and_moment.first = job.Step().grad_norm;
      norm_and_moment.second = ValuesOf(job.trainer->optimizer()).at("wpe.m")[0];
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

}  // namespace
}  // namespace weft
