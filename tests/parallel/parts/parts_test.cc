// Parts of a model that are used twice, never, now and then, or not trained; what the trainer says of them; and that the
// comparison with one device sees gradients that go astray.

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/autograd/custom_function.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/loss_scale.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/trainer.h"
#include "runtime/base/philox.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/parts/parts_run.h"

namespace weft {
namespace {

constexpr int64_t kWidth = 6;

Tensor Rows(absl::string_view what, int64_t first, int64_t rows) {
  std::vector<double> values;
  for (int64_t row = first; row < first + rows; ++row) {
    const RandomKey key = {.seed = 3, .stream = StreamOf(what), .step = static_cast<uint64_t>(row)};
    for (int64_t i = 0; i < kWidth; ++i) values.push_back(2 * UniformAt(key, static_cast<uint64_t>(i)) - 1);
  }
  return Tensor::FromValues<double>({rows, kWidth}, values);
}

class Branch : public Module {
 public:
  Branch(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  Linear up{this, "up", kWidth, 2 * kWidth, {.weight = Initializer::Normal(0, 0.5)}};
  Linear down{this, "down", 2 * kWidth, kWidth, {.weight = Initializer::Normal(0, 0.5)}};

 protected:
  DTensor Forward(const DTensor& x) override { return down(Dropout(Tanh(up(x)), 0.2)); }
};

// What a test does to the two tensors that meet.
using Meddle = std::function<DTensors(const DTensors&)>;

class Meeting : public Module {
 public:
  Meeting(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  // Of a, b and what is right.
  DTensor operator()(const DTensor& a, const DTensor& b, const DTensor& right) {
    return CallModule(*this, {a, b, right}, [&](const DTensors& x) {
      const DTensors met = meddle ? meddle({x[0], x[1]}) : DTensors{x[0], x[1]};
      return MseLoss(out(met[1].defined() ? met[0] * met[1] : met[0]), x[2]).Mean();
    });
  }
  Linear out{this, "out", kWidth, kWidth, {.weight = Initializer::Normal(0, 0.5)}};
  Meddle meddle;
};

// Has no parameters, and no entry places it: it runs on all ranks.
class Blend : public Module {
 public:
  Blend(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  DTensor operator()(const DTensor& a, const DTensor& b) {
    const ModuleCall call(*this);
    const DTensor x = call.Input(a, 0), y = call.Input(b, 1);
    return call.Output(Dropout(x * y, 0.1) + Tanh(y));
  }
};

// How the branches meet.
enum class Way { kOnce, kTwice, kNever, kNowAndThen, kBlended };

class Branches : public PartsModel {
 public:
  explicit Branches(Way way) : way_(way) {}

  DTensor Loss(const std::vector<DTensor>& inputs, const std::vector<DTensor>& targets) override {
    const ModuleCall call(*this);
    const DTensor of_a = a(inputs[0]), of_b = b(inputs[1]);
    const bool has_b =
        way_ != Way::kNever && (way_ != Way::kNowAndThen || context()->state().step() % 2 == 0);
    if (way_ == Way::kBlended) return call.Output(meeting(blend(of_a, of_b), DTensor(), targets[0]));
    const DTensor loss = meeting(of_a, has_b ? of_b : DTensor(), targets[0]);
    if (way_ != Way::kTwice) return call.Output(loss);
    // b meets itself, where a lies, and what a makes of that.
    return call.Output(loss) + call.Output(again(a(of_b), of_b, targets[0]));
  }
  std::vector<Module*> Takers() override { return {&a, &b}; }
  Module* TargetTaker() override { return &meeting; }

  Branch a{this, "a"}, b{this, "b"};
  Meeting meeting{this, "meeting"}, again{this, "again"};
  Blend blend{this, "blend"};

