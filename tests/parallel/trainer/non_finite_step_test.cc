// Steps whose gradient is not finite: what they change, what the host learns, and how it finds the cause.

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/context/fold_in_guard.h"
#include "dtensor/functions.h"
#include "dtensor/nn/layers/layers.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/trainer/trainer_job.h"

namespace weft {
namespace {

TEST(NonFiniteStepTest, AStepWhoseNormIsNotFiniteChangesNothing) {
  // Clipping or not; the gradient is infinite or not a number.
  for (double grad_clip : {1.0, 0.0}) {
    for (double factor : {double{INFINITY}, std::nan("")}) {
      RunRanks(2, [&](World& world) {
        Job job(world, "dp=2", DataPlan::kFsdp, grad_clip);
        job.Step();
        const auto parameters = ValuesOf(job.model);
        const auto state = ValuesOf(job.trainer->optimizer());
        const StepMetrics bad = job.Step([&] { return job.Loss() * factor; });
        EXPECT_EQ(bad.step, 2);
        EXPECT_FALSE(std::isfinite(bad.loss));
        EXPECT_FALSE(std::isfinite(bad.grad_norm));
        EXPECT_FALSE(bad.finite);
        EXPECT_FALSE(bad.updated);
        EXPECT_EQ(ValuesOf(job.model), parameters);
        EXPECT_EQ(ValuesOf(job.trainer->optimizer()), state);
        EXPECT_EQ(state.at("updates"), std::vector<double>{1});
        const StepMetrics good = job.Step();
        EXPECT_EQ(good.step, 3);  // an attempt is a step: schedule, data and random bits have moved on
        EXPECT_EQ(good.lr, kSchedule.At(3));
        EXPECT_EQ(job.context->state().step(), 3u);
        EXPECT_EQ(ValuesOf(job.trainer->optimizer()).at("updates"), std::vector<double>{2});
        EXPECT_TRUE(std::isfinite(good.grad_norm));
        EXPECT_TRUE(good.updated);
        EXPECT_NE(ValuesOf(job.model), parameters);
      });
    }
  }
}

TEST(NonFiniteStepTest, TheStepAfterABadOneChangesNothingEither) {
  for (double grad_clip : {1.0, 0.0}) {
    for (const bool flushes : {false, true}) {
      RunRanks(2, [&](World& world) {
        Job job(world, "dp=2", DataPlan::kFsdp, grad_clip);
        const auto step = [&](double factor) {
          const auto record = job.trainer->Step(24, [&job, factor] { return job.Loss() * factor; });
          EXPECT_TRUE(!record || record->finite == (record->step != 2));
          return record;
        };
        step(1);
        const auto parameters = ValuesOf(job.model);
        step(INFINITY);
        EXPECT_FALSE(flushes && job.trainer->Flush().value().updated);
        EXPECT_EQ(ValuesOf(job.model), parameters);
        const auto second = step(1);
        // The host knows: nothing is to be kept for it.
        EXPECT_EQ(ValuesOf(job.model) == parameters, !flushes);
        EXPECT_FALSE(!flushes && second.value().updated);
        EXPECT_EQ(step(1).value().updated, flushes);
        EXPECT_NE(ValuesOf(job.model), parameters);
        EXPECT_TRUE(job.trainer->Flush().value().updated);
        EXPECT_EQ(ValuesOf(job.trainer->optimizer()).at("updates"), std::vector<double>{flushes ? 3.0 : 2.0});
      });
    }
  }
}

// That a step skips its update for the sake of the one before is no state: what is saved behind a Flush goes on with the same
// bits as the run that has saved it, and only that.
TEST(NonFiniteStepTest, BehindAFlushTrainingGoesOnAsAnotherTrainerWould) {
  for (const bool flushes : {false, true}) {
    RunRanks(2, [&](World& world) {
      Job same(world, "dp=2", DataPlan::kFsdp), resumed(world, "dp=2", DataPlan::kFsdp);
      for (Job* job : {&same, &resumed}) {
        for (const double factor : {1.0, double{INFINITY}}) {
          job->trainer->Step(24, [job, factor] { return job->Loss() * factor; });
        }
      }
      if (flushes) same.trainer->Flush();
      resumed.trainer->Flush();
      Trainer other(resumed.model, *resumed.adamw, {.schedule = kSchedule});
      other.set_step(2);
      same.trainer->Step(24, [&] { return same.Loss(); });
      other.Step(24, [&] { return resumed.Loss(); });
      EXPECT_EQ(ValuesOf(same.model) == ValuesOf(resumed.model), flushes);
      EXPECT_EQ(ValuesOf(*same.adamw) == ValuesOf(*resumed.adamw), flushes);
    });
  }
}

// So does a trainer that goes on after a checkpoint, as after an error, whatever the last step before that was.
TEST(NonFiniteStepTest, BehindAStepThatIsSetTrainingGoesOnAsAnotherTrainerWould) {
  RunRanks(2, [&](World& world) {
    Job same(world, "dp=2", DataPlan::kFsdp), resumed(world, "dp=2", DataPlan::kFsdp);
    for (Job* job : {&same, &resumed}) {
      job->trainer->Step(24, [job] { return job->Loss(); });
    }
    same.trainer->Step(
        24, [&] { return same.Loss() * INFINITY; });  // which has changed nothing: nothing is to be loaded
    same.trainer->set_step(1);
    Trainer other(resumed.model, *resumed.adamw, {.schedule = kSchedule});
    other.set_step(1);
    EXPECT_FALSE(same.trainer->Step(24, [&] { return same.Loss(); })->updated);
    other.Step(24, [&] { return resumed.Loss(); });
    EXPECT_EQ(ValuesOf(same.model), ValuesOf(resumed.model));
    EXPECT_EQ(ValuesOf(*same.adamw), ValuesOf(*resumed.adamw));
    EXPECT_TRUE(same.trainer->Flush()->updated);
  });
}

// Products of rows, normalised over the batch.
class Normalised : public Module {
 public:
  BatchNorm1d norm{this, "norm", 4};
  Linear down{this, "down", 4, 3};

