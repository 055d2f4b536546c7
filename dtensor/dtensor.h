#ifndef WEFT_DTENSOR_DTENSOR_H_
#define WEFT_DTENSOR_DTENSOR_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/context/resolved_call.h"
#include "dtensor/redistribution/pending_moves.h"
#include "mesh/layout.h"
#include "mesh/shard_math.h"
#include "runtime/base/intrusive_ptr.h"
#include "runtime/tensor/tensor.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

class CopySource;
class DTensor;
struct CopyOrigin;
struct DTensorImpl;
class TapeNode;

// How an explicit Redistribute behaves in backward. By default the gradient goes to the source's layout along
// axes where the source is Shard or Replicate, and stays as it arrives along axes where the source is
// Partial.
struct RedistributeOptions {
  // Axes along which the gradient's placement is fixed instead.
  std::vector<std::pair<int, Placement>> gradient;
};

// What FromLocal may do besides taking this rank's word.
struct FromLocalOptions {
  // Compare the pieces of ranks that the layout says hold the same, bit by bit.
  // Cost:   an all-gather of 8 bytes per rank.
  // Errors: InvalidArgument on every rank, naming those that differ.
  bool check_replicas = false;
  // Make it a leaf, whose gradient arrives and rests in this layout: RequiresGrad(*gradient).
  std::optional<Layout> gradient = std::nullopt;
};

// One global value, laid over a mesh: what users and modules compute with. On a mesh of no axes it is an
// ordinary tensor.
//
// An immutable handle: copies share the value, and no operation changes a tensor that somebody holds
// (parameters are changed through their slot, see dtensor/nn/parameter.h). Undefined when
// default-constructed. All ranks of the mesh call the same operations in the same order.
class DTensor {
 public:
  DTensor() = default;
  explicit DTensor(IntrusivePtr<DTensorImpl> impl);

  // From this rank's piece, uncommunicated: the piece that `layout` gives this rank of a tensor of
  // `global_shape`.
  // Errors: InvalidArgument if `local`'s shape is not that piece's, or `local` does not lie on this rank's
  //         device, which is that of context->allocator(); as CheckPartials (mesh/shard_math.h).
  static DTensor FromLocal(const IntrusivePtr<MeshContext>& context, const Tensor& local,
                           const Layout& layout, const Shape& global_shape,
                           const FromLocalOptions& options = {});
  // From this rank's piece alone, where no rank knows the global shape: the ranks exchange their sizes, which
  // may be uneven but have to be those of the chunk rule.
  // Cost:   an all-gather of 80 bytes per rank.
  // Errors: InvalidArgument on every rank, naming the ranks whose piece is not what the rule gives them, and
  //         what it gives; before anything is exchanged, if `local` does not lie on this rank's device; as CheckPartials.
  static DTensor FromLocal(const IntrusivePtr<MeshContext>& context, const Tensor& local,
                           const Layout& layout);

  // From the whole value, which every rank passes alike; each keeps its piece. Absent on a rank outside of the mesh.
  // Layout: without Partial.
  // Errors: InvalidArgument for a Partial layout.
  static DTensor Distribute(const IntrusivePtr<MeshContext>& context, const Tensor& full,
                            const Layout& layout);

  // What a tensor on a mesh is to ranks that are not in it (MeshContext::is_member): a handle that says where the value
  // lies and holds nothing of it, neither its elements nor its type. It is passed on to whatever brings the value here
  // (BringTo, dtensor/mesh_transfer.h): modules on other ranks do. No operation takes it.
  // Errors: InvalidArgument on a rank of the mesh.
  static DTensor Absent(const IntrusivePtr<MeshContext>& context);
  bool is_absent() const { return defined() && !context()->is_member(); }

  bool defined() const { return static_cast<bool>(impl_); }
  const IntrusivePtr<MeshContext>& context() const;
  // These, and what they say of the value, are not known of an absent one.
  // Errors: FailedPrecondition.
  const Layout& layout() const;
  const TensorType& type() const;
  const Shape& shape() const { return type().shape; }  // global
  DType dtype() const { return type().dtype; }
  int ndim() const { return type().ndim(); }

