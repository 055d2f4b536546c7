// A pipeline schedule as a value: what each rank does, in order. No tensors, no communication.

#ifndef WEFT_PARALLEL_PIPELINE_SCHEDULE_H_
#define WEFT_PARALLEL_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// What an action does with its stage. The names are PyTorch's (torch.distributed.pipelining), but for kOpt.
enum class ActionKind : uint8_t {
  kForward,           // F
  kInputGradient,     // I: the gradient of the stage's input, which the stage before waits for
  kWeightGradient,    // W: the gradients of the stage's parameters; after I, whenever there is time
  kBackward,          // B: I and W in one
  kUnshard,           // UNSHARD: gathers the parameters of the stage's FSDP units
  kReshard,           // RESHARD: frees what UNSHARD has gathered
  kReduceGrad,        // REDUCE_GRAD: reduces the stage's gradients over its data-parallel replicas
  kOpt,               // OPT: updates the stage's parameters
  kSendForward,       // SEND_F: the output of F, to the rank of the next stage
  kRecvForward,       // RECV_F: the input of F, from the rank of the stage before
  kSendBackward,      // SEND_B: the gradient of the input, to the rank of the stage before
  kRecvBackward,      // RECV_B: the gradient of the output, from the rank of the next stage
  kWaitSendForward,   // WAIT_SEND_F: what SEND_F sent has left; PyTorch writes it, Weft's lowering does not
  kWaitSendBackward,  // WAIT_SEND_B
  kWaitReduceGrad,    // WAIT_REDUCE_GRAD: what REDUCE_GRAD began has ended
};

// "F", "SEND_F", ...
absl::string_view ActionKindName(ActionKind kind);

// F, I, W and B.
bool IsCompute(ActionKind kind);
// SEND_F, RECV_F, SEND_B and RECV_B.
bool IsTransfer(ActionKind kind);
// Whether actions of the kind are of one microbatch; the others (UNSHARD, RESHARD, REDUCE_GRAD, OPT) are of
// the stage.
bool HasMicrobatch(ActionKind kind);

// One action of one stage: "2F0", "3SEND_B1", "0UNSHARD". A plain value.
struct PipelineAction {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int microbatch = -1;  // -1 where the kind has none

  bool operator==(const PipelineAction&) const = default;
  // [stage][kind][microbatch], as PyTorch writes it.
  std::string ToString() const;
  // Reads what ToString writes. Nothing if `text` is no action.
  static std::optional<PipelineAction> Parse(absl::string_view text);
};

// What stands in one place of a rank's list: an action, or several that overlap: "2F0",
// "(0F3;3B1)OVERLAP_F_B".
struct ScheduleItem {
  absl::InlinedVector<PipelineAction, 2> actions;

  ScheduleItem() = default;
  ScheduleItem(const PipelineAction& action) : actions{action} {}
  // The parts in the order in which they run where nothing overlaps them.
  ScheduleItem(const PipelineAction& first, const PipelineAction& second) : actions{first, second} {}

  bool overlapped() const { return actions.size() > 1; }
  bool operator==(const ScheduleItem&) const = default;
  std::string ToString() const;
  // Reads what ToString writes, blanks free. Nothing if `text` is no item.
  static std::optional<ScheduleItem> Parse(absl::string_view text);
};

// Which of a stage's weights a microbatch reads in its F, and again in its I, W and B.
enum class WeightVersions : uint8_t {
  kOne,       // there is one: an update comes behind the last gradient of the step
  kNewest,    // the newest of the stage when F begins, stashed until its last gradient (PipeDream)
  kPrevious,  // a group of microbatches g reads what g-1 updates have made (PipeDream-2BW)
};

// What each rank of a pipeline does in one step, in order. A plain value; `==` compares all of it.
//
// The model is cut into `num_stages()` stages, in the order of forward. A rank holds the stages that
// `stage_rank` gives it: its chunks. Lists that hold computing alone ("compute-only") say nothing of
// communication; lowered ones hold each send and receive (`lowering.h`).
struct PipelineSchedule {
  std::string name = {};                              // of its generator, or of its file
  int num_microbatches = 0;                           // numbered from 0 within a step
  std::vector<int> stage_rank = {};                   // the rank of each stage
  std::vector<std::vector<ScheduleItem>> ranks = {};  // the list of each rank
  WeightVersions versions = WeightVersions::kOne;
  int microbatches_per_update = 0;  // what lies between two OPT of a stage; 0: all of them

  int num_ranks() const { return static_cast<int>(ranks.size()); }
  int num_stages() const { return static_cast<int>(stage_rank.size()); }
  // The most stages that a rank holds.
  int num_chunks() const;
  // The stages of a rank, ascending.
  std::vector<int> StagesOf(int rank) const;
  // Whether any list holds an action of this kind.
  bool Contains(ActionKind kind) const;
  // Whether any list holds a send or a receive.
  bool lowered() const;

  bool operator==(const PipelineSchedule&) const = default;
  // One line per rank: "rank 0: 0F0,0F1,0B0".
  std::string ToString() const;
};

// Stage c * ranks + r is rank r's chunk c.
std::vector<int> LoopPlacement(int ranks, int chunks);
// Two chunks per rank: rank r holds stages r and 2 * ranks - 1 - r, so that the last rank's are neighbours.
std::vector<int> VPlacement(int ranks);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_SCHEDULE_H_