 protected:
  DTensor Forward(const DTensor& x) override { return down(norm(x)); }
};

// To look for a cause runs the step's forward again, which leaves what training has made of the batch as it is.
TEST(NonFiniteStepTest, ToLookForTheCauseChangesNothing) {
  RunRanks(2, [](World& world) {
    Normalised model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), {{"", DataParallel("dp")}},
                                     {.dtype = DType::kF64});
    Sgd sgd(model.AllParameters(), {});
    Trainer trainer(model, sgd, {.schedule = kSchedule});
    const DTensor x = RandomNormal(context, DType::kF64, {6, 4}, {}, "x");
    const auto buffers = [&] {
      std::vector<std::vector<double>> values;
      for (const ModuleBuffer* buffer : model.AllBuffers()) {
        values.push_back(Cast(buffer->Value(), DType::kF64).ToLocal().ToVector<double>());
      }
      return values;
    };
    const auto before = buffers();
    trainer.Step(6, [&] { return Mean(Square(model(x))); });
    trainer.Flush();
    const auto after = buffers();
    EXPECT_NE(after, before);
    trainer.FindNonFinite();
    EXPECT_EQ(buffers(), after);
  });
}

// Drops elements, and writes down what is left.
class Masked : public Module {
 public:
  nn::Dropout drop{this, "drop"};
  Linear down{this, "down", 4, 3};
  std::vector<std::vector<double>> seen;

 protected:
  DTensor Forward(const DTensor& x) override {
    const DTensor masked = drop(x);
    seen.push_back(masked.ToLocal().ToVector<double>());
    return down(masked);
  }
};

