// The gradients of a model that are summed over ranks by a method, and what the methods keep of them.

#ifndef WEFT_PARALLEL_COMPRESSION_GRADIENT_COMPRESSION_H_
#define WEFT_PARALLEL_COMPRESSION_GRADIENT_COMPRESSION_H_

#include <cstdint>
#include <map>
#include <memory>
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
#include "parallel/compression/parameter_communication.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// A parameter as its gradients are compressed.
struct CompressedLeaf {
  std::string path;
  TensorType type;  // of the gradient at rest
  Layout layout;    // there; whole along the axes
  ParameterCommunication communication;
};

// Of a leaf, a gradient that has arrived.
struct ArrivedGradient {
  int leaf = 0;
  DTensor gradient;
};

// Sums gradients that arrive as sums still to be made over the axes of their methods: those of one method, group and
// dtype in one bucket of the method's. What other axes lack is redistributed before. All arithmetic is in f64 or f32:
// gradients in narrower dtypes are cast.
//
// What the methods keep lies per rank of the group, and where the parameter is split, split as it is.
// Threads: the rank's thread; every rank calls it alike.
class GradientCompression {
 public:
  // Of leaves by number, some of which have a method. Null, if none has one with anything to do.
  // Errors: InvalidArgument, if the rank's tensors do not lie on a CPU.
  static std::unique_ptr<GradientCompression> Make(MeshContext& context, std::vector<CompressedLeaf> leaves);

  // Whether a gradient that arrives so is one for Reduce.
  bool Takes(int leaf, const Layout& arriving) const;

  // The sums, in the layouts at rest, by number; pending unless `lane` is kInline. Memory of gradients that nobody else
  // holds is used. Purpose, module path and kind of memory are those of the moment.
  std::vector<DTensor> Reduce(std::vector<ArrivedGradient> gradients, Lane lane);

  // A pass has ended: the next one is another round.
  void EndPass();

  // How many passes have summed anything. Random bits go by it, and start steps.
  uint64_t round() const { return round_; }
  void set_round(uint64_t round) { round_ = round; }

  // A tensor that is kept.
  struct StateEntry {
    std::string name;  // "communication.PATH.residual"
    // Per rank: [ranks of the group, shape of the parameter], dim 0 split over the axes. Shared: [parts that the
    // parameter is split into, elements], dim 0 split as the parameter is.
    DTensor tensor;
    bool is_shared = false;
  };
  // Shares memory with what is kept; nothing is under way in it.
  std::vector<StateEntry> State();

 private:
  GradientCompression(MeshContext& context, std::vector<CompressedLeaf> leaves);

  struct Leaf {
    CompressedLeaf spec;
    const Compressor* compressor = nullptr;  // null: it compresses nothing
    DType dtype = DType::kF32;
    std::vector<StateEntry> state = {};
  };

  void AddState(Leaf& leaf);
  DTensor MakeState(const Leaf& leaf, const CompressorState& state, int64_t num_elements) const;
  DTensor Prepare(const Leaf& leaf, DTensor gradient, Lane lane) const;
  GradientPart MakePart(const Leaf& leaf, const Layout& arriving, DTensor prepared,
                        GradientBucket& bucket) const;
  std::vector<DTensor> ReduceBucket(std::vector<ArrivedGradient> gradients, Lane lane);

  MeshContext& context_;
  std::map<std::string, std::unique_ptr<const Compressor>> compressors_;  // by the method's text
  std::vector<Leaf> leaves_;
  uint64_t round_ = 0;
  bool is_used_ = false;                               // in this pass
  std::vector<IntrusivePtr<PendingMoves>> under_way_;  // of the last pass that summed anything
};

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_GRADIENT_COMPRESSION_H_
