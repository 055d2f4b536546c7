#ifndef WEFT_DTENSOR_NN_PARAMETER_H_
#define WEFT_DTENSOR_NN_PARAMETER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "dtensor/context/hook_list.h"
#include "dtensor/context/lane.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/initializer.h"
#include "dtensor/tape/copy_source.h"
#include "dtensor/tape/leaf_node.h"
#include "mesh/layout.h"
#include "runtime/tensor/shape.h"

namespace weft {

class Module;

// The dims of a parameter that tensor-parallel styles may split; -1 where the style leaves it whole. A module
// declares them, since only it knows what its dims mean: qkv [d, 3, h, e] has column 2 (heads) and row 0.
struct ShardDims {
  int column = -1;          // ColumnParallel: an output feature
  int row = -1;             // RowParallel: an input feature, summed over
  int vocabulary = -1;      // VocabParallel
  bool even_split = false;  // these dims count whole things (heads): an axis must divide them

  bool operator==(const ShardDims&) const = default;
};

// Everything about a parameter that is known before it has elements.
struct ParameterSpec {
  Shape shape;
  Initializer initializer = {};
  ShardDims shard_dims = {};
  bool decays = true;  // an optimizer's weight decay shrinks it; modules say false of biases and norms
  // What initializers scale by; not given: a weight [in, out]'s extents.
  std::optional<Fans> fans = std::nullopt;

  bool operator==(const ParameterSpec&) const = default;
};

// Where a parameter lies over time: the four columns of the table that makes one mechanism of data parallelism,
// ZeRO and FSDP (docs/data_parallel.md).
// Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
struct ParameterLayouts {
  Layout at_rest;                                 // between steps
  Layout compute;                                 // inside forward and backward
  std::optional<Layout> gradient = std::nullopt;  // at rest; as the parameter if not given
  std::optional<Layout> state = std::nullopt;     // of the optimizer's; as the parameter if not given
  // Gradients of microbatches add up on each rank, unreduced, until the last (NoSync).
  bool accumulates_unreduced = false;

  const Layout& of_gradient() const { return gradient ? *gradient : at_rest; }
  const Layout& of_state() const { return state ? *state : at_rest; }

  bool operator==(const ParameterLayouts&) const = default;
};

// Which of a parameter lies in the ranks' second memory (World::host_allocator) between its uses, so that the device has
// room: the update is then made there, by the CPU.
struct ParameterMemory {
  bool state_on_host = false;  // the optimizer's state, and the gradient at rest
  bool value_on_host = false;  // the value at rest; implies the other

  bool operator==(const ParameterMemory&) const = default;
};

// A named slot for a trained tensor. Registered by its module's constructor as a spec; Materialize or
// Parallelize gives it layouts and elements (this rank's piece only). Does not move.
//
// The slot's value is changed in place by optimizer ops alone; a tape that saved the older version then says
// so.
//
// Lifetime: one that ends before its module is no longer listed there, and its name is free: `layer.bias.reset()`. Not while
//           an optimizer has it, or another slot is tied to it.
class Parameter {
 public:
  // Registers with `owner`.
  // Errors: InvalidArgument for a name the owner already has.
  Parameter(Module* owner, std::string name, ParameterSpec spec);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  std::string path() const;       // "blocks.0.attn.qkv.weight"
  std::string full_path() const;  // behind the root's name (Module::set_name)
  Module& root() const;           // of the model that it belongs to
  const ParameterSpec& spec() const { return spec_; }
  bool materialized() const {
    return tied_to_ != nullptr ? tied_to_->materialized() : placed_.at_rest.defined();
  }

  // Makes this slot another name of `to`, of the same model: Value() is that parameter's, its dims in reverse with
  // `transposed` (a head's weight [d, v] that is an embedding's table [v, d]). There is one parameter, which `to` is: it is
  // listed, placed by plans, initialised, counted, updated and saved once, under its own path; this path means nothing.
  // Gradients of both uses are one. Under a pipeline every stage that reads either has it. Other names of this slot become
  // names of `to`. For a model's constructor, or before it has values.
  // Errors: InvalidArgument naming both, where shapes do not fit, or `to` is tied itself, this one, or of another model;
  //         FailedPrecondition if the model has values.
  void TieTo(Parameter& to, bool transposed = false);
  // The parameter that this is another name of; null: it is its own.
  Parameter* tied_to() const { return tied_to_; }

