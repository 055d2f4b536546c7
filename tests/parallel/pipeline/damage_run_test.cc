// Damaged schedules on the executor: what the checker passes runs to its end, with the gradients of one device, or its updates
// with the same delays; what it rejects stands still, fails, or computes something else.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/styles.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/damage.h"
#include "tests/parallel/pipeline/delayed_weights.h"
#include "tests/parallel/pipeline/products.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using Kind = ActionKind;

constexpr int kDamaged = 200;  // per schedule

// Knows when nothing can move any more: every rank has ended, or is in a transfer whose other end nobody has come to. The
// k-th send of a queue meets its k-th receive, so that ends are counted. Then all ranks' groups fail.
// `replicas`: ranks of the world that are one of the schedule's, one after another.
class Quiescence {
 public:
  Quiescence(const PipelineSchedule& schedule, int replicas)
      : schedule_(schedule),
        replicas_(replicas),
        worlds_(schedule.num_ranks() * replicas),
        places_(worlds_.size()) {}

  void Enter(World& world) {
    const std::lock_guard<std::mutex> lock(mutex_);
    worlds_[world.rank()] = &world;
  }
  void Begin(int rank, const PipelineAction& action) {
    if (!IsTransfer(action.kind)) return;
    const bool forward = action.kind == Kind::kSendForward || action.kind == Kind::kRecvForward;
    const bool sends = action.kind == Kind::kSendForward || action.kind == Kind::kSendBackward;
    const int other = action.stage + (forward == sends ? 1 : -1);
    if (other < 0 || other >= schedule_.num_stages()) return;  // the executor refuses it
    const int other_rank = schedule_.stage_rank[other] * replicas_ + rank % replicas_;
    const std::lock_guard<std::mutex> lock(mutex_);
    const Queue queue = {sends ? rank : other_rank, sends ? other_rank : rank, forward};
    Place& place = places_[rank];
    place = {.in_transfer = true, .queue = queue, .sends = sends, .number = ++begun_[{queue, sends}]};
    Look();
  }
  void End(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    places_[rank].in_transfer = false;
  }
  // The rank's list is done. What it waits for from here on, others may never come to.
  void EndList(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    places_[rank] = {.has_ended = true};
    Look();
  }
  void Leave(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    places_[rank] = {.has_ended = true};
    worlds_[rank] = nullptr;
    Look();
  }
  bool stood_still() const { return stood_still_; }

 private:
  using Queue = std::tuple<int, int, bool>;  // from, to, forward
  struct Place {
    bool has_ended = false;
    bool in_transfer = false;
    Queue queue = {};
    bool sends = false;
    int number = 0;
  };

  void Look() {
    bool all_ended = true;
    for (const Place& place : places_) {
      if (place.has_ended) continue;
      all_ended = false;
      const bool waits = place.in_transfer && begun_[{place.queue, !place.sends}] < place.number;
      if (!waits) return;
    }
    if (all_ended || stood_still_) return;
    stood_still_ = true;
    for (World* world : worlds_) {
      if (world != nullptr) world->FailGroups(absl::StatusCode::kAborted, "nothing moves any more");
    }
  }

  const PipelineSchedule& schedule_;
  const int replicas_;
  std::mutex mutex_;
  std::vector<World*> worlds_;
  std::vector<Place> places_;
  std::map<std::pair<Queue, bool>, int> begun_;
  bool stood_still_ = false;
};

// What no number shows, of a rank's list: that parameters are whole where they are read, are freed once, and that gradients
// are reduced once for each update.
class Account {
 public:
  explicit Account(const PipelineSchedule& schedule)
      : shards_(schedule.Contains(Kind::kUnshard) || schedule.Contains(Kind::kReshard)) {}

  // Errors: FailedPrecondition where the list breaks it.
  void Begin(const PipelineAction& action) {
    const bool reads = IsCompute(action.kind) && action.kind != Kind::kWeightGradient;
    const bool is_whole = whole_.count(action.stage) > 0;
    if (shards_ && (reads || action.kind == Kind::kReshard)) Require(is_whole, action);
    if (action.kind == Kind::kUnshard) Require(!is_whole, action), whole_.insert(action.stage);
    if (action.kind == Kind::kReshard) whole_.erase(action.stage);
    if (action.kind == Kind::kReduceGrad) Require(reduced_.insert(action.stage).second, action);
    if (action.kind == Kind::kOpt) reduced_.erase(action.stage);
  }
  // Errors: as Begin, where parameters are whole at the end.
  void End() const {
    for (const int stage : whole_) Require(false, {Kind::kReshard, stage});
  }

