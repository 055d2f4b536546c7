#include "dtensor/mesh_transfer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/executor.h"
#include "dtensor/redistribution/redistribute.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

void CheckSource(const MeshTransferEnds& ends, const DTensor& source) {
  WEFT_REQUIRE(source.context()->mesh() == ends.from_mesh && source.layout() == ends.from &&
                   source.type() == ends.type,
               "Redistribute: the source is ", source.ToString(), " on mesh (",
               source.context()->mesh().ToString(), "), expected ", ends.type.ToString(), " ",
               ends.from.ToString(ends.from_mesh), " on mesh (", ends.from_mesh.ToString(), ")");
  WEFT_REQUIRE(!source.requires_grad() || !source.context()->state().grad_enabled(),
               "Redistribute: a gradient does not cross from mesh (", ends.from_mesh.ToString(),
               ") to mesh (", ends.to_mesh.ToString(), "); detach ", source.ToString(), " first");
}

std::shared_ptr<const LoweredMeshTransfer> PlanTransfer(RankState& state, const MeshTransferEnds& ends,
                                                        const IntrusivePtr<MeshContext>& target) {
  MeshTransferCache& cache = state.mesh_transfers();
  if (const auto& known = cache.Find(ends); known != nullptr) return known;
  const Shape& shape = ends.type.shape;
  LoweredMeshTransfer lowered;
  lowered.reduced = ReducedLayout(ends.from, shape, ends.from_mesh);
  lowered.landing = WithoutPartial(ends.to);
  const MeshTransfer transfer =
      PlanMeshTransfer(ends.from_mesh, lowered.reduced, ends.to_mesh, lowered.landing, shape);
  const int rank = state.world().rank();
  const size_t place =
      std::lower_bound(transfer.ranks.begin(), transfer.ranks.end(), rank) - transfer.ranks.begin();
  if (target) {
    lowered.landing_shape = LocalBox(shape, lowered.landing, ends.to_mesh, target->coordinate()).shape;
  }
  lowered.exchange =
      LowerExchange(transfer.PartOf(rank), transfer.held[place].offset, transfer.wanted[place].offset);
  lowered.group = &state.Group(
      absl::StrCat("(", ends.from_mesh.ToString(), ") to (", ends.to_mesh.ToString(), ")"), transfer.ranks);
  return cache.Insert(ends, std::make_shared<const LoweredMeshTransfer>(std::move(lowered)));
}

// `piece` as the transfer's regions see it: a scalar has one dim there.
Tensor WithOneDim(const Tensor& piece) { return piece.ndim() == 0 ? piece.Reshape({1}) : piece; }

}  // namespace

DTensor Redistribute(const MeshTransferEnds& ends, const DTensor& source,
                     const IntrusivePtr<MeshContext>& target) {
  WEFT_REQUIRE(source.defined() || target, "Redistribute: this rank has neither a source nor a target");
  RankState& state = source.defined() ? source.context()->state() : target->state();
  const int rank = state.world().rank();
  WEFT_REQUIRE(source.defined() == ends.from_mesh.Contains(rank), "Redistribute: rank ", rank,
               source.defined() ? " has a source but is not" : " has no source but is", " in mesh (",
               ends.from_mesh.ToString(), ")");
  WEFT_REQUIRE((target != nullptr) == ends.to_mesh.Contains(rank), "Redistribute: rank ", rank,
               target ? " has a target but is not" : " has no target but is", " in mesh (",
               ends.to_mesh.ToString(), ")");
  if (source.defined()) CheckSource(ends, source);
  WEFT_REQUIRE(!target || target->mesh() == ends.to_mesh, "Redistribute: the target is mesh (",
               target->mesh().ToString(), "), expected (", ends.to_mesh.ToString(), ")");
  const std::shared_ptr<const LoweredMeshTransfer> shared = PlanTransfer(state, ends, target);
  const LoweredMeshTransfer& transfer = *shared;

  Tensor input, output;
  if (source.defined()) {
    input = RedistributeLocal(*source.context(), source.ToLocal(), ends.type, ends.from, transfer.reduced);
  }
  if (target) output = Tensor::Empty(target->allocator(), ends.type.dtype, transfer.landing_shape);
  ExchangeRegions(*transfer.group, input.defined() ? WithOneDim(input) : input,
                  output.defined() ? WithOneDim(output) : output, transfer.exchange,
                  state.world().allocator(), {.tag = state.tag()});
  if (!target) return DTensor();
  output = RedistributeLocal(*target, output, ends.type, transfer.landing, ends.to);
  return DTensor(MakeIntrusive<DTensorImpl>(target, ends.to, ends.type, std::move(output)));
}

DTensor Redistribute(const DTensor& source, const IntrusivePtr<MeshContext>& target, const Layout& layout) {
  WEFT_REQUIRE(target != nullptr, "Redistribute: there is no target mesh");
  const MeshTransferEnds ends = {source.context()->mesh(), source.layout(), target->mesh(), layout,
                                 source.type()};
  return Redistribute(ends, source, target);
}

}  // namespace weft
