// V-Half and V-Min: a V of two chunks per rank under a cap of activations, about a half and a third of
// 1F1B's.

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/pipeline/generator.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// The four that a microbatch needs of a rank, W left out, in their order: a is the stage on the way down, z
// the one up.
enum Pass { kForwardA, kForwardZ, kInputZ, kInputA, kNumPasses };

// The units of time at which a microbatch's passes begin on one rank, where each takes one.
using Block = std::array<int, kNumPasses>;

// Source: Qi et al., "Pipeline Parallelism with Controllable Memory", 2024: a building block per rank that
//         repeats every 6
// units. What a rank holds is how long the blocks live. The extra units keep passes of different blocks
// apart.
Block MinBlock(int ranks, int rank) {
  const int extra = ranks % 3 == 0 ? 2 : 0;
  return {rank, 2 * ranks - 1 - rank, 2 * ranks + extra + rank, 4 * ranks + extra - 1 - rank};
}

Block HalfBlock(int ranks, int rank) {
  const int extra = ranks % 2 == 0 ? 3 : 0;
  return {2 * rank, 3 * ranks - 2 - rank, 3 * ranks + extra + 2 * rank - 1, 6 * ranks + extra - rank - 2};
}

// Which pass a rank takes next, of those that can run. W runs where none is taken.
enum class Choice {
  kInOrder,         // the blocks' order, come what may
  kGradientsFirst,  // the same, but an I that is ready goes before a W
  kEager,           // whatever is ready: the way back before new microbatches
  kReserving,       // as kEager, but a new microbatch waits until its way back has room, too
};

// Lists made by running the pipeline: all actions take one unit, and no rank holds more than `cap` chunks.
class Runner {
 public:
  Runner(const ScheduleSize& size, const std::vector<Block>& blocks, int cap, Choice choice)
      : size_(size), blocks_(blocks), cap_(cap), choice_(choice), states_(size.ranks), lists_(size.ranks) {}

  // The units that it took; nothing if the cap leaves no way on.
  std::optional<int> Run() {
    int units = 0;
    for (int left = 6 * size_.microbatches * size_.ranks; left > 0; ++units) {
      std::vector<std::optional<int>> passes(size_.ranks);  // of this unit; kNumPasses: W
      bool any = false;
      for (int rank = 0; rank < size_.ranks; ++rank) {
        passes[rank] = Next(rank);
        any |= passes[rank].has_value();
      }
      if (!any) return std::nullopt;
      for (int rank = 0; rank < size_.ranks; ++rank) {
        if (passes[rank]) Take(rank, *passes[rank]), --left;
      }
    }
    return units;
  }

  std::vector<std::vector<ScheduleItem>> TakeLists() && { return std::move(lists_); }

 private:
  struct State {
    std::array<int, kNumPasses> done = {};  // microbatches, by pass
    std::deque<PipelineAction> weights;     // W to run
    int held = 0;                           // chunks of activations
  };

  int StageOf(int rank, int pass) const {
    return pass == kForwardA || pass == kInputA ? rank : 2 * size_.ranks - 1 - rank;
  }

  // The state behind which a pass of `rank` runs; none if the microbatch begins there.
  bool InputIsThere(int rank, int pass) const {
    const int microbatch = states_[rank].done[pass];
    // A pass needs the one before it on this rank, and its own kind on the rank that it comes from. At the
    // foot of the V and at its top both are the same.
    const int from = pass == kForwardA || pass == kInputZ ? rank - 1 : rank + 1;
    if (pass > 0 && states_[rank].done[pass - 1] <= microbatch) return false;
    return from < 0 || from >= size_.ranks || states_[from].done[pass] > microbatch;
  }

  bool IsReady(int rank, int pass) const {
    const State& state = states_[rank];
    if (state.done[pass] >= size_.microbatches || !InputIsThere(rank, pass)) return false;
    if (pass == kInputZ || pass == kInputA) return true;
    int reserved = 0;
    if (choice_ == Choice::kReserving && pass == kForwardA) {
      reserved = state.done[kForwardA] - state.done[kForwardZ] + 1;
    }
    return state.held + reserved < cap_;
  }