  // Whether this rank has a part of it: false for what belongs to another stage of a pipeline, or another part of a
  // model, which stays a spec.
  bool is_here() const { return tied_to_ != nullptr ? tied_to_->is_here() : placed_.spread.is_here; }
  // The ranks that the model is spread over, where those of this parameter's layouts are but some of them (a stage, a
  // part); null where they are all.
  const IntrusivePtr<MeshContext>& model_context() const { return placed_.spread.model_context; }
  // Whether what is added up over the whole model counts the parameter on these ranks: of one that several stages
  // have, on the first.
  bool counts_here() const { return placed_.spread.counts_here; }
  // With a model_context(): the axis along which ranks have different parameters, and whether this rank is the one of
  // those along it with this parameter that adds their sum to the model's.
  int model_axis() const { return placed_.spread.model_axis; }
  bool adds_to_model() const { return placed_.spread.adds_to_model; }
  const ParameterLayouts& layouts() const { return placed_.layouts; }

  // The value as forward uses it, in the compute dtype and layout. Where those are not the at-rest ones, each
  // call makes a new copy, which is freed with its last handle: the tape keeps the at-rest value and makes
  // the copy again in backward. So a copy serves until the parameter is next written to: Backward refuses to
  // read one from before an optimizer step that was used after it. Gradients of a copy in another dtype are
  // cast back before they are summed or reduced.
  // Cost:   the redistribution from at rest to compute (FSDP: an all-gather), in the compute dtype, under
  //         purpose `param`.
  // Errors: FailedPrecondition before it is materialized.
  DTensor Value() const;

  // The value at rest: a leaf.
  const DTensor& at_rest() const {
    const bool is_own = tied_to_ == nullptr && is_here() && placed_.at_rest.defined();
    return is_own ? placed_.at_rest : AtRestElsewhere();
  }

  // The value that an optimizer changes, as its state lies: the value at rest, or this rank's part of it, in the
  // same memory where that is one run of it; a copy, where the state is on the host and the value on a GPU.
  DTensor UpdatedPiece() const;
  // Takes over what has been changed: gathers the pieces of all ranks into the memory of the values at rest, or brings
  // them there from the host. For parameters whose UpdatedPiece() is not the value at rest.
  // Cost: one all-gather for all of `parameters`, in the dtype at rest, on their update lane: what reads a value
  //       first waits for it.
  static void TakeUpdates(absl::Span<Parameter* const> parameters, absl::Span<const DTensor> pieces);

  // Goes on in a copy, which the next update changes: whoever holds the value, or has saved it for backward, keeps it as it
  // is. For weights that are read by computing that began before an update and ends after it.
  // Cost: memory of the value, until nobody holds it any more.
  void Fork();
  // Goes on with another version of the value, one that at_rest() gave; returns the one that it had.
  DTensor ExchangeValue(DTensor value);

  // An update has changed the parameter: who makes copies may begin to.
  void EndUpdate() {
    if (placed_.copy_source != nullptr) placed_.copy_source->Updated(placed_.copy_index);
  }

  // Whether it is trained. Of one that is not no gradient is computed or communicated, no update changes it, and what
  // it had of a gradient is forgotten. Set it alike on every rank, before or after the model has values, between
  // steps. Graphs that were recorded before keep their history. Of a tied name: of the parameter that it is tied to.
  // Errors: FailedPrecondition within a backward pass.
  bool trainable() const { return tied_to_ == nullptr ? trainable_ : tied_to_->trainable(); }
  void set_trainable(bool trainable);

  // The gradient at rest, or undefined; Backward adds to it.
  const DTensor& grad() const;
  void ClearGrad();
  // Of the parameter's type, on its mesh, in the layout of gradients at rest.
  // Errors: InvalidArgument for another.
  void SetGrad(DTensor gradient);
  // `hook` is called each time that a backward pass has brought a gradient to rest here, whatever part of it other passes
  // bring: after the parameter's last use, and, while buckets move, before the gradient has come: its first reader waits.
  // It may change it (SetGrad). Gradients that NoSync holds back are not ready. Of a parameter that several stages have: once a
  // step, by `StageData::FinishGradients`. Every rank hangs the same hooks. They stay where the model is spread anew.
  // Errors: FailedPrecondition before it is materialized.
  HookHandle AddGradientReady(std::function<void(Parameter& parameter)> hook);

