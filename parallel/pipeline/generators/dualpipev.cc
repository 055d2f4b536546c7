// DualPipeV: a V of two chunks per rank, with forward and backward of different microbatches in pairs that
// may overlap.

#include <deque>
#include <utility>

#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/generators/rank_list.h"

namespace weft {
namespace {

// Writes one rank's list, in the eight phases of the source.
class Writer {
 public:
  Writer(const ScheduleSize& size, int rank)
      : size_(size), rank_(rank), a_(rank), z_(2 * size.ranks - 1 - rank), after_(size.ranks - 1 - rank) {}

  std::vector<ScheduleItem> Write() {
    for (int i = 0; i < 2 * after_; ++i) list_.Add(ActionKind::kForward, a_);
    for (int i = 0; i < rank_ + 1; ++i) {
      list_.Add(ActionKind::kForward, a_);
      list_.Add(ActionKind::kForward, z_);
    }
    for (int i = 0; i < after_; ++i) {
      Backward(z_, /*splits=*/true);
      HeldWeight();
      list_.Add(ActionKind::kForward, z_);
    }
    Middle();
    for (int i = 0; i < after_; ++i) {
      Backward(z_, /*splits=*/false);
      list_.AddPair(z_, a_);
    }
    Drain();
    return std::move(list_).Take();
  }

 private:
  void Middle() {
    const int count = size_.microbatches - 2 * size_.ranks + rank_ + 1;
    for (int i = 0; i < count; ++i) {
      if (i == 0 && after_ == 0) {
        // Apart, since the pair would wait for what its own F sends on.
        list_.Add(ActionKind::kForward, a_);
        Backward(z_, /*splits=*/false);
      } else {
        list_.AddPair(a_, z_);
      }
      list_.AddPair(z_, a_);
    }
  }

  // Backwards alone; from the middle on W are held back, to fill the end.
  void Drain() {
    bool splits = false;
    const int half = (rank_ + 1) / 2;
    for (int i = 0; i < rank_ + 1; ++i) {
      if (i == half && rank_ % 2 == 1) splits = true;
      Backward(z_, splits);
      if (i == half && rank_ % 2 == 0) splits = true;
      Backward(a_, splits);
    }
    for (int i = 0; i < after_; ++i) {
      HeldWeight();
      Backward(a_, splits);
    }
    while (!held_.empty()) HeldWeight();
  }

  void Backward(int stage, bool splits) {
    list_.Add(splits ? ActionKind::kInputGradient : ActionKind::kBackward, stage);
    if (splits) held_.push_back(stage);
  }

  void HeldWeight() {
    if (held_.empty()) return;
    list_.Add(ActionKind::kWeightGradient, held_.front());
    held_.pop_front();
  }

  const ScheduleSize& size_;
  const int rank_;
  const int a_;      // the stage on the way down
  const int z_;      // the one on the way up
  const int after_;  // ranks behind this one
  RankList list_;
  std::deque<int> held_;  // stages whose I has run and whose W has not
};

// Source: DeepSeek's DualPipe repository (DualPipeV) and PyTorch's ScheduleDualPipeV.
PipelineSchedule Generate(const ScheduleSize& size) {
  PipelineSchedule schedule{.stage_rank = VPlacement(size.ranks)};
  for (int rank = 0; rank < size.ranks; ++rank) schedule.ranks.push_back(Writer(size, rank).Write());
  return schedule;
}

const RegisterSchedule kRegister({
    .name = "dualpipev",
    .summary =
        "two chunks per rank that lie as a V; pairs of F and B that may overlap computing with communication",
    .chunks = 2,
    .rule = "at least twice as many microbatches as ranks",
    .accepts = [](const ScheduleSize& size) { return size.microbatches >= 2 * size.ranks; },
    .generate = Generate,
});

}  // namespace
}  // namespace weft
