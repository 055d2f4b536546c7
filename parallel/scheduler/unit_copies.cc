#include "parallel/scheduler/unit_copies.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/dispatch.h"
#include "dtensor/host_memory.h"
#include "dtensor/redistribute_each.h"
#include "ops/elementwise/cast.h"
#include "parallel/scheduler/move_subject.h"

namespace weft {
namespace {

constexpr absl::string_view kOtherOrder = "the program has left the order of its last step";
constexpr absl::string_view kChanged = "its parameters have been changed since";

// Whether what is gathered of it meets in a buffer, and is unpacked from there: pieces of another dim than the first.
bool IsPacked(const Parameter& parameter) {
  const Layout &at_rest = parameter.layouts().at_rest, &compute = parameter.layouts().compute;
  for (int axis = 0; axis < at_rest.num_axes(); ++axis) {
    if (at_rest.IsShard(axis) && !compute.IsShard(axis) && at_rest.shard_dim(axis) != 0) return true;
  }
  return false;
}

// Whether it was not there.
bool AddOnce(std::vector<int>& order, int unit) {
  if (std::find(order.begin(), order.end(), unit) != order.end()) return false;
  order.push_back(unit);
  return true;
}

}  // namespace

UnitCopies::UnitCopies(MeshContext& context, std::vector<CopyUnit> units, const UnitCopyOptions& options)
    : context_(context), options_(options) {
  for (CopyUnit& unit : units) {
    std::vector<uint32_t> subjects;
    for (int i = 0; i < std::ssize(unit.parameters); ++i) {
      places_.push_back({static_cast<int>(units_.size()), i});
      subjects.push_back(MoveSubject(unit.parameters[i]->full_path()));
    }
    const int path_id = context.state().PathId(unit.path);
    units_.push_back({.spec = std::move(unit), .path_id = path_id, .subjects = std::move(subjects)});
    MeasureWhole(units_.back());
  }
}

void UnitCopies::MeasureWhole(Unit& unit) {
  unit.whole_bytes = unit.packed_bytes = 0;
  for (const Parameter* parameter : unit.spec.parameters) {
    const int64_t bytes = parameter->spec().shape.num_elements() * ItemSize(parameter->compute_dtype());
    unit.whole_bytes += bytes;
    if (IsPacked(*parameter)) unit.packed_bytes += bytes;
  }
}

// A parameter that has been written since has other copies.
bool UnitCopies::IsCurrent(const Unit& unit) const {
  for (size_t i = 0; i < unit.versions.size(); ++i) {
    if (unit.spec.parameters[i]->at_rest().impl()->version() != unit.versions[i]) return false;
  }
  return true;
}

// What is left of the unit is gathered as ever.
void UnitCopies::Forget(int copy) noexcept {
  const auto [index, number] = places_[copy];
  if (number < 0) return;
  Unit& unit = units_[index];
  const auto leave_out = [number = number](auto& of_parameters) {
    if (number < std::ssize(of_parameters)) of_parameters.erase(of_parameters.begin() + number);
  };
  leave_out(unit.spec.parameters);
  leave_out(unit.subjects);
  leave_out(unit.copies);
  leave_out(unit.parts);
  leave_out(unit.versions);
  MeasureWhole(unit);
  places_[copy].second = -1;
  for (size_t i = copy + 1; i < places_.size() && places_[i].first == index; ++i) --places_[i].second;
}

DTensor UnitCopies::Copy(int copy) {
  const auto [unit, number] = places_[copy];
  if (number < 0) {
    Throw(absl::StatusCode::kFailedPrecondition, "a parameter of unit '", units_[unit].spec.path,
          "' is gone with its module: backward cannot gather it again");
  }
  Use(unit);
  return units_[unit].copies[number];
}

void UnitCopies::Hold(int index) {
  Unit& unit = units_[index];
  unit.is_held = true;
  if (!unit.spec.parameters.empty() && !IsHere(unit)) Gather(index, /*ahead=*/true);
}

void UnitCopies::Release(int index) noexcept {
  Unit& unit = units_[index];
  unit.is_held = false;
  if (unit.spec.reshards) Drop(unit);
}

void UnitCopies::Use(int index) {
  Unit& unit = units_[index];
  in_use_ = index;
  const bool is_here = IsHere(unit);
  bool first = !is_here || !unit.is_used;
  if (!is_here) BringAnew(index, /*ahead=*/false);
  unit.is_used = true;
  unit.last_use = ++num_uses_;
  RankState& state = context_.state();
  // Also of units that an earlier pass, or forward, has left here: the next step has this pass's order, and what comes after
  // them is gathered ahead like any other.
  std::vector<int>& order = state.in_backward()    ? this_backward_
                            : state.grad_enabled() ? this_forward_
                                                   : this_evaluation_;
  first |= AddOnce(order, index);
  if (!first) return;
  // What the root's gather packs is gone before more is gathered, which would have to wait for it anyway.
  if (unit.spec.is_root) unit.copies[0].ToLocal();
  Prefetch(index);
  const bool comes_again = !state.in_backward() && state.grad_enabled();
  if (comes_again && !unit.is_held && unit.spec.rests_in != nullptr && unit.parts.empty()) KeepParts(unit);
}

// The first gathers of a step have little compute of their own step before them: they run beside what ends the last one.
// What is frozen goes with whichever is updated first. Of an update within backward, by a hook, nothing would last: the pass lets
// go of all units.
void UnitCopies::Updated(int copy) {
  if (!options_.overlap || options_.prefetch == 0 || forward_order_.empty()) return;
  if (context_.state().in_backward()) return;
  const int first = forward_order_[0];
  const auto is_next = [&, updated = places_[copy].first](int index) {
    const std::vector<const Parameter*>& parameters = units_[index].spec.parameters;
    const auto is_frozen = [](const Parameter* parameter) { return !parameter->trainable(); };
    return index == updated ||
           (!parameters.empty() && std::all_of(parameters.begin(), parameters.end(), is_frozen));
  };
  if (is_next(first)) GatherForNextStep(first);
  for (const int index : UnitsAhead(first)) {
    if (!is_next(index)) continue;
    // Beside the root's gather, of which what it packs is whole twice.
    const Unit& before = units_[first];
    if (before.spec.is_root && before.packed_bytes > units_[index].whole_bytes) continue;
    GatherForNextStep(index);
  }
}

// Another optimizer may still have to change the rest of the unit; what is frozen stays as it is.
void UnitCopies::GatherForNextStep(int index) {
  Unit& unit = units_[index];
  const bool is_ahead = !unit.copies.empty() && !unit.is_used;
  if (is_ahead || IsHere(unit)) return;
  for (size_t i = 0; i < unit.versions.size(); ++i) {
    const Parameter& parameter = *unit.spec.parameters[i];
    if (parameter.trainable() && parameter.at_rest().impl()->version() == unit.versions[i]) return;
  }
  Gather(index, /*ahead=*/true);
}

int UnitCopies::ReadOrder(int copy) const {
  const auto place = std::find(forward_order_.begin(), forward_order_.end(), places_[copy].first);
  return place == forward_order_.end() ? std::numeric_limits<int>::max()
                                       : static_cast<int>(place - forward_order_.begin());
}

// The next units of the pass that runs, as the last one had them. What was gathered ahead in another hope goes.
void UnitCopies::Prefetch(int index) {
  const UnitList ahead = UnitsAhead(index);
  for (int i = 0; i < std::ssize(units_); ++i) {
    const bool hoped = !units_[i].copies.empty() && !units_[i].is_used && !units_[i].is_held;
    if (!hoped || std::find(ahead.begin(), ahead.end(), i) != ahead.end()) continue;
    // The first backward's order is only a guess.
    const bool is_guess = context_.state().in_backward() && backward_order_.empty();
    is_guess ? Drop(units_[i]) : DropUnused(units_[i], kOtherOrder);
  }
  for (const int next : ahead) Bring(next, /*ahead=*/true);
}

UnitCopies::UnitList UnitCopies::UnitsAhead(int index) const {
  const bool backward = context_.state().in_backward();
  std::vector<int> reversed;
  if (backward && backward_order_.empty()) {
    // That of a forward of which nothing is trained has been taken at its end.
    const std::vector<int>& forward = this_forward_.empty() ? forward_order_ : this_forward_;
    reversed.assign(forward.rbegin(), forward.rend());
  }
  const std::vector<int>& order = !backward                 ? forward_order_
                                  : backward_order_.empty() ? reversed
                                                            : backward_order_;
  UnitList ahead;
  auto next = std::find(order.begin(), order.end(), index);
  if (next == order.end()) return ahead;
  for (++next; next != order.end() && std::ssize(ahead) < options_.prefetch; ++next) {
    // The root stays; gathered at its first use. A unit whose model has gone is still in the orders.
    if (!units_[*next].spec.is_root && !units_[*next].spec.parameters.empty()) ahead.push_back(*next);
  }
  return ahead;
}

// Gathers a unit that is not here.
void UnitCopies::BringAnew(int index, bool ahead) {
  Unit& unit = units_[index];
  if (!unit.copies.empty() && !unit.is_used) DropUnused(unit, kChanged);
  Gather(index, ahead);
}

void UnitCopies::Gather(int index, bool ahead) {
  Unit& unit = units_[index];
  Drop(unit);
  MakeRoom(index);
  RankState& state = context_.state();
  const NoGradGuard no_grad(state);
  const PathGuard path(state, unit.path_id);
  const PurposeGuard purpose(state, Purpose::kParam);
  const MemoryKindGuard kind(*context_.allocator(), MemoryKind::kWholeParam);
  const Lane lane = ahead && options_.overlap ? Lane::kParam : Lane::kInline;
  if (!unit.parts.empty() && IsCurrent(unit)) {
    GatherFromParts(unit, lane);
  } else {
    unit.parts.clear();
    GatherFromRest(unit, lane);
  }
  unit.is_used = false;
}

void UnitCopies::GatherFromRest(Unit& unit, Lane lane) {
  std::vector<DTensor> pieces;
  std::vector<EachMove> moves;
  pieces.reserve(unit.spec.parameters.size());
  moves.reserve(unit.spec.parameters.size());
  unit.versions.clear();
  for (const Parameter* parameter : unit.spec.parameters) {
    const DTensor& at_rest = parameter->at_rest();
    DTensor piece = ToDevice(at_rest, MemoryKind::kWholeParam);
    unit.versions.push_back(at_rest.impl()->version());
    // Cast first, so that what moves is the smaller.
    if (piece.dtype() != parameter->compute_dtype()) {
      piece = Execute(kCast, {piece}, {.dtype = parameter->compute_dtype()});
    }
    pieces.push_back(std::move(piece));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    moves.push_back({
        .source = pieces[i],
        .to = unit.spec.parameters[i]->layouts().compute,
        .subject = unit.subjects[i],
    });
  }
  unit.copies = RedistributeEach(moves, lane);
  // The pieces at rest are read until then, whether or not anybody uses what is made of them.
  for (size_t i = 0; i < pieces.size(); ++i) {
    DTensorImpl& at_rest = *unit.spec.parameters[i]->at_rest().impl();
    const IntrusivePtr<PendingMoves>& pending = unit.copies[i].impl()->pending();
    if (pending && pieces[i].impl()->piece().buffer() == at_rest.piece().buffer())
      at_rest.SetPending(pending);
  }
}

void UnitCopies::GatherFromParts(Unit& unit, Lane lane) {
  const SmallerGroup& group = *unit.spec.rests_in;
  std::vector<EachMove> moves;
  for (size_t i = 0; i < unit.parts.size(); ++i) {
    moves.push_back({
        .source = unit.parts[i],
        .to = group.Inside(unit.spec.parameters[i]->layouts().compute),
        .subject = unit.subjects[i],
    });
  }
  const std::vector<DTensor> gathered = RedistributeEach(moves, lane);
  for (size_t i = 0; i < gathered.size(); ++i) {
    unit.copies.push_back(group.Outside(gathered[i], unit.spec.parameters[i]->layouts().compute));
  }
}

// While the copies are here, since a module that is left may not fail. Along the dim that is split at rest.
void UnitCopies::KeepParts(Unit& unit) {
  const MemoryKindGuard kind(*context_.allocator(), MemoryKind::kWholeParam);
  unit.parts.clear();
  for (size_t i = 0; i < unit.copies.size(); ++i) {
    const int dim = unit.spec.parameters[i]->layouts().at_rest.shard_dim(unit.spec.axis);
    unit.parts.push_back(unit.spec.rests_in->PartOf(unit.copies[i], dim));
  }
}

// No more than (1 + prefetch) inner units are here with this one: those let go that were used longest ago, but
// for the one in use.
void UnitCopies::MakeRoom(int index) {
  const auto counts = [&](const Unit& unit) {
    return !unit.spec.is_root && Reshards(unit) && !unit.copies.empty();
  };
  if (units_[index].spec.is_root || !Reshards(units_[index])) return;
  std::vector<Unit*> old;
  int64_t num_here = 1;
  for (int i = 0; i < std::ssize(units_); ++i) {
    if (i == index || !counts(units_[i])) continue;
    ++num_here;
    if (i != in_use_ && units_[i].is_used) old.push_back(&units_[i]);
  }
  std::sort(old.begin(), old.end(), [](const Unit* a, const Unit* b) { return a->last_use < b->last_use; });
  for (Unit* unit : old) {
    if (num_here-- <= int64_t{1} + options_.prefetch) return;
    Drop(*unit);
  }
}

void UnitCopies::DropUnused(Unit& unit, absl::string_view why) {
  Drop(unit);
  if (!context_.state().FirstWarning(absl::StrCat("prefetch ", unit.spec.path))) return;
  context_.Warn(absl::StrCat("unit '", unit.spec.path, "' was gathered ahead and not used: ", why,
                             "; the gather is dropped"));
}

void UnitCopies::Drop(Unit& unit) noexcept { unit.copies.clear(); }

void UnitCopies::LeaveModule(int index) noexcept {
  Unit& unit = units_[index];
  if (unit.spec.is_root || !Reshards(unit) || context_.state().in_backward()) return;
  if (unit.is_used) Drop(unit);
}

// A forward that nothing differentiates, or of which nothing is trained, is all there is: no pass ends that would let go of
// its units and take its order. A gradient may go through frozen units all the same: backward gathers them again.
void UnitCopies::EndForward(bool is_trained) noexcept {
  const bool records = context_.state().grad_enabled();
  if (records && (is_trained || context_.state().in_backward())) return;
  for (Unit& unit : units_) {
    if (Reshards(unit)) Drop(unit);
    if (records) unit.parts.clear();
  }
  if (context_.state().in_backward()) return;  // recomputed: its uses are the pass's
  std::vector<int> order = std::exchange(records ? this_forward_ : this_evaluation_, {});
  // A model that is trained keeps its passes' order.
  if (backward_order_.empty()) forward_order_ = std::move(order);
}

void UnitCopies::DeliveredAll(int index) noexcept {
  if (Reshards(units_[index])) Drop(units_[index]);
  units_[index].parts.clear();
}

void UnitCopies::EndPass() {
  in_use_ = -1;
  for (Unit& unit : units_) {
    if (!unit.copies.empty() && !unit.is_used && !unit.is_held) DropUnused(unit, kOtherOrder);
    if (Reshards(unit)) Drop(unit);
    unit.parts.clear();
  }
  // A pass may have no forward of its own: one over a history that was retained, or of the second of two losses.
  if (!this_forward_.empty()) forward_order_ = std::exchange(this_forward_, {});
  backward_order_ = std::exchange(this_backward_, {});
}

}  // namespace weft
