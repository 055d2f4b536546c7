#include "tools/faults/fault_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

constexpr std::pair<Fault, absl::string_view> kNames[] = {
    {Fault::kRank, "rank"},     {Fault::kStop, "stop"},   {Fault::kAgent, "agent"},  {Fault::kGuard, "guard"},
    {Fault::kBoth, "both"},     {Fault::kDisk, "disk"},   {Fault::kFlip, "flip"},    {Fault::kShort, "short"},
    {Fault::kClock, "clock"},   {Fault::kStore, "store"}, {Fault::kHost, "host"},    {Fault::kHosts, "hosts"},
    {Fault::kFreeze, "freeze"}, {Fault::kPause, "pause"}, {Fault::kUnplug, "unplug"}};

// Numbers that follow from the seed alone.
class Dice {
 public:
  explicit Dice(uint64_t seed) : key_{.seed = seed, .stream = StreamOf("chaos"), .step = 0} {}

  double Share() { return UniformAt(key_, next_++); }
  int64_t Below(int64_t bound) {
    return std::min(bound - 1, static_cast<int64_t>(Share() * static_cast<double>(bound)));
  }
  template <class T>
  void Shuffle(std::vector<T>* values) {
    for (size_t i = values->size(); i > 1; --i) std::swap((*values)[i - 1], (*values)[Below(i)]);
  }

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

std::vector<Moment> Moments(int count, Dice* dice) {
  const int special = (3 * count + 9) / 10;
  std::vector<Moment> moments(count, Moment::kStep);
  for (int i = 0; i < special && i < count; ++i) moments[i] = Moment::kSave;
  for (int i = special; i < 2 * special && i < count; ++i) moments[i] = Moment::kRestart;
  dice->Shuffle(&moments);
  // There is no restart before the first fault.
  const auto first =
      std::find_if(moments.begin(), moments.end(), [](Moment moment) { return moment != Moment::kRestart; });
  if (first != moments.end()) std::iter_swap(moments.begin(), first);
  return moments;
}

}  // namespace

absl::string_view FaultName(Fault fault) {
  for (const auto& [value, name] : kNames) {
    if (value == fault) return name;
  }
  return "";
}

Fault ParseFault(absl::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  ThrowInvalidArgument("unknown kind of fault '", name, "': expected one of ",
                       absl::StrJoin(kNames, ", ", [](std::string* out, const auto& entry) {
                         out->append(entry.second.data(), entry.second.size());
                       }));
}

bool HitsARank(Fault fault) {
  return fault == Fault::kRank || fault == Fault::kStop || fault == Fault::kFlip || fault == Fault::kClock;
}

bool HitsANode(Fault fault) {
  return fault == Fault::kAgent || fault == Fault::kGuard || fault == Fault::kBoth || fault == Fault::kHost ||
         fault == Fault::kFreeze || fault == Fault::kPause || fault == Fault::kUnplug;
}

bool KillsALauncher(Fault fault) {
  return fault == Fault::kAgent || fault == Fault::kGuard || fault == Fault::kBoth || fault == Fault::kHost ||
         fault == Fault::kHosts;
}

bool NeedsNodes(Fault fault) { return fault == Fault::kFreeze || fault == Fault::kUnplug; }

bool EndsALife(Fault fault, int num_nodes) {
  // Of one node only ranks that need their store meanwhile miss the agent, which keeps it.
  if (fault == Fault::kPause) return num_nodes > 1;
  return fault != Fault::kClock && fault != Fault::kStore && fault != Fault::kShort;
}

bool IsInRestart(Moment moment) { return moment == Moment::kRestart || moment == Moment::kMeeting; }

std::vector<PlannedFault> PlanFaults(const FaultPlanOptions& options) {
  WEFT_REQUIRE(
      options.count >= 1 && !options.kinds.empty() && options.num_ranks >= 1 && options.steps_between >= 1,
      "a plan of ", options.count, " faults of ", options.kinds.size(), " kinds on ", options.num_ranks,
      " ranks, ", options.steps_between, " steps apart: expected at least one of each");
  Dice dice(options.seed);
  const std::vector<Moment> moments = Moments(options.count, &dice);
  std::vector<Fault> faults;
  faults.reserve(options.count);
  for (int i = 0; i < options.count; ++i) faults.push_back(options.kinds[i % options.kinds.size()]);
  dice.Shuffle(&faults);
  std::vector<PlannedFault> plan;
  int64_t step = 0;
  bool is_early = true;
  for (int i = 0; i < options.count; ++i) {
    if (moments[i] != Moment::kRestart) step += 1 + dice.Below(2 * options.steps_between);
    plan.push_back({.fault = faults[i],
                    .moment = moments[i],
                    .rank = static_cast<int>(dice.Below(options.num_ranks)),
                    .step = step,
                    .delay = dice.Share()});
    if (moments[i] != Moment::kRestart || !KillsALauncher(faults[i])) continue;
    if (is_early) plan.back().moment = Moment::kMeeting;
    is_early = !is_early;
  }
  return plan;
}

}  // namespace weft
