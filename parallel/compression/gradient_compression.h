// The gradients of a model that are summed over ranks by a method, and what the methods keep of them.

#ifndef WEFT_PARALLEL_COMPRESSION_GRADIENT_COMPRESSION_H_
#define WEFT_PARALLEL_COMPRESSION_GRADIENT_COMPRESSION_H_

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/context/lane.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "dtensor/redistribution/pending_moves.h"
#include "mesh/layout.h"
#include "parallel/compression/compressor.h"
#include "parallel/compression/device_gradients.h"
#include "parallel/compression/sum_levels.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Of a leaf, a gradient that has arrived.
struct ArrivedGradient {
  int leaf = 0;
  DTensor gradient;
};

// Sums gradients that arrive as sums still to be made over the axes of their methods: those of one method, group and
// dtype in one bucket of the method's. What other axes lack is redistributed before. All arithmetic is in f64 or f32:
// gradients in narrower dtypes are cast. Which sums there are, SumLevel says.
//
// What the methods keep lies per rank of all that has not been summed yet, and where the parameter is split otherwise,
// split as it is: of the first sum a rank's whole gradient, of the second its box.
//
// Methods run on the host. Where the rank's tensors lie on a GPU, gradients are copied to the host's memory beside it, where
// all that is kept lies, too, and sums are copied back; both run beside what the GPU computes. Groups are then those of
// the host (MeshContext::HostSide), and the bits those of ranks on CPUs.
// Threads: the rank's thread; every rank calls it alike.
class GradientCompression {
 public:
  // Of leaves by number, some of which have a method. Null, if none has one with anything to do.
  // Errors: InvalidArgument, if the rank's tensors lie neither on a CPU nor on a GPU; as MakeHostAllocator.
  static std::unique_ptr<GradientCompression> Make(MeshContext& context, std::vector<CompressedLeaf> leaves);

  // Of the ranks that sum, where they do: of a model in parts or stages, those that have these leaves.
  MeshContext& context() const { return *host_; }

  // Whether a gradient that arrives so is one for Reduce.
  bool Takes(int leaf, const Layout& arriving) const;

  // The sums, in the layouts at rest, by number; pending unless the lanes are kInline. `replica_lane`: of what replicas sum.
  // Memory of gradients that nobody else holds is used. Purpose, module path and kind of memory are those of the moment.
  std::vector<DTensor> Reduce(std::vector<ArrivedGradient> gradients, Lane lane, Lane replica_lane);

  // What the first sums of the last Reduce wait for, replicas' sums apart: whole gradients are there until then. On a GPU
  // these are gone when they have been copied, so that is what is waited for. Null, if they did not run on a lane.
  const IntrusivePtr<PendingMoves>& first_sums() const { return first_sums_; }

  // Between these, gradients arrive times `scale` and leave so, but are encoded without it: what is kept is in the
  // gradient's own units, whatever the scale. A step that is not applied, or that another one begins before the end of,
  // leaves what was kept before it, also where its sums failed; the count of rounds goes on.
  // Cost:   a copy of what is kept, in memory of its own; waits for sums that are under way.
  // Errors: of BeginScaledStep: InvalidArgument for a scale that is not above 0 and finite; those of sums that were under way
  //         outside of a scaled step.
  void BeginScaledStep(double scale);
  void EndScaledStep(bool applied);

  // A pass has ended: if it has summed anything, the next one is another round; with `counts` in any case, as for what
  // other ranks have other gradients beside, and one count.
  void EndPass(bool counts = false);

  // How many passes have been rounds. Random bits go by it, and start steps. Where each microbatch's gradients are summed
  // (they rest split), each is a round.
  uint64_t round() const { return round_; }
  void set_round(uint64_t round) { round_ = round; }

  using StateEntry = CompressionState;
  // What is kept; nothing is under way in it. Within a scaled step, of which nobody knows yet whether it is applied, what was
  // kept before it.
  // Errors: those of sums that were under way, once.
  std::vector<StateEntry> State();
  // What is kept, to be written over: a scaled step ends, not applied. What becomes of sums that are under way is all the
  // same.
  std::vector<StateEntry> StateToLoad();

 private:
  GradientCompression(MeshContext& context, std::vector<CompressedLeaf> leaves);

  struct Leaf {
    CompressedLeaf spec;
    DType dtype = DType::kF32;
    std::vector<SumLevel> levels = {};                // none: it compresses nothing
    std::vector<const Compressor*> compressors = {};  // of each
    std::vector<std::vector<StateEntry>> state = {};  // of each
  };
  // Gradients of one bucket of a method's, by leaf.
  using Arrived = std::vector<ArrivedGradient>;

  bool IsOnHost(const DTensor& gradient) const {
    return !device_gradients_ || gradient.context()->is_host_side();
  }
  const Compressor* CompressorOf(const CommunicationMethod& method);
  std::vector<DTensor> ReduceLevel(Arrived gradients, int level, Lane lane);
  std::vector<DTensor> ReduceBucket(Arrived gradients, int level, Lane lane);
  DTensor Prepare(const Leaf& leaf, const SumLevel& level, DTensor gradient, Lane lane) const;
  GradientPart MakePart(const Leaf& leaf, int level, double factor, const DTensor& prepared,
                        GradientBucket& bucket);
  std::vector<Tensor> NewPlaces(const Arrived& gradients) const;
  uint32_t SubjectOf(const Arrived& gradients) const;
  std::exception_ptr AwaitSums();
  std::vector<StateEntry> Entries() const;

  MeshContext& context_;                             // where gradients arrive and rest
  IntrusivePtr<MeshContext> host_;                   // where they are summed: the same on a CPU
  std::optional<DeviceGradients> device_gradients_;  // not on a CPU
  std::map<std::string, std::unique_ptr<const Compressor>> compressors_;  // by the method's text
  std::vector<Leaf> leaves_;
  uint64_t round_ = 0;
  bool is_used_ = false;                               // in this pass
  std::vector<IntrusivePtr<PendingMoves>> under_way_;  // of the last pass that summed anything
  IntrusivePtr<PendingMoves> first_sums_;
  double scale_ = 1;                 // of the gradients that arrive
  bool is_scaled_ = false;           // within a scaled step
  std::vector<Tensor> before_step_;  // what was kept before it, by State()
};

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_GRADIENT_COMPRESSION_H_
