#include "dtensor/nn/parameter.h"

#include "dtensor/dispatch.h"
#include "dtensor/host_memory.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/redistribute_each.h"
#include "dtensor/tape/cast_node.h"
#include "dtensor/tape/saved_value.h"
#include "ops/shape/permute.h"
#include "runtime/base/philox.h"
#include "runtime/tensor/copy.h"

namespace weft {

const DTensor& Parameter::AtRestElsewhere() const {
  if (tied_to_ != nullptr) return tied_to_->at_rest();
  if (!is_here()) {
    Throw(absl::StatusCode::kFailedPrecondition, "parameter '", path(),
          "' is not on this rank: it belongs to another stage or part of the model");
  }
  Throw(absl::StatusCode::kFailedPrecondition, "parameter '", path(),
        "' has no value yet: call Materialize or Parallelize on the model first");
}

LeafNode& Parameter::leaf() const {
  if (tied_to_ != nullptr) return tied_to_->leaf();
  at_rest();  // throws if there is none
  return static_cast<LeafNode&>(*placed_.leaf);
}

void Parameter::set_trainable(bool trainable) {
  if (tied_to_ != nullptr) {
    tied_to_->set_trainable(trainable);
  } else if (materialized()) {
    if (placed_.at_rest.context()->state().in_backward()) {
      Throw(absl::StatusCode::kFailedPrecondition, "parameter '", path(),
            "': set_trainable within a backward pass; expected it between passes");
    }
    placed_.at_rest.impl()->node = trainable ? placed_.leaf : nullptr;
    if (!trainable) ClearGrad();
    leaf().set_expects(trainable);
  }
  trainable_ = trainable;
}

DTensor Parameter::Value() const {
  if (tied_to_ != nullptr) {
    const DTensor value = tied_to_->Value();
    if (!is_transposed_) return value;
    PermuteAttributes reversed;
    for (int dim = value.ndim() - 1; dim >= 0; --dim) reversed.order.push_back(dim);
    return Call(kPermute, {value}, reversed);
  }
  const DTensor& value = at_rest();
  if (!is_copied()) return value;
  RankState& state = value.context()->state();
  PurposeGuard purpose(state, Purpose::kParam);
  // In a handle of its own, which has the parameter's history.
  DTensor copy = placed_.copy_source != nullptr
                     ? WithoutHistory(placed_.copy_source->Copy(placed_.copy_index))
                     : MakeCopy(value, placed_.compute_dtype, placed_.layouts.compute);
  // Redistribution is the identity on values, so the copy's gradient is the parameter's, but for the dtype.
  if (trainable_) {
    copy.impl()->node = placed_.compute_dtype == value.dtype()
                            ? placed_.leaf
                            : MakeCastNode(state, placed_.leaf, value.dtype());
  }
  auto origin = MakeIntrusive<CopyOrigin>();
  origin->at_rest = value.impl();
  origin->version = value.impl()->version();
  origin->source = placed_.copy_source;
  origin->copy = placed_.copy_index;
  copy.impl()->origin = IntrusivePtr<const CopyOrigin>(origin.get());
  return copy;
}

IntrusivePtr<MeshContext> Parameter::state_context() const {
  const IntrusivePtr<MeshContext>& context = at_rest().context();
  return placed_.memory.state_on_host ? context->HostSide() : context;
}

DTensor Parameter::UpdatedPiece() const {
  const DTensor& value = at_rest();
  DTensor piece = value;
  if (placed_.layouts.of_state() != placed_.layouts.at_rest) {
    piece = value.impl()->Moved(placed_.layouts.of_state());
    if (!piece.ToLocal().IsContiguous()) {
      // Kernels that update write to whole runs.
      piece = DTensor(MakeIntrusive<DTensorImpl>(value.context(), piece.layout(), piece.type(),
                                                 CloneTensor(piece.ToLocal(), value.context()->allocator())));
    }
  }
  return placed_.memory.state_on_host && !ComputesOnHost(*value.context()) ? ToHost(piece) : piece;
}

void Parameter::TakeUpdates(absl::Span<Parameter* const> parameters, absl::Span<const DTensor> pieces) {
  std::vector<EachMove> moves;
  std::vector<DTensorImpl*> targets;
  std::vector<DTensor> brought;
  brought.reserve(parameters.size());
  Lane lane = Lane::kInline;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    DTensorImpl& target = *parameter.at_rest().impl();
    // What has no elements may have been left out: nothing was written.
    const IntrusivePtr<WriteLog>& writes = pieces[i].impl()->writes;
    if (writes && writes != target.writes) target.MarkWritten(writes->last_writer);
    if (pieces[i].layout() == target.layout) {
      CopyInto(pieces[i], parameter.at_rest());
      continue;
    }
    brought.push_back(InMemoryOf(pieces[i], *target.context));
    moves.push_back({.source = brought.back(), .to = target.layout, .into = target.Local()});
    targets.push_back(&target);
    lane = parameter.placed_.update_lane;
  }
  if (moves.empty()) return;
  const PurposeGuard purpose(targets[0]->context->state(), Purpose::kParam);
  const std::vector<DTensor> gathered = RedistributeEach(moves, lane);
  for (size_t i = 0; i < targets.size(); ++i) targets[i]->SetPending(gathered[i].impl()->pending());
}