  // This rank's piece; shares memory. Of a Partial tensor: this rank's term.
  //
  // Gradients end here: what is computed from the piece is not on the tape. To bring them back, state how
  // they lie: CallLocal (dtensor/autograd/local_function.h) for a function of pieces within a graph; or,
  // where the graph ends here, Backward(x, /*seed=*/FromLocal(context, gradient, its layout, x.shape())), in
  // any layout.
  const Tensor& ToLocal() const;
  // Where the piece lies in the whole.
  ShardBox LocalBox() const;

  // The same value under another layout.
  // Cost:   PlanRedistribution's steps.
  // Errors: as PlanRedistribution.
  DTensor Redistribute(const Layout& layout, const RedistributeOptions& options = {}) const;
  // The same, replicated everywhere, as a local tensor.
  Tensor FullTensor() const;
  // The only element, as a number, on every rank.
  // Errors: InvalidArgument if there is not exactly one.
  double Item() const;

  // The same value with no history: gradients stop here.
  DTensor Detach() const;
  // The same value as a leaf, whose gradient Backward leaves in grad().
  DTensor RequiresGrad() const;
  // The same, the gradient arriving and resting in a layout of its own. Any layout but Partial kinds that are
  // no sums; a Partial gradient is not reduced until somebody does.
  DTensor RequiresGrad(const Layout& gradient) const;
  bool requires_grad() const;
  // A leaf's gradient, or undefined.
  DTensor grad() const;

  // "f32[2048, 256] [dp, tp]"; "absent, on mesh (dp=2)".
  std::string ToString() const;

  const IntrusivePtr<DTensorImpl>& impl() const { return impl_; }

 private:
  IntrusivePtr<DTensorImpl> impl_;
};

// Of memory: how often it was written in place, by which op last, and what still uses it. Values that lie in it share the log.
struct WriteLog : RefCounted<WriteLog> {
  int64_t version = 0;
  const char* last_writer = "";
  IntrusivePtr<PendingMoves> pending;  // null: nothing
};

// What a DTensor handle shares. Written once, when it is made. What it does with its history is defined in
// dtensor/tape/history.cc.
struct DTensorImpl : RefCounted<DTensorImpl> {
  // `pending`: what is to fill `piece`, if anything.
  DTensorImpl(const IntrusivePtr<MeshContext>& context, const Layout& layout, const TensorType& type,
              Tensor piece, IntrusivePtr<PendingMoves> pending = nullptr);
  ~DTensorImpl();

  IntrusivePtr<MeshContext> context;
  Layout layout;
  TensorType type;

  // This rank's piece. Waits for what is pending, of this value or of another with its log.
  // Errors: those of the collectives that were to fill it.
  const Tensor& Local() const {
    if (is_pending()) [[unlikely]]
      Settle();
    return piece_;
  }
  // The same, not waiting: memory, type and shape, whose elements may not be there yet.
  const Tensor& piece() const { return piece_; }
  bool is_pending() const { return pending_ || (writes && writes->pending); }
  const IntrusivePtr<PendingMoves>& pending() const {
    return pending_ || !writes ? pending_ : writes->pending;
  }
  // `pending` is about to write elements of this rank's piece in place, or still reads them. Values that share its log
  // wait. It comes behind what was pending before.
  void SetPending(IntrusivePtr<PendingMoves> pending) {
    (writes ? writes->pending : pending_) = std::move(pending);
  }
  // For kernels that say themselves where their output lies.
  Tensor& mutable_piece() { return piece_; }

  // History: output `output` of `node`; null where no gradient is wanted.
  IntrusivePtr<TapeNode> node;
  int output = 0;