  std::optional<int> Next(int rank) const {
    const State& state = states_[rank];
    const std::optional<int> weight = state.weights.empty() ? std::nullopt : std::optional<int>(kNumPasses);
    if (choice_ == Choice::kEager || choice_ == Choice::kReserving) {
      for (int pass : {kForwardZ, kInputZ, kInputA, kForwardA}) {
        if (IsReady(rank, pass)) return pass;
      }
      return weight;
    }
    const auto due = [&](int pass) { return blocks_[rank][pass] + 6 * state.done[pass]; };
    std::optional<int> first;
    std::optional<int> gradient;  // the first that is ready
    for (int pass = 0; pass < kNumPasses; ++pass) {
      if (state.done[pass] >= size_.microbatches) continue;
      if (!first || due(pass) < due(*first)) first = pass;
      if (pass >= kInputZ && IsReady(rank, pass) && (!gradient || due(pass) < due(*gradient)))
        gradient = pass;
    }
    if (first && IsReady(rank, *first)) return first;
    return choice_ == Choice::kGradientsFirst && gradient ? gradient : weight;
  }

  void Take(int rank, int pass) {
    State& state = states_[rank];
    if (pass == kNumPasses) {
      lists_[rank].push_back(state.weights.front());
      state.weights.pop_front();
      --state.held;
      return;
    }
    const bool forward = pass == kForwardA || pass == kForwardZ;
    const int stage = StageOf(rank, pass);
    const int microbatch = state.done[pass]++;
    lists_[rank].push_back(
        PipelineAction{forward ? ActionKind::kForward : ActionKind::kInputGradient, stage, microbatch});
    if (forward) {
      ++state.held;
    } else {
      state.weights.push_back({ActionKind::kWeightGradient, stage, microbatch});
    }
  }

  const ScheduleSize& size_;
  const std::vector<Block>& blocks_;
  const int cap_;
  const Choice choice_;
  std::vector<State> states_;
  std::vector<std::vector<ScheduleItem>> lists_;
};

// The shortest of the four ways. In order alone, V-Half takes one whole unit more than the optimum on two
// ranks, which kEager reaches; kGradientsFirst saves up to one at the end where the order leaves it room.
PipelineSchedule Shortest(const ScheduleSize& size, Block block(int ranks, int rank), int cap) {
  PipelineSchedule schedule{.stage_rank = VPlacement(size.ranks)};
  std::vector<Block> blocks;
  for (int rank = 0; rank < size.ranks; ++rank) blocks.push_back(block(size.ranks, rank));
  std::optional<int> least;
  for (Choice choice : {Choice::kInOrder, Choice::kGradientsFirst, Choice::kEager, Choice::kReserving}) {
    Runner runner(size, blocks, cap, choice);
    const std::optional<int> units = runner.Run();
    if (!units || (least && *units >= *least)) continue;
    least = units;
    schedule.ranks = std::move(runner).TakeLists();
  }
  // kReserving always ends: what it lets in has room for its whole way.
  WEFT_CHECK(least.has_value(), size.ranks, " ranks, at most ", cap, " chunks");
  return schedule;
}

const RegisterSchedule kRegisterHalf({
    .name = "v_half",
    .summary = "a V of two chunks per rank that holds (ranks + 2) / 2 microbatches, rounded down",
    .chunks = 2,
    .generate =
        [](const ScheduleSize& size) { return Shortest(size, HalfBlock, 2 * ((size.ranks + 2) / 2)); },
});

const RegisterSchedule kRegisterMin({
    .name = "v_min",
    .summary = "a V of two chunks per rank that holds (ranks + 4) / 3 microbatches, rounded down",
    .chunks = 2,
    .generate = [](const ScheduleSize& size) { return Shortest(size, MinBlock, 2 * ((size.ranks + 4) / 3)); },
});

}  // namespace
}  // namespace weft