void Parameter::Fork() {
  const DTensor& value = at_rest();
  const MemoryKindGuard kind(*value.context()->allocator(), MemoryKind::kParam);
  DTensor copy(MakeIntrusive<DTensorImpl>(value.context(), value.layout(), value.type(),
                                          CloneTensor(value.ToLocal(), value.context()->allocator())));
  copy.impl()->node = value.impl()->node;
  copy.impl()->writes = MakeIntrusive<WriteLog>();
  copy.impl()->writes->version = value.impl()->version();
  placed_.at_rest = std::move(copy);
}

DTensor Parameter::ExchangeValue(DTensor value) {
  WEFT_REQUIRE(value.defined() && value.type() == at_rest().type() && value.layout() == at_rest().layout() &&
                   (!value.impl()->node || value.impl()->node == placed_.leaf),
               "parameter '", path(), "': expected a version of its own value");
  value.impl()->node = trainable_ ? placed_.leaf : nullptr;
  return std::exchange(placed_.at_rest, std::move(value));
}

const DTensor& Parameter::grad() const { return leaf().gradient(); }

void Parameter::ClearGrad() { leaf().ClearGradient(); }

void Parameter::SetGrad(DTensor gradient) {
  if (tied_to_ != nullptr) return tied_to_->SetGrad(std::move(gradient));
  WEFT_REQUIRE(gradient.type() == at_rest().type() && gradient.layout() == placed_.layouts.of_gradient(),
               "gradient of '", path(), "': expected ", at_rest().type().ToString(), " ",
               placed_.layouts.of_gradient().ToString(at_rest().context()->mesh()), ", got ",
               gradient.ToString());
  const DeviceMesh &mesh = at_rest().context()->mesh(), &given = gradient.context()->mesh();
  WEFT_REQUIRE(given == mesh, "gradient of '", path(), "': expected a tensor on mesh (", mesh.ToString(),
               "), got ", gradient.ToString(), " on mesh (", given.ToString(), ")");
  leaf().set_gradient(placed_.memory.state_on_host ? ToHost(gradient, MemoryKind::kGrad)
                                                   : std::move(gradient));
}

HookHandle Parameter::AddGradientReady(std::function<void(Parameter& parameter)> hook) {
  WEFT_REQUIRE(hook != nullptr, "AddGradientReady of '", path(), "': expected a function, got an empty one");
  at_rest();  // throws if there is none
  const Parameter& own = tied_to_ != nullptr ? *tied_to_ : *this;
  return own.ready_hooks_->Add([this, hook = std::move(hook)] { hook(*this); });
}

void Parameter::Materialize(const IntrusivePtr<MeshContext>& context, DType dtype, DType compute_dtype,
                            const ParameterLayouts& layouts) {
  if (materialized()) {
    Throw(absl::StatusCode::kFailedPrecondition, "parameter '", path(), "' already has a value");
  }
  WEFT_REQUIRE(IsFloating(dtype) && IsFloating(compute_dtype), "parameter '", path(),
               "': expected floating dtypes, got ", DTypeName(dtype), ", computing in ",
               DTypeName(compute_dtype));
  RankState& state = context->state();
  NoGradGuard no_grad(state);
  const IntrusivePtr<MeshContext> home = placed_.memory.value_on_host ? context->HostSide() : context;
  const MemoryKindGuard kind(*home->allocator(), MemoryKind::kParam);
  // The value's memory and the leaf's collectives belong to its module.
  const PathGuard path_guard(state, state.PathId(owner_full_path()));
  // Initial values belong to the beginning of time, whatever step the program is at.
  const RandomKey key{.seed = state.seed(), .stream = StreamOf(full_path()), .step = 0};
  DTensor value = MakeFirstValue(spec_.initializer, {.context = home,
                                                     .layout = layouts.at_rest,
                                                     .type = {dtype, spec_.shape},
                                                     .key = key,
                                                     .fans = spec_.fans,
                                                     .path = path()});
  placed_.layouts = layouts;
  placed_.compute_dtype = compute_dtype;
  auto* const leaf = new LeafNode(state, path(), layouts.of_gradient(), dtype);
  placed_.leaf = IntrusivePtr<TapeNode>(leaf);
  leaf->set_expects(trainable_);
  leaf->set_on_host(placed_.memory.state_on_host);
  leaf->set_ready_hooks(ready_hooks_);
  if (trainable_) value.impl()->node = placed_.leaf;
  value.impl()->writes = MakeIntrusive<WriteLog>();
  placed_.at_rest = std::move(value);
}

Parameter::Placed Parameter::ExchangePlaced(Placed placed) {
  return std::exchange(placed_, std::move(placed));
}

void Parameter::Retire(const Placed& placed) {
  if (placed.copy_source != nullptr) placed.copy_source->Forget(placed.copy_index);
  if (!placed.leaf) return;
  auto& leaf = static_cast<LeafNode&>(*placed.leaf);
  leaf.set_sink(nullptr, 0);
  leaf.set_expects(false);
}

void Parameter::Load(const DTensor& value) {
  if (tied_to_ != nullptr) return tied_to_->Load(value);
  WEFT_REQUIRE(value.type() == at_rest().type(), "parameter '", path(), "': expected ",
               at_rest().type().ToString(), ", got ", value.type().ToString());
  const DTensor moved = MovedTo(value, at_rest().context(), placed_.layouts.at_rest,
                                [&] { return absl::StrCat("parameter '", path(), "'"); });
  CopyTensor(moved.ToLocal(), at_rest().ToLocal());
  at_rest().impl()->MarkWritten("load");
}

}  // namespace weft
