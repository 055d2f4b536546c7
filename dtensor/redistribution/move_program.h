#ifndef WEFT_DTENSOR_REDISTRIBUTION_MOVE_PROGRAM_H_
#define WEFT_DTENSOR_REDISTRIBUTION_MOVE_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/context/lane.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/redistribution/prepared_step.h"
#include "mesh/redistribution/lowering.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/worker.h"
#include "runtime/device/device_queue.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// This rank's part in many redistributions at once. Its constructor allocates every buffer and takes down the
// tag, on the rank's thread. A worker may run it. The steps go in rounds; the first round has the first step of
// every move. In one round, all-gathers, reduce-scatters and all-reduces over the same axes, by the same op and
// in the same dtype, are one call of the communicator. Ranks that make it of the same moves run the same
// collectives in the same order.
//
// Lifetime: owns references to all that it touches.
class MoveProgram {
 public:
  struct Move {
    Tensor local;                                          // its elements need not be there before Run
    std::shared_ptr<const LoweredRedistribution> lowered;  // null: it stays where it is
    Tensor into = {};      // where the result is to lie, contiguous; undefined: anywhere
    uint32_t subject = 0;  // as EachMove's
  };

  // Cost: allocations, and the lane's communicators where they are not made yet.
  MoveProgram(MeshContext& context, Lane lane, std::vector<Move> moves);

  // Each move's piece, by move: memory and shape now, its elements once Run has returned. To be taken once.
  std::vector<Tensor> TakeResults() { return std::move(results_); }

  // Runs `program` to its end, here.
  // Errors: those of the collectives.
  static void Run(const MoveProgram& program);

  // Issues all of it to `worker`, which runs it in order; collectives are numbered and counted now. Returns what
  // to wait for, in order: the first error is the cause of the others.
  static std::vector<Work> Issue(std::shared_ptr<const MoveProgram> program, Worker& worker);

  // The same where the tensors lie on a device that has queues and threads of the host run the collectives (runs_on_host):
  // local work is in the rank's own order, and `worker` runs the last collective beside what that is given from now on. For
  // the others, whose results the next one takes, the host waits here. Returns what to wait for: whoever does on the rank's
  // thread finds it unpacked. Sources are there.
  static Work IssueFromHost(std::shared_ptr<const MoveProgram> program, Worker& worker);

  // Issues all of it to a lane's queue of the device, which runs its collectives, behind `before`, which fills sources that are
  // under way. It owns the program until it has run. Returns what to wait for: whoever waits for it on the rank's thread makes the rank's
  // own stream wait, or, in the scope of another queue, that queue.
  // `follows_rank`: as in QueueScope.
  static Work IssueToQueue(std::shared_ptr<const MoveProgram> program, DeviceQueue& queue, bool follows_rank,
                           absl::Span<const Work> before);

  // Whether there is anything to do for the ranks together; what is left is work on this rank's memory.
  bool communicates() const;

  // Whether threads of the host run a collective of it.
  bool runs_on_host() const;

 private:
  struct Stage {
    const LoweredStep* step = nullptr;  // of the first part; null: work on this rank's memory alone
    std::shared_ptr<Communicator> group;
    LocalWorks before;
    LocalWorks after;
    std::vector<CollectivePart> parts;    // of a kind that merges
    std::unique_ptr<PreparedStep> alone;  // of another
    uint32_t subject = 0;                 // of all moves that have one
  };
  struct Progress;
  // Of the constructor, in which the moves' next steps are prepared.
  struct Round {
    size_t begin = 0;       // its first stage
    size_t most_parts = 0;  // of a stage that begins now
  };

  Stage& StageFor(const LoweredStep& step, DType dtype, const Round& round);
  void Advance(const Move& move, Progress& progress, const Round& round);
  void Finish(const Move& move, Progress& progress, LocalWorks* works);
  Work IssueCollective(const Stage& stage, bool async, Worker* worker) const;

  MeshContext& context_;
  const Lane lane_;
  const CommTag tag_;
  Tracer* const tracer_;
  const int rank_;
  std::vector<std::shared_ptr<const LoweredRedistribution>> lowered_;  // what the stages' steps lie in
  std::vector<Stage> stages_;
  std::vector<Tensor> results_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_MOVE_PROGRAM_H_