  // Where it lies, besides its layouts: before Materialize.
  const ParameterMemory& memory() const { return placed_.memory; }
  void set_memory(const ParameterMemory& memory) { placed_.memory = memory; }
  // The context of the optimizer's state.
  IntrusivePtr<MeshContext> state_context() const;

  // Gives the slot its layouts and its first value, of `dtype`; forward uses it in `compute_dtype`.
  void Materialize(const IntrusivePtr<MeshContext>& context, DType dtype, DType compute_dtype,
                   const ParameterLayouts& layouts);

  // What Materialize and whoever spreads the model have made of the slot: all but what its module's constructor said.
  struct Placed;
  // Takes what is there and puts `placed` in its place: a slot that is exchanged with Placed() is a spec, as before
  // Materialize, and one that gets its own back is as it was.
  Placed ExchangePlaced(Placed placed);
  // Lets go what a slot had: graphs that were recorded before keep what they hold, and deliver to nobody.
  static void Retire(const Placed& placed);

  // Copies come from `source` from now on, as its number `copy`.
  void set_copy_source(std::shared_ptr<CopySource> source, int copy) {
    placed_.copy_source = std::move(source);
    placed_.copy_index = copy;
  }
  DType compute_dtype() const { return placed_.compute_dtype; }
  // In which gradients are summed over ranks, by whatever sums them; nothing: as they arrive.
  const std::optional<DType>& reduce_dtype() const { return placed_.reduce_dtype; }
  void set_reduce_dtype(std::optional<DType> dtype) { placed_.reduce_dtype = dtype; }
  // Whether compute reads a copy, and not the value at rest.
  bool is_copied() const {
    return placed_.layouts.at_rest != placed_.layouts.compute || placed_.compute_dtype != at_rest().dtype() ||
           placed_.memory.value_on_host;
  }
  // Whether ranks gather what an update has changed, while it changes others: copies ahead of their use, or the value at rest.
  bool sends_updates() const {
    return placed_.copy_source != nullptr || placed_.layouts.of_state() != placed_.layouts.at_rest;
  }
  // When the next forward is expected to read its copy, before those of which this is larger (CopySource::ReadOrder).
  int read_order() const {
    return placed_.copy_source != nullptr ? placed_.copy_source->ReadOrder(placed_.copy_index)
                                          : std::numeric_limits<int>::max();
  }
  // Where gradients arrive.
  LeafNode& leaf() const;
  // How a model of which ranks have different stages or parts has it.
  struct Spread {
    bool is_here = true;
    bool counts_here = true;
    IntrusivePtr<MeshContext> model_context = nullptr;
    int model_axis = -1;
    bool adds_to_model = true;
  };
  void set_spread(Spread spread) { placed_.spread = std::move(spread); }
  // The lane that its moves after an update take; kInline unless a scheduler says otherwise.
  void set_update_lane(Lane lane) { placed_.update_lane = lane; }

  // Replaces the elements by those of `value`, which lies on the parameter's mesh or on another of the same ranks, brought to
  // the at-rest layout. For loading.
  // Cost:   as MovedTo (dtensor/mesh_transfer.h).
  // Errors: InvalidArgument if the type differs, or for a mesh of other ranks.
  void Load(const DTensor& value);

  struct Placed {
    ParameterLayouts layouts = {};
    ParameterMemory memory = {};
    DType compute_dtype = DType::kF32;
    std::optional<DType> reduce_dtype = std::nullopt;
    DTensor at_rest = {};
    IntrusivePtr<TapeNode> leaf = nullptr;  // the history of the value at rest, where it is trained
    std::shared_ptr<CopySource> copy_source = nullptr;
    int copy_index = 0;
    Lane update_lane = Lane::kInline;
    Spread spread = {};
  };

 private:
  friend class Module;

  // The value of the parameter that this one is tied to.
  // Errors: FailedPrecondition if it is tied to none: it has no value here.
  const DTensor& AtRestElsewhere() const;

  std::string owner_path() const;
  std::string owner_full_path() const;

  Module* owner_;
  std::string name_;
  Parameter* tied_to_ = nullptr;
  bool is_transposed_ = false;  // of a tied one
  ParameterSpec spec_;
  bool trainable_ = true;
  // Of every leaf that the slot has: they outlive its placement.
  const std::shared_ptr<HookList<void()>> ready_hooks_ = std::make_shared<HookList<void()>>();
  Placed placed_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_PARAMETER_H_