 private:
  const Way way_;
};

PartsRun RunOf(Way way) {
  PartsRun run;
  run.make_model = [way] { return std::make_unique<Branches>(way); };
  run.make_batch = [](int64_t first, int64_t rows) {
    return PartsBatch{.inputs = {Rows("a", first, rows), Rows("b", first, rows)},
                      .targets = {Rows("right", first, rows)}};
  };
  run.mesh = DeviceMesh::Parse("gpus=6");
  run.plan = {
      {"a", On("gpus", 0, 2, "dp=2")}, {"b", On("gpus", 2, 1)}, {"meeting", On("gpus", 3, 2, "tp=2")},
      {"again", On("gpus", 5, 1)},     {"a", FullyShard("dp")}, {"meeting.out", ColumnParallel("tp")},
  };
  run.steps = 3;
  return run;
}

std::vector<std::string> DifferencesOf(const PartsRun& run) {
  const TrainingResult expected = Train(OnOneDevice(run)), result = Train(run);
  std::vector<std::string> differences;
  for (const auto& [step, gradients] : expected.gradients) {
    if (gradients.size() != result.gradients.at(step).size()) {
      differences.push_back(absl::StrCat("other parameters have gradients in step ", step));
    }
  }
  if (!differences.empty()) return differences;
  return Differences(expected, result, kF64Tolerance);
}

void ExpectEqual(const PartsRun& run) {
  const std::vector<std::string> differences = DifferencesOf(run);
  EXPECT_TRUE(differences.empty()) << absl::StrJoin(differences, "\n");
}

TEST(PartsTest, UsedOnce) { ExpectEqual(RunOf(Way::kOnce)); }
TEST(PartsTest, UsedTwice) { ExpectEqual(RunOf(Way::kTwice)); }
TEST(PartsTest, AModuleOnAllRanksInBetween) { ExpectEqual(RunOf(Way::kBlended)); }
TEST(PartsTest, NeverUsed) { ExpectEqual(RunOf(Way::kNever)); }
// Its updates count as the others', so that AdamW corrects its moments alike.
TEST(PartsTest, UsedNowAndThen) {
  PartsRun run = RunOf(Way::kNowAndThen);
  run.steps = 5;
  ExpectEqual(run);
}

TEST(PartsTest, Microbatches) {
  PartsRun run = RunOf(Way::kTwice);
  run.rows = {2, 1, 3};
  ExpectEqual(run);
}

// Of a part, as PartsRun::after_parallelize.
std::function<void(PartsModel&)> Freeze(const std::string& part) {
  return [part](PartsModel& model) {
    for (Module* module : model.children()) {
      if (module->path() == part) module->set_trainable(false);
    }
  };
}

// A part that is not trained: what a branch makes then wants no gradient, as the ranks that take it are told. With an
// optimizer of those that are trained alone its ranks have nothing to update, and join in the norm.
TEST(PartsTest, NotTrained) {
  for (const char* frozen : {"a", "b", "meeting"}) {
    for (const bool only_trained : {false, true}) {
      PartsRun run = RunOf(Way::kOnce);
      run.only_trained = only_trained;
      run.after_parallelize = Freeze(frozen);
      ExpectEqual(run);
    }
  }
}

// Their checkpoints lack nothing that one device's have: a run goes on on one device, and on the parts.
TEST(PartsTest, CheckpointsOfPartsThatAreNotTrained) {
  for (const bool in_folders : {false, true}) {
    PartsRun run = RunOf(Way::kOnce);
    run.only_trained = true;
    run.after_parallelize = Freeze("a");
    run.in_folders = in_folders;
    const TrainingResult expected = Train(OnOneDevice(run));
    const std::string folder = absl::StrCat(testing::TempDir(), "/frozen_parts_", in_folders);
    std::filesystem::create_directories(folder);
    const auto goes_on = [&](PartsRun from, PartsRun to) {
      from.steps = 2;
      from.save = folder + "/checkpoint";
      Train(from);
      to.steps = 1;
      to.first_step = 3;
      to.load = from.save;
      const TrainingResult rest = Train(to);
      EXPECT_NEAR(rest.losses[0], expected.losses[2], 1e-12 * expected.losses[2]);
      EXPECT_NEAR(rest.grad_norms[0], expected.grad_norms[2], 1e-11 * expected.grad_norms[2]);
      std::filesystem::remove_all(from.save);
    };
    goes_on(run, OnOneDevice(run));
    goes_on(run, run);
    goes_on(OnOneDevice(run), run);
    std::filesystem::remove_all(folder);
  }
}

// A style without an axis reaches into parts; what crosses is cast to fewer bytes before it moves.
TEST(PartsTest, PrecisionOfParts) {
  PartsRun run = RunOf(Way::kTwice);
  const PlanEntry narrow = {"", Precision({.param = DType::kF32})},
                  wide = {"b", Precision({.param = DType::kF64})};
  PartsRun one = OnOneDevice(run);
  one.plan = {narrow, wide};
  run.plan = run.plan.Merge(one.plan);
  const std::vector<std::string> differences = Differences(Train(one), Train(run), kF32Tolerance);
  EXPECT_TRUE(differences.empty()) << absl::StrJoin(differences, "\n");
}

TEST(PartsTest, OffloadedParts) {
  for (const OffloadOptions& options :
       {OffloadOptions{.state = true}, OffloadOptions{.parameters = true, .activations = true}}) {
    PartsRun run = RunOf(Way::kOnce);
    run.plan = run.plan.Merge({{"", Offload(options)}});
    ExpectEqual(run);
  }
}

// Gradients that a part sums in fewer bytes, and those of the others.
TEST(PartsTest, CompressedParts) {
  PartsRun run = RunOf(Way::kOnce);
  std::vector<PlanEntry> entries = run.plan.entries();
  for (PlanEntry& entry : entries) {
    if (entry.style.name == "FullyShard") entry.style = DataParallel("dp");
  }
  entries.push_back({"a", Communication("bf16")});
  run.plan = Plan(entries);
  const TrainingResult expected = Train(OnOneDevice(run)), result = Train(run);
  EXPECT_EQ(Differences(expected, result, kBF16Tolerance), std::vector<std::string>());
  EXPECT_FALSE(Differences(expected, result, kF64Tolerance).empty());
}

// Identity, whose gradients are what `backward` makes of theirs.
Meddle WithGradients(std::function<DTensors(const DTensors&)> backward) {
  return [backward](const DTensors& x) {
    return CallCustom({.name = "meddled",
                       .forward = [](const DTensors& in) { return in; },
                       .backward = [backward](const CustomGradients& of) { return backward(of.gradients); }},
                      x);
  };
}

TEST(PartsTest, MutantsAreSeen) {
  const std::vector<std::pair<std::string, Meddle>> mutants = {
      {"a transfer's gradient is dropped",
       [](const DTensors& x) {
         return DTensors{x[0].Detach(), x[1]};
       }},
      {"gradients go to each other's part", WithGradients([](const DTensors& g) {
         return DTensors{g[1], g[0]};
       })},
      {"a gradient is added up over the part's two ranks", WithGradients([](const DTensors& g) {
         return DTensors{g[0] * 2.0, g[1]};
       })},
  };
  for (const auto& [what, meddle] : mutants) {
    PartsRun run = RunOf(Way::kOnce);
    const TrainingResult expected = Train(OnOneDevice(run));
    run.after_parallelize = [&meddle = meddle](PartsModel& model) {
      dynamic_cast<Branches&>(model).meeting.meddle = meddle;
    };
    const TrainingResult result = Train(run);
    const bool lost = result.gradients.at(1).size() != expected.gradients.at(1).size();
    EXPECT_TRUE(lost || !Differences(expected, result, kF64Tolerance).empty()) << what;
  }
}

TEST(PartsTest, AnErrorInOnePartEndsAll) {
  PartsRun run = RunOf(Way::kTwice);
  run.after_parallelize = [](PartsModel& model) {
    dynamic_cast<Branches&>(model).again.meddle = [](const DTensors&) -> DTensors {
      Throw(absl::StatusCode::kInvalidArgument, "not today");
    };
  };
  EXPECT_EQ(MessageOf([&] { Train(run); }), "rank 5: not today");
}

// What the trainer records, the same on every rank.
std::vector<StepMetrics> Records(const PartsRun& run, bool scales, std::vector<int64_t> rows) {
  std::vector<std::vector<StepMetrics>> records(run.mesh.num_ranks());
  RunRanks(static_cast<int>(run.mesh.num_ranks()),
           [&](World& world) {
             const std::unique_ptr<PartsModel> model = run.make_model();
             const IntrusivePtr<MeshContext> context = Bind(world, run.mesh);
             context->state().set_seed(5);
             Parallelize(*model, context, run.plan, {.dtype = DType::kF64});
             if (run.after_parallelize) run.after_parallelize(*model);
             AdamW optimizer(run.only_trained ? model->TrainableParameters() : model->AllParameters(), {});
             LossScale loss_scale(context, {.initial = 8});
             TrainerOptions options = {
                 .schedule = [](int64_t) { return 1e-2; }, .grad_clip = 0.1, .check_replicas_every = 1};
             if (scales) options.loss_scale = &loss_scale;
             Trainer trainer(*model, optimizer, options);
             for (int step = 0; step < 3; ++step) {
               const auto loss = [&, step](int i) {
                 const PartsBatch batch = run.make_batch(100 * step + 10 * i, rows[i]);
                 const auto lay = [&](const Tensor& full) {
                   return DTensor::Distribute(context, full, Layout(full.ndim(), context->mesh().num_axes()));
                 };
                 return model->Loss({lay(batch.inputs[0]), lay(batch.inputs[1])}, {lay(batch.targets[0])});
               };
               const auto record = trainer.Step(
                   static_cast<int>(rows.size()), [&](int i) { return rows[i]; }, loss);
               if (record) records[world.rank()].push_back(*record);
             }
             records[world.rank()].push_back(*trainer.Flush());
           },
           {.check_issue_order = true});
  for (const std::vector<StepMetrics>& of_rank : records) {
    for (size_t i = 0; i < of_rank.size(); ++i) {
      EXPECT_EQ(of_rank[i].loss, records[0][i].loss);
      EXPECT_EQ(of_rank[i].grad_norm, records[0][i].grad_norm);
      EXPECT_EQ(of_rank[i].comm_bytes, records[0][i].comm_bytes);
    }
  }
  return records[0];
}

void ExpectOneDevicesRecords(const PartsRun& run) {
  for (const bool scales : {false, true}) {
    const std::vector<StepMetrics> one = Records(OnOneDevice(run), scales, {2, 3}),
                                   parts = Records(run, scales, {2, 3});
    ASSERT_EQ(parts.size(), 3);
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_NEAR(parts[i].loss, one[i].loss, 1e-12 * one[i].loss);
      EXPECT_NEAR(parts[i].grad_norm, one[i].grad_norm, 1e-11 * one[i].grad_norm);
      EXPECT_EQ(parts[i].num_tokens, one[i].num_tokens);
      EXPECT_EQ(parts[i].loss_scale, one[i].loss_scale);
      EXPECT_TRUE(parts[i].updated);
      EXPECT_GT(parts[i].comm_bytes, 0);
    }
  }
}

TEST(PartsTest, TheTrainersRecords) { ExpectOneDevicesRecords(RunOf(Way::kTwice)); }

TEST(PartsTest, TheTrainersRecordsOfPartsThatAreNotTrained) {
  for (const char* frozen : {"a", "b", "meeting"}) {
    PartsRun run = RunOf(Way::kOnce);
    run.only_trained = true;
    run.after_parallelize = Freeze(frozen);
    ExpectOneDevicesRecords(run);
  }
}

// Memory is where the parts are, and other ranks hold none of it.
TEST(PartsTest, RanksHoldTheirPartAlone) {
  const PartsRun run = RunOf(Way::kOnce);
  RunRanks(6, [&](World& world) {
    const std::unique_ptr<PartsModel> model = run.make_model();
    const IntrusivePtr<MeshContext> context = Parallelize(*model, world, run.mesh, run.plan);
    auto& branches = dynamic_cast<Branches&>(*model);
    EXPECT_EQ(branches.a.up.weight.is_here(), world.rank() < 2);
    EXPECT_EQ(branches.b.up.weight.is_here(), world.rank() == 2);
    EXPECT_EQ(model->AllParameters().size(), world.rank() < 3 ? 4 : 2);
    EXPECT_EQ(branches.a.context()->mesh().ToString(), "dp=2");
    EXPECT_EQ(branches.a.context()->is_member(), world.rank() < 2);
    EXPECT_EQ(model->context()->mesh(), run.mesh);
    if (world.rank() != 2) {
      EXPECT_EQ(MessageOf([&] { branches.b.up.weight.Value(); }).substr(0, 20), "parameter 'b.up.weig");
    }
  });
}

TEST(PartsTest, CallsThatOtherRanksCannotLeaveOut) {
  // A module whose operator() is no CallModule.
  class Plain : public Module {
   public:
    Plain(Module* parent, std::string name) : Module(parent, std::move(name)) {}
    DTensor operator()(const DTensor& x, const DTensor& y) {
      const ModuleCall call(*this);
      return call.Output(inner(call.Input(x, 0)) + call.Input(y, 1));
    }
    Linear inner{this, "inner", 2, 2};
  };
  class Root : public Module {
   public:
    Plain first{this, "first"}, second{this, "second"};
  };
  RunRanks(2, [](World& world) {
    Root root;
    const auto context = Parallelize(root, world, DeviceMesh::Parse("g=2"),
                                     {{"first", On("g", 0, 1)}, {"second", On("g", 1, 1)}});
    const DTensor x = Zeros(context, DType::kF32, {1, 2});
    EXPECT_EQ(MessageOf([&] { root.first(x, x); }),
              "module 'first' lies on a part of the ranks, and the others cannot leave out what follows a "
              "ModuleCall: its operator() has to be a CallModule");
  });
}

}  // namespace
}  // namespace weft