  // In-place writes so far, and who wrote last: a tape that saved an older version refuses to read the newer
  // one. Views share the log of what they view, if it has one: leaves and parameters do.
  void MarkWritten(const char* op_name) {
    if (!writes) SetWrites(MakeIntrusive<WriteLog>());
    ++writes->version;
    writes->last_writer = op_name;
  }
  int64_t version() const { return writes ? writes->version : 0; }
  // For a value that may be a view of `source`.
  void ShareWrites(const DTensorImpl& source) {
    if (source.writes && piece_.buffer() == source.piece_.buffer()) SetWrites(source.writes);
  }
  // Takes the log of its memory, and notes there what is pending.
  void SetWrites(IntrusivePtr<WriteLog> log) {
    writes = std::move(log);
    if (pending_) writes->pending = std::move(pending_);
  }
  IntrusivePtr<WriteLog> writes;

  // The same value under another layout, with no history.
  // Cost:   PlanRedistribution's steps.
  DTensor Moved(const Layout& to) const;

  // Set on a parameter's redistributed copy. The tape saves its origin instead of the copy and redistributes
  // again when backward reads it, if no write has come between.
  IntrusivePtr<const CopyOrigin> origin;
  // For a value that is `source` moved: where that is a parameter's copy, so is this.
  void ShareOrigin(const DTensorImpl& source);
  // For output `view_output` of `op`, which made it of `source`, a parameter's copy: a view of it, or is_remade.
  void SetViewOrigin(const DTensorImpl& source, const OpDef& op, const ResolvedCall& call,
                     const void* scalars, int view_output);
  // The version of the parameter whose elements a copy has. A copy in the parameter's own memory follows it.
  int64_t copied_version() const;

 private:
  void Settle() const;

  Tensor piece_;
  mutable IntrusivePtr<PendingMoves> pending_;  // of a value without a log
};

// What a parameter's copy was made of, so that it can be made again: the value at rest, its version then, and
// who makes copies. A view or cast of a copy has an origin too, of the tensor that it is made of and the call that it is, so
// that the tape keeps no copy whole for the sake of its view, and no cast.
struct CopyOrigin : RefCounted<CopyOrigin> {
  IntrusivePtr<DTensorImpl> at_rest;
  int64_t version = 0;
  std::shared_ptr<CopySource> source = nullptr;  // null: made anew each time
  int copy = 0;                                  // the source's number for it

  // Of a view or cast: the copy, or view or cast of one, that it is made of, how that lay, the call, and which of its outputs
  // it is.
  struct View {
    IntrusivePtr<const CopyOrigin> viewed;
    DType dtype = DType::kF32;
    Layout layout = {};
    const OpDef* op = nullptr;
    IntrusivePtr<const ResolvedCall> call;
    std::shared_ptr<const void> scalars = nullptr;  // of the call; null: it has none
    int output = 0;
  };
  std::optional<View> view = std::nullopt;
};

// A DTensor borrowed for the length of a call, so that passing it on counts no owners: what dispatch takes.
// Undefined where the tensor is.
// Lifetime: some owner must outlive it.
class DTensorRef {
 public:
  DTensorRef() = default;
  DTensorRef(const DTensor& tensor) : impl_(tensor.impl().get()) {}  // NOLINT: implicit, as arguments are
  explicit DTensorRef(DTensorImpl* impl) : impl_(impl) {}

  bool defined() const { return impl_ != nullptr; }
  DTensorImpl* impl() const { return impl_; }
  DTensorImpl* operator->() const { return impl_; }
  bool requires_grad() const { return impl_ != nullptr && impl_->node; }
  // An owner.
  DTensor Share() const { return DTensor(IntrusivePtr<DTensorImpl>(impl_)); }

 private:
  DTensorImpl* impl_ = nullptr;
};
using DTensorRefs = absl::InlinedVector<DTensorRef, 8>;
using DTensors = absl::InlinedVector<DTensor, 4>;

// Each of `tensors`, borrowed.
inline DTensorRefs Borrow(absl::Span<const DTensor> tensors) {
  return DTensorRefs(tensors.begin(), tensors.end());
}

}  // namespace weft

#endif  // WEFT_DTENSOR_DTENSOR_H_