// The masks of a step of `num_parts` parts are those of the search, wherever that is made, though the step ran under `Guard`.
template <class Guard>
void ExpectTheMasksOfTheStep(World& world, const std::function<void(Trainer&, Masked&, const DTensor&)>& step,
                             size_t num_parts) {
  Masked model;
  const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), {{"", DataParallel("dp")}},
                                   {.dtype = DType::kF64});
  context->state().set_warning_sink([](const std::string&) {});
  Sgd sgd(model.AllParameters(), {});
  Trainer trainer(model, sgd, {.schedule = kSchedule});
  const DTensor x = RandomNormal(context, DType::kF64, {6, 4}, {}, "x");
  {
    const Guard guard(context->state(), 40);
    step(trainer, model, x);
  }
  trainer.Flush();
  const std::vector<std::vector<double>> of_step = std::exchange(model.seen, {});
  ASSERT_EQ(of_step.size(), num_parts);
  trainer.FindNonFinite();
  EXPECT_EQ(model.seen, of_step);
  // Those of the same step without the guard are others.
  const NoGradGuard no_grad(context->state());
  context->state().ResetCallNumbers();
  model(x);
  EXPECT_NE(model.seen.back(), of_step[0]);
}

TEST(NonFiniteStepTest, TheSearchSeesTheMasksOfTheStep) {
  const auto whole = [](Trainer& trainer, Masked& model, const DTensor& x) {
    trainer.Step(6, [&model, x] { return Mean(Square(model(x))); });
  };
  const auto by_count = [](Trainer& trainer, Masked& model, const DTensor& x) {
    const auto count = [&](int) { return Full(x.context(), DType::kF64, {}, 18); };
    trainer.Step(2, count, [&model, x, count = count(0)](int) {
      return LossSum{Sum(Square(model(x))), count};
    });
  };
  const auto by_rows = [](Trainer& trainer, Masked& model, const DTensor& x) {
    trainer.Step(
        2, [](int) -> int64_t { return 6; }, [&model, x](int) { return Mean(Square(model(x))); });
  };
  RunRanks(2, [&](World& world) {
    ExpectTheMasksOfTheStep<BatchOffsetGuard>(world, whole, 1);
    ExpectTheMasksOfTheStep<BatchOffsetGuard>(world, by_count, 2);
    ExpectTheMasksOfTheStep<BatchOffsetGuard>(world, by_rows, 2);
    ExpectTheMasksOfTheStep<FoldInGuard>(world, whole, 1);
    ExpectTheMasksOfTheStep<FoldInGuard>(world, by_count, 2);
    ExpectTheMasksOfTheStep<FoldInGuard>(world, by_rows, 2);
  });
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
  AdamW adamw(model.AllParameters(), kAdamW);
  Trainer trainer(model, adamw, {.schedule = kSchedule});
  const Tensor full = Tensor::FromValues<double>({4, 2}, rows);
  const DTensor x = DTensor::Distribute(context, full, Layout::Parse("[dp, -]", mesh));
  const auto loss = [&] { return Mean(Square(model(x))); };
  trainer.Step(4, loss);
  trainer.Flush();
  trainer.FindNonFinite();
  EXPECT_FALSE(context->state().check_finite());
}

std::string DataLossOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
    return error.message();
  }
  return "nothing was thrown";
}

TEST(NonFiniteStepTest, FindNonFiniteNamesTheFirstModule) {
  // The last row is zero: on rank 1, the bias being zero, its sum is. The modules after it are not finite
  // either.
  EXPECT_EQ(
      DataLossOf([] { RunRanks(2, [](World& world) {
                        FindIn(world, {1, 2, 3, 4, 5, 6, 0, 0}, 1);
                      }); }),
      "rank 1: step 1: output of module 'fragile' (f64[4, 4] [dp, -]) is not finite: local element 4 is nan");
}

TEST(NonFiniteStepTest, FindNonFiniteNamesAParameterThatAlreadyIsNot) {
  const std::string message = DataLossOf([] {
    RunRanks(2, [](World& world) { FindIn(world, {1, 2, 3, 4, 5, 6, 7, 8}, INFINITY); });
  });
  EXPECT_EQ(message.substr(message.find("step")),
            "step 1: parameter 'last.weight' (f64[4, 1] [-, -]) is not finite: local element 2 is inf");
}

