// Damaged schedules on the executor: what the checker passes runs to its end, with the gradients of one device; what it
// rejects stands still, fails, or computes something else.

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/damage.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using Kind = ActionKind;

constexpr int kDamaged = 200;  // per schedule

// Knows when nothing can move any more: every rank has ended, or is in a transfer whose other end nobody has come to. The
// k-th send of a queue meets its k-th receive, so that ends are counted. Then all ranks' groups fail.
class Quiescence {
 public:
  Quiescence(const PipelineSchedule& schedule)
      : schedule_(schedule), worlds_(schedule.num_ranks()), places_(schedule.num_ranks()) {}

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
    const int other_rank = schedule_.stage_rank[other];
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
  std::mutex mutex_;
  std::vector<World*> worlds_;
  std::vector<Place> places_;
  std::map<std::pair<Queue, bool>, int> begun_;
  bool stood_still_ = false;
};

using Gradients = std::map<std::string, std::vector<double>>;

// Empty, and `error` says why, if it does not come to its end.
Gradients RunAsItIs(const PipelineSchedule& schedule, std::string* error) {
  Gradients gradients;
  std::mutex mutex;
  Quiescence quiescence(schedule);
  const bool is_v = schedule.num_chunks() == 2 && schedule.stage_rank == VPlacement(schedule.num_ranks());
  const Plan plan = {{"layers.*", Pipeline("pp", {.chunks = schedule.num_chunks(),
                                                  .order = is_v ? StageOrder::kV : StageOrder::kLoop})}};
  const auto run = [&](World& world) {
    Products model(schedule.num_stages());
    const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=", schedule.num_ranks()));
    Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const std::vector<Microbatch> parts = ProductParts(model.context(), schedule.num_microbatches);
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
    const auto watch = [&](const PipelineAction& action, bool begins) {
      begins ? quiescence.Begin(world.rank(), action) : quiescence.End(world.rank());
    };
    PipelineExecutor pipeline(model, schedule, {.rendezvous = true, .on_action = watch});
    quiescence.Enter(world);
    struct Leaving {
      Quiescence& quiescence;
      const int rank;
      ~Leaving() { quiescence.Leave(rank); }
    } leaving{quiescence, world.rank()};
    pipeline.Run(parts, total);
    const std::lock_guard<std::mutex> lock(mutex);
    for (const Parameter* parameter : model.AllParameters()) {
      if (!parameter->grad().defined()) continue;
      gradients[parameter->path()] = parameter->grad().ToLocal().ToVector<double>();
    }
  };
  try {
    RunRanks(schedule.num_ranks(), run);
    return gradients;
  } catch (const Error& failed) {
    *error = quiescence.stood_still() ? "stood still" : std::string(failed.message());
    return {};
  }
}

bool AreNear(const Gradients& a, const Gradients& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [path, values] : a) {
    const auto found = b.find(path);
    if (found == b.end()) return false;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!(std::abs(values[i] - found->second[i]) <= 1e-11)) return false;
    }
  }
  return true;
}

class DamageRunTest : public testing::TestWithParam<std::string> {};

TEST_P(DamageRunTest, NoVerdictDiffers) {
  std::mt19937_64 random(20261124);
  int legal = 0, stood_still = 0, failed = 0;
  for (const int ranks : {2, 3}) {
    const PipelineSchedule base = LowerSchedule(
        GenerateSchedule(GetParam(),
                         {.ranks = ranks, .microbatches = GetParam() == "dualpipev" ? 2 * ranks : ranks}),
        {.whole_stages = 0, .reduce_gradients = false});
    std::string error;
    const Gradients expected = RunAsItIs(base, &error);
    ASSERT_FALSE(expected.empty()) << error;
    for (int i = 0; i < kDamaged / 2; ++i) {
      Damage damage(base, random);
      for (uint64_t count = 1 + random() % 2; count > 0; --count) damage.Once();
      const ScheduleCertificate certificate = CheckSchedule(damage.schedule());
      error.clear();
      const Gradients gradients = RunAsItIs(damage.schedule(), &error);
      const bool is_right = error.empty() && AreNear(gradients, expected);
      ASSERT_EQ(is_right, certificate.ok)
          << "the checker: " << certificate.error << "\nthe executor: " << error << "\n"
          << damage.schedule().ToString();
      legal += is_right;
      stood_still += error == "stood still";
      failed += !error.empty() && error != "stood still";
    }
  }
  EXPECT_GT(legal, 2);
  EXPECT_GT(stood_still, 2);
  EXPECT_GT(failed, 2);
}

INSTANTIATE_TEST_SUITE_P(All, DamageRunTest, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const ScheduleGenerator& generator : AllSchedules()) {
                             // Those that update within the step: other orders read other weights, by right.
                             if (!absl::StartsWith(generator.name, "pipedream"))
                               names.push_back(generator.name);
                           }
                           return names;
                         }()),
                         [](const auto& info) { return absl::StrCat("of_", info.param); });

}  // namespace
}  // namespace weft
