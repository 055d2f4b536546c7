#include "parallel/pipeline/action_order.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

using Kind = ActionKind;

// What a stage has been through, as its rank's list goes on.
struct StageState {
  bool whole = false;     // between UNSHARD and RESHARD
  bool reducing = false;  // behind REDUCE_GRAD, before WAIT_REDUCE_GRAD
  bool reduced = false;   // behind REDUCE_GRAD, before OPT
  int updates = 0;        // OPT so far
  int gradients = 0;      // B and W since the last OPT
};

class Checker {
 public:
  explicit Checker(const PipelineSchedule& schedule)
      : schedule_(schedule),
        stages_(schedule.num_stages()),
        done_(static_cast<size_t>(schedule.num_stages()) * std::max(0, schedule.num_microbatches)),
        lowered_(schedule.lowered()),
        shards_(Holds(Kind::kUnshard) || Holds(Kind::kReshard)),
        reduces_(Holds(Kind::kReduceGrad)),
        updates_(Holds(Kind::kOpt)),
        group_(schedule.versions == WeightVersions::kOne || schedule.microbatches_per_update <= 0
                   ? std::max(1, schedule.num_microbatches)
                   : schedule.microbatches_per_update) {}

  std::string Defect() {
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      const int rank = schedule_.stage_rank[stage];
      if (rank < 0 || rank >= schedule_.num_ranks()) {
        return absl::StrCat("stage ", stage, " lies on rank ", rank, ", but there are ",
                            schedule_.num_ranks(), " ranks");
      }
    }
    if (schedule_.num_stages() < 1 || schedule_.num_microbatches < 1) {
      return absl::StrCat("expected stages and microbatches, got ", schedule_.num_stages(), " and ",
                          schedule_.num_microbatches);
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      const std::vector<ScheduleItem>& items = schedule_.ranks[rank];
      for (size_t index = 0; index < items.size(); ++index) {
        const std::string defect = ItemDefect(rank, items[index]);
        if (!defect.empty()) {
          return absl::StrCat("rank ", rank, ", action ", index, ", ", items[index].ToString(), ": ", defect);
        }
      }
    }
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      const std::string defect = EndDefect(stage);
      if (!defect.empty()) return absl::StrCat("rank ", schedule_.stage_rank[stage], ": ", defect);
    }
    return "";
  }

 private:
  bool Holds(Kind kind) const {
    for (const std::vector<ScheduleItem>& items : schedule_.ranks) {
      for (const ScheduleItem& item : items) {
        for (const PipelineAction& action : item.actions) {
          if (action.kind == kind) return true;
        }
      }
    }
    return false;
  }

  // Bits of kinds, by stage and microbatch.
  uint32_t& Done(int stage, int microbatch) {
    return done_[static_cast<size_t>(stage) * schedule_.num_microbatches + microbatch];
  }
  static uint32_t Bit(Kind kind) { return 1u << static_cast<int>(kind); }
  bool Has(Kind kind, int stage, int microbatch) { return (Done(stage, microbatch) & Bit(kind)) != 0; }
  bool HasInputGradient(int stage, int microbatch) {
    return Has(Kind::kInputGradient, stage, microbatch) || Has(Kind::kBackward, stage, microbatch);
  }

  // Whether both stages exist and lie on different ranks.
  bool Crosses(int stage, int other) const {
    return other >= 0 && other < schedule_.num_stages() &&
           schedule_.stage_rank[stage] != schedule_.stage_rank[other];
  }

  std::string ItemDefect(int rank, const ScheduleItem& item) {
    if (item.actions.empty()) return "no action";
    for (const PipelineAction& action : item.actions) {
      std::string defect = PlaceDefect(rank, action);
      if (defect.empty() && item.overlapped() && !IsCompute(action.kind))
        defect = "only F, I, W and B overlap";
      if (defect.empty()) defect = InputDefect(action);
      if (!defect.empty()) return defect;
    }
    for (const PipelineAction& action : item.actions) {
      // Again, for what the pair's other part has done.
      const std::string defect = RepeatDefect(action);
      if (!defect.empty()) return defect;
      Apply(action);
    }
    return "";
  }

  std::string PlaceDefect(int rank, const PipelineAction& action) const {
    if (action.stage < 0 || action.stage >= schedule_.num_stages()) {
      return absl::StrCat("there are ", schedule_.num_stages(), " stages");
    }
    if (HasMicrobatch(action.kind) &&
        (action.microbatch < 0 || action.microbatch >= schedule_.num_microbatches)) {
      return absl::StrCat("there are ", schedule_.num_microbatches, " microbatches");
    }
    if (schedule_.stage_rank[action.stage] != rank) {
      return absl::StrCat("stage ", action.stage, " lies on rank ", schedule_.stage_rank[action.stage]);
    }
    return "";
  }

  std::string RepeatDefect(const PipelineAction& action) {
    if (!HasMicrobatch(action.kind)) return "";
    const int s = action.stage;
    const int i = action.microbatch;
    if (Has(action.kind, s, i)) return "stands in the list twice";
    const bool split = Has(Kind::kInputGradient, s, i) || Has(Kind::kWeightGradient, s, i);
    const bool mixed = (action.kind == Kind::kBackward && split) ||
                       ((action.kind == Kind::kInputGradient || action.kind == Kind::kWeightGradient) &&
                        Has(Kind::kBackward, s, i));
    return mixed ? "B is I and W in one: a microbatch has either" : "";
  }

  static std::string Lacks(Kind kind, int stage, int microbatch) {
    return absl::StrCat(PipelineAction{kind, stage, microbatch}.ToString(), " does not stand before it");
  }

  // What has to be there before the action begins.
  std::string InputDefect(const PipelineAction& action) {
    const int s = action.stage;
    const int i = action.microbatch;
    switch (action.kind) {
      case Kind::kForward:
        return ForwardDefect(s, i);
      case Kind::kInputGradient:
        return BackwardDefect(s, i);
      case Kind::kBackward: {
        const std::string defect = BackwardDefect(s, i);
        return defect.empty() ? GradientDefect(s, i) : defect;
      }
      case Kind::kWeightGradient:
        if (!Has(Kind::kInputGradient, s, i)) return Lacks(Kind::kInputGradient, s, i);
        return GradientDefect(s, i);
      case Kind::kSendForward:
        if (!Crosses(s, s + 1)) return "there is no other rank to send to";
        return Has(Kind::kForward, s, i) ? "" : Lacks(Kind::kForward, s, i);
      case Kind::kSendBackward:
        if (!Crosses(s, s - 1)) return "there is no other rank to send to";
        return HasInputGradient(s, i) ? "" : Lacks(Kind::kInputGradient, s, i);
      case Kind::kRecvForward:
        return Crosses(s, s - 1) ? "" : "there is no other rank to receive from";
      case Kind::kRecvBackward:
        return Crosses(s, s + 1) ? "" : "there is no other rank to receive from";
      case Kind::kWaitSendForward:
        return Has(Kind::kSendForward, s, i) ? "" : Lacks(Kind::kSendForward, s, i);
      case Kind::kWaitSendBackward:
        return Has(Kind::kSendBackward, s, i) ? "" : Lacks(Kind::kSendBackward, s, i);
      default:
        return StageDefect(action);
    }
  }

  std::string WholeDefect(int stage) const {
    return shards_ && !stages_[stage].whole ? absl::StrCat("no ", stage, "UNSHARD is in force") : "";
  }

  std::string ForwardDefect(int s, int i) {
    if (s > 0 && !Crosses(s, s - 1) && !Has(Kind::kForward, s - 1, i)) return Lacks(Kind::kForward, s - 1, i);
    if (lowered_ && Crosses(s, s - 1) && !Has(Kind::kRecvForward, s, i))
      return Lacks(Kind::kRecvForward, s, i);
    if (schedule_.versions == WeightVersions::kPrevious && stages_[s].updates < i / group_ - 1) {
      return absl::StrCat("reads weights behind ", i / group_ - 1, " updates of its stage, but ",
                          stages_[s].updates, " stand before it");
    }
    return WholeDefect(s);
  }

  std::string BackwardDefect(int s, int i) {
    if (!Has(Kind::kForward, s, i)) return Lacks(Kind::kForward, s, i);
    const bool last = s + 1 == schedule_.num_stages();
    if (!last && !Crosses(s, s + 1) && !HasInputGradient(s + 1, i))
      return Lacks(Kind::kInputGradient, s + 1, i);
    if (lowered_ && Crosses(s, s + 1) && !Has(Kind::kRecvBackward, s, i))
      return Lacks(Kind::kRecvBackward, s, i);
    return WholeDefect(s);
  }

  // Of what makes the gradients of parameters: they add up to those of the stage's next update.
  std::string GradientDefect(int s, int i) {
    if (updates_ && stages_[s].updates != i / group_) {
      return absl::StrCat("belongs to update ", i / group_, " of its stage, but ", stages_[s].updates,
                          " updates stand before it");
    }
    return "";
  }

  // How many gradients the stage's next update is made of.
  int GroupSize(int stage) const {
    return std::min(group_, schedule_.num_microbatches - stages_[stage].updates * group_);
  }

  std::string StageDefect(const PipelineAction& action) {
    StageState& stage = stages_[action.stage];
    switch (action.kind) {
      case Kind::kUnshard:
        return stage.whole ? "the stage is not sharded" : "";
      case Kind::kReshard:
        return stage.whole ? "" : "the stage is sharded";
      case Kind::kWaitReduceGrad:
        return stage.reducing ? "" : absl::StrCat("no ", action.stage, "REDUCE_GRAD stands before it");
      default: {
        const int expected = GroupSize(action.stage);
        if (expected <= 0 || stage.gradients < expected) {
          return absl::StrCat(stage.gradients, " gradients stand before it, expected ",
                              std::max(0, expected));
        }
        if (action.kind == Kind::kReduceGrad) return stage.reduced ? "the gradients are reduced already" : "";
        return reduces_ && !stage.reduced ? absl::StrCat("no ", action.stage, "REDUCE_GRAD stands before it")
                                          : "";
      }
    }
  }

  // Notes that the action has run.
  void Apply(const PipelineAction& action) {
    StageState& stage = stages_[action.stage];
    if (HasMicrobatch(action.kind)) Done(action.stage, action.microbatch) |= Bit(action.kind);
    switch (action.kind) {
      case Kind::kBackward:
      case Kind::kWeightGradient:
        ++stage.gradients;
        break;
      case Kind::kUnshard:
      case Kind::kReshard:
        stage.whole = action.kind == Kind::kUnshard;
        break;
      case Kind::kReduceGrad:
        stage.reduced = stage.reducing = true;
        break;
      case Kind::kWaitReduceGrad:
        stage.reducing = false;
        break;
      case Kind::kOpt:
        ++stage.updates;
        stage.gradients = 0;
        stage.reduced = false;
        break;
      default:
        break;
    }
  }

  static std::string Missing(Kind kind, int stage, int microbatch) {
    return absl::StrCat(PipelineAction{kind, stage, microbatch}.ToString(), " is missing");
  }

  // What is missing of a stage when all lists have ended.
  std::string EndDefect(int s) {
    for (int i = 0; i < schedule_.num_microbatches; ++i) {
      if (!Has(Kind::kForward, s, i)) return Missing(Kind::kForward, s, i);
      if (!HasInputGradient(s, i)) return absl::StrCat(Missing(Kind::kBackward, s, i), ", or I and W");
      if (!Has(Kind::kBackward, s, i) && !Has(Kind::kWeightGradient, s, i))
        return Missing(Kind::kWeightGradient, s, i);
      if (!lowered_) continue;
      for (const Kind kind : {Kind::kSendForward, Kind::kRecvBackward}) {
        if (Crosses(s, s + 1) && !Has(kind, s, i)) return Missing(kind, s, i);
      }
      for (const Kind kind : {Kind::kRecvForward, Kind::kSendBackward}) {
        if (Crosses(s, s - 1) && !Has(kind, s, i)) return Missing(kind, s, i);
      }
    }
    const StageState& stage = stages_[s];
    if (stage.whole) return absl::StrCat(s, "RESHARD is missing at the end");
    if ((updates_ || schedule_.versions != WeightVersions::kOne) && GroupSize(s) > 0) {
      return absl::StrCat(s, "OPT is missing: ", stage.gradients, " gradients are in no update");
    }
    if (reduces_ && !updates_ && !stage.reduced) return absl::StrCat(s, "REDUCE_GRAD is missing");
    return "";
  }

  const PipelineSchedule& schedule_;
  std::vector<StageState> stages_;
  std::vector<uint32_t> done_;
  const bool lowered_;
  const bool shards_;
  const bool reduces_;
  const bool updates_;
  const int group_;
};

}  // namespace

std::string ActionOrderDefect(const PipelineSchedule& schedule) { return Checker(schedule).Defect(); }

}  // namespace weft