// The record of the bad step arrives in the next one, which has another batch: the bad one is run again, with the
// parameters that it saw.
TEST(NonFiniteStepTest, FindNonFiniteRunsTheRecordedStepAgain) {
  const std::string message = DataLossOf([] {
    RunRanks(1, [](World& world) {
      ThreeLayers model;
      const auto context = Parallelize(model, world, DeviceMesh(), {}, {.dtype = DType::kF64});
      AdamW adamw(model.AllParameters(), kAdamW);
      std::vector<double> bad_bias;
      const auto on_metrics = [&](Trainer& trainer, const StepMetrics& metrics) {
        if (metrics.finite) return;
        EXPECT_EQ(metrics.step, 2);
        EXPECT_EQ(trainer.step(), 3);
        EXPECT_EQ(model.first.bias->at_rest().ToLocal().ToVector<double>(), bad_bias);
        trainer.FindNonFinite();
      };
      Trainer trainer(model, adamw, {.schedule = kSchedule, .callbacks = {{.on_metrics = on_metrics}}});
      for (int step = 1; step <= 3; ++step) {
        bad_bias = model.first.bias->at_rest().ToLocal().ToVector<double>();
        const double last = step == 2 ? std::nan("") : 2;
        const DTensor x = DTensor::Distribute(context, Tensor::FromValues<double>({1, 2}, {1, last}),
                                              Layout(/*ndim=*/2, /*num_axes=*/0));
        trainer.Step(1, [&model, &context, x] {
          EXPECT_EQ(context->state().step() == 2, std::isnan(x.ToLocal().ToVector<double>()[1]));
          return Mean(Square(model(x)));
        });
      }
    });
  });
  EXPECT_EQ(message.substr(message.find("step")),
            "step 2: output of module 'first' (f64[1, 4] [-, -]) is not finite: local element 0 is nan");
}

// The largest or the smallest logarithm of each column.
class Extremes : public Module {
 public:
  Extremes(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  double factor = 1;
  bool is_least = false;

 protected:
  DTensor Forward(const DTensor& x) override {
    const DTensor y = Log(Scale(Square(x), factor));
    const DTensor extremes = is_least ? Min(y, {0}) : Max(y, {0});
    EXPECT_TRUE(extremes.layout().HasPartial());
    return extremes;
  }
};

class Pooled : public Module {
 public:
  Linear first{this, "first", 2, 4};
  Extremes pool{this, "pool"};

 protected:
  DTensor Forward(const DTensor& x) override { return pool(first(x)); }
};

// Five rows over four ranks: the last one's terms are of no elements, and infinite. The logarithms of zeros are on all.
TEST(NonFiniteStepTest, FindNonFiniteLooksAtExtremesAndNotAtTheirTerms) {
  for (const bool is_least : {false, true}) {
    for (const double factor : {1.0, 0.0}) {
      const auto find = [&](World& world) {
        Pooled model;
        model.pool.factor = factor;
        model.pool.is_least = is_least;
        const DeviceMesh mesh = DeviceMesh::Parse("dp=4");
        const auto context =
            Parallelize(model, world, mesh, {{"", DataParallel("dp")}}, {.dtype = DType::kF64});
        Sgd sgd(model.AllParameters(), {});
        Trainer trainer(model, sgd, {.schedule = kSchedule});
        const Tensor rows = Tensor::FromValues<double>({5, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
        const DTensor x = DTensor::Distribute(context, rows, Layout::Parse("[dp, -]", mesh));
        trainer.Step(5, [&] { return Mean(Square(model(x))); });
        trainer.Flush();
        trainer.FindNonFinite();
      };
      if (factor != 0) {
        RunRanks(4, find);
      } else {
        const std::string message = DataLossOf([&] { RunRanks(4, find); });
        EXPECT_NE(message.find("step 1: output of module 'pool'"), std::string::npos) << message;
      }
    }
  }
}

TEST(NonFiniteStepTest, FindNonFiniteNeedsARecord) {
  RunRanks(1, [](World& world) {
    Job job(world, "", DataPlan::kDdp);
    job.trainer->Step(24, [&] { return job.Loss(); });
    EXPECT_EQ(MessageOf([&] { job.trainer->FindNonFinite(); }),
              "Trainer::FindNonFinite: no step has been recorded; call Flush after the first");
  });
}

TEST(NonFiniteStepTest, FindNonFiniteReturnsWhereAllIsWell) {
  RunRanks(2, [](World& world) { FindIn(world, {1, 2, 3, 4, 5, 6, 7, 8}, 1); });
}

}  // namespace
}  // namespace weft
