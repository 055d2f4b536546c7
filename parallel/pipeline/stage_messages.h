// What goes between the stages of a pipeline while it runs.

#ifndef WEFT_PARALLEL_PIPELINE_STAGE_MESSAGES_H_
#define WEFT_PARALLEL_PIPELINE_STAGE_MESSAGES_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/model_stages.h"
#include "dtensor/nn/module.h"
#include "mesh/layout.h"
#include "runtime/base/dtype.h"
#include "runtime/comm/edges.h"
#include "runtime/comm/work.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// One of the tensors that a stage hands to the next.
struct HandedTensor {
  TensorType type = {};
  Layout layout = {};  // on the stages' slices, whose other axes are the same
  bool wants_gradient = false;
  bool is_undefined = false;  // there is none, and nothing else is said of it

  bool operator==(const HandedTensor&) const = default;
};

// What a stage hands to the next, of one kind of microbatch.
using HandedTensors = std::vector<HandedTensor>;

// Tensors on their way here.
struct Arrival {
  // On the receiving stage's slice; to be read once all works have been waited for. What was handed on undefined is so.
  DTensors tensors = {};
  std::vector<bool> wants_gradient = {};  // of each tensor
  std::vector<Work> works = {};

  void Wait();
};

// The messages between the stages of this rank and those of others: each rank sends its own piece to the rank of the
// next stage that has the same coordinates otherwise, since layouts of both stages' slices are the same. There is a
// queue for each directed edge and each of the two directions of the model; so nothing waits for what goes another way.
// All are asynchronous, and what is sent stays in memory until it has been received. The host may be far ahead of a device,
// which alone knows when that is: so no more is under way than the model has stages, of one edge and direction. Behind that
// the rank waits for the oldest, on a GPU its stream. No list that the checker passes stands still for it: there each send might
// wait for its receive (deadlock.h).
//
// What a stage hands on is told by it, once for each kind of microbatch: a message of some words ahead of the first.
//
// Threads: the rank's. Every rank of the model makes one alike.
class StageMessages {
 public:
  // Makes the queues.
  // `tells_always`: ahead of every message, and not of the first of each kind alone; so that every transfer is as many messages.
  StageMessages(const ModelStages& stages, const IntrusivePtr<MeshContext>& part, bool tells_always = false);

  // The outputs of `stage`, which lie as `handed` says, to the rank of the next. `kind`: names what all microbatches with such outputs have in
  // common, on both ends alike.
  // Errors: FailedPrecondition that names the stage, where microbatches of the kind had other outputs before.
  void SendForward(int stage, const std::string& kind, const HandedTensors& handed,
                   absl::Span<const DTensor> outputs);
  // What `stage` takes, from the rank of the one before.
  Arrival RecvForward(int stage, const std::string& kind);
  // The gradients of the inputs of `stage` that want one, to the rank of the one before.
  void SendBackward(int stage, absl::Span<const DTensor> gradients);
  // Of the outputs of `stage`, those of `handed` that want one, from the rank of the next.
  Arrival RecvBackward(int stage, const HandedTensors& handed);

  // The last stage's `outputs` on every stage's slice; given there alone.
  // Cost: a broadcast of each along the pipeline's axis, and of some words.
  DTensors SpreadOutputs(const DTensors& outputs);

  // Waits until all that has been sent has left.
  void Finish();

 private:
  enum Tag { kForward, kBackward };

  int PlaceOf(int stage) const { return stages_.stage_ranks[stage]; }
  Work Send(int to, Tag tag, const DTensor& tensor);
  Arrival Recv(int from, Tag tag, const HandedTensors& handed);
  Work Tell(int to, const HandedTensors& handed);
  // What one call has sent. Waits for the oldest where too much is under way.
  void Keep(int to, Tag tag, std::vector<Work> works);
  HandedTensors Hear(int from);

  ModelStages stages_;
  const IntrusivePtr<MeshContext> part_;
  const bool tells_always_;
  std::unique_ptr<Edges> edges_;  // null: one rank has all stages
  // By the stage that hands on, and the kind.
  std::map<std::pair<int, std::string>, HandedTensors> told_, heard_;
  // By whom to and what; of each call, the oldest first.
  std::map<std::pair<int, Tag>, std::deque<std::vector<Work>>> sent_;
};

// What microbatches have in common whose stages hand on the same: how their inputs lie, which of them want a gradient, and
// whether a history is recorded.
std::string KindOf(absl::Span<const DTensor> inputs, bool records);

// And in what products are computed (an AutocastGuard): "" if as they are.
std::string ProductText(const std::optional<DType>& autocast);

// And which parameters are not trained: "" if all are.
std::string FrozenText(Module& model);

// Outputs as they are handed on: none of them is Partial, and where no history is recorded, none has one.
// Cost: an all-reduce of each that is.
DTensors ToHand(absl::Span<const DTensor> outputs);
HandedTensors DescribeHanded(absl::Span<const DTensor> outputs);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_STAGE_MESSAGES_H_