 private:
  static void Require(bool is_kept, const PipelineAction& action) {
    if (!is_kept)
      Throw(absl::StatusCode::kFailedPrecondition, "the account does not pass ", action.ToString());
  }

  const bool shards_;
  std::set<int> whole_;
  std::set<int> reduced_;  // and not yet in an update
};

// A schedule, and how many ranks each of its ranks is; FSDP over them, where there are several.
struct Base {
  PipelineSchedule schedule;
  int replicas = 1;
};

// What it has come to: gradients, or where it updates within the step the changes of parameters. Nothing, and `error` says why,
// if it does not come to its end.
class ListRun {
 public:
  ListRun(const PipelineSchedule& schedule, int replicas)
      : schedule_(schedule), replicas_(replicas), quiescence_(schedule, replicas) {
    const bool is_v = schedule.num_chunks() == 2 && schedule.stage_rank == VPlacement(schedule.num_ranks());
    std::vector<PlanEntry> entries = {
        {"layers.*", Pipeline("pp", {.chunks = schedule.num_chunks(),
                                     .order = is_v ? StageOrder::kV : StageOrder::kLoop})}};
    if (replicas > 1) entries.push_back({"layers.*", FullyShard("dp")});
    plan_ = Plan(entries);
  }

  std::optional<TrainingResult> AsItIs(std::string* error) {
    try {
      RunRanks(schedule_.num_ranks() * replicas_, [this](World& world) { OfRank(world); });
      return schedule_.Contains(Kind::kOpt) ? DelayedResult(loss_, before_, after_) : OneStep(loss_, after_);
    } catch (const Error& failed) {
      *error = quiescence_.stood_still() ? "stood still" : std::string(failed.message());
      return std::nullopt;
    }
  }

 private:
  void OfRank(World& world) {
    Products model(schedule_.num_stages());
    const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=", schedule_.num_ranks(), ", dp=", replicas_));
    Parallelize(model, world, mesh, plan_, {.dtype = DType::kF64});
    const bool updates = schedule_.Contains(Kind::kOpt);
    const FullTensors before = WholeOf(model, /*of_weights=*/true);
    Account account(schedule_);
    const auto watch = [&](const PipelineAction& action, bool begins) {
      if (begins) account.Begin(action);
      begins ? quiescence_.Begin(world.rank(), action) : quiescence_.End(world.rank());
    };
    std::map<int, std::unique_ptr<Sgd>> optimizers;
    const auto update = [&](int stage) {
      Sgd& optimizer = *optimizers.at(stage);
      for (const Parameter* parameter : optimizer.parameters()) {
        WEFT_REQUIRE(parameter->grad().defined(), "an update of nothing");
      }
      optimizer.Step(kDelayedRate);
      optimizer.ZeroGrad();
    };
    PipelineExecutor pipeline(model, schedule_, {.update = update, .rendezvous = true, .on_action = watch});
    for (int stage = 0; updates && stage < schedule_.num_stages(); ++stage) {
      const std::vector<Parameter*> parameters = pipeline.ParametersOf(stage);
      if (parameters.empty()) continue;
      optimizers[stage] = std::make_unique<Sgd>(parameters, SgdOptions{.momentum = kDelayedMomentum});
    }
    quiescence_.Enter(world);
    const absl::Cleanup leave = [&] { quiescence_.Leave(world.rank()); };
    const std::vector<Microbatch> parts = ProductParts(model.context(), schedule_.num_microbatches);
    const DTensor sum = pipeline.Run(parts, One(model.context()));
    quiescence_.EndList(world.rank());
    account.End();
    const double loss = sum.Item();
    const FullTensors after = WholeOf(model, updates);
    const std::lock_guard<std::mutex> lock(mutex_);
    loss_ = loss;
    before_.insert(before.begin(), before.end());
    after_.insert(after.begin(), after.end());
  }

  // Parameters, or their gradients.
  static FullTensors WholeOf(Products& model, bool of_weights) {
    FullTensors whole;
    for (const Parameter* parameter : model.AllParameters()) {
      const DTensor& value = of_weights ? parameter->at_rest() : parameter->grad();
      if (value.defined()) whole[parameter->path()] = value.FullTensor().ToVector<double>();
    }
    return whole;
  }

  const PipelineSchedule& schedule_;
  const int replicas_;
  Plan plan_;
  Quiescence quiescence_;
  std::mutex mutex_;
  double loss_ = 0;
  FullTensors before_, after_;
};

// What legal lists come to: of those that update within the step, with the delays that each has.
class Expected {
 public:
  const TrainingResult& Of(const PipelineSchedule& schedule) {
    const bool updates = schedule.versions != WeightVersions::kOne;
    const auto [found, is_new] =
        known_.try_emplace(updates ? VersionsRead(schedule) : std::map<std::pair<int, int>, int>());
    if (is_new) found->second = updates ? WithDelayedWeights(schedule) : OneDevice(schedule);
    return found->second;
  }

 private:
  static TrainingResult OneDevice(const PipelineSchedule& schedule) {
    TrainingResult result;
    RunRanks(1, [&](World& world) {
      Products model(schedule.num_stages());
      const auto context = Bind(world, DeviceMesh());
      Materialize(model, context, {.dtype = DType::kF64});
      double loss = 0;
      for (const Microbatch& part : ProductParts(context, schedule.num_microbatches)) {
        const DTensor of_part = model.LossOf({model(part.inputs[0])}, part.targets).sum;
        Backward(of_part);
        loss += of_part.Item();
      }
      FullTensors gradients;
      for (const Parameter* parameter : model.AllParameters()) {
        gradients[parameter->path()] = parameter->grad().ToLocal().ToVector<double>();
      }
      result = OneStep(loss, gradients);
    });
    return result;
  }

  std::map<std::map<std::pair<int, int>, int>, TrainingResult> known_;
};

// With transfers alone, and with parameters that are gathered and freed and gradients that are reduced.
std::vector<Base> BasesOf(const std::string& name, int ranks) {
  const bool updates = absl::StartsWith(name, "pipedream");
  const int microbatches = (updates ? 3 : name == "dualpipev" ? 2 : 1) * ranks;
  const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = ranks, .microbatches = microbatches});
  return {{LowerSchedule(schedule, {.whole_stages = 0, .reduce_gradients = false})},
          {LowerSchedule(schedule, {.whole_stages = 2}), /*replicas=*/2}};
}

class DamageRunTest : public testing::TestWithParam<std::string> {};

TEST_P(DamageRunTest, NoVerdictDiffers) {
  std::mt19937_64 random(20261124);
  int legal = 0, stood_still = 0, failed = 0;
  for (const int ranks : {2, 3}) {
    Expected expected;
    for (const Base& base : BasesOf(GetParam(), ranks)) {
      for (int i = 0; i <= kDamaged / 2; ++i) {
        Damage damage(base.schedule, random);
        for (uint64_t count = i == 0 ? 0 : 1 + random() % 2; count > 0; --count) damage.Once();
        const PipelineSchedule& schedule = damage.schedule();
        const ScheduleCertificate certificate = CheckSchedule(schedule);
        std::string error;
        const std::optional<TrainingResult> result = ListRun(schedule, base.replicas).AsItIs(&error);
        std::vector<std::string> differences = {error};
        if (result) differences = Differences(expected.Of(schedule), *result, kF64Tolerance);
        ASSERT_EQ(differences.empty(), certificate.ok)
            << "the checker: " << certificate.error << "\nthe executor: " << absl::StrJoin(differences, "\n")
            << "\n"
            << schedule.ToString();
        ASSERT_TRUE(i > 0 || certificate.ok) << certificate.error;
        legal += certificate.ok;
        stood_still += error == "stood still";
        failed += !error.empty() && error != "stood still";
      }
    }
  }
  EXPECT_GT(legal, 2 + 4);
  EXPECT_GT(stood_still, 2);
  EXPECT_GT(failed, 2);
}

INSTANTIATE_TEST_SUITE_P(All, DamageRunTest, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const ScheduleGenerator& generator : AllSchedules())
                             names.push_back(generator.name);
                           return names;
                         }()),
                         [](const auto& info) { return absl::StrCat("of_", info.param); });

}  // namespace
}  // namespace weft
