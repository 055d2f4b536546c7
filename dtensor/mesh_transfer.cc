#include "dtensor/mesh_transfer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/context/mesh_transfer_cache.h"
#include "dtensor/host_memory.h"
#include "dtensor/redistribution/executor.h"
#include "dtensor/redistribution/redistribute.h"
#include "dtensor/tape/tape_node.h"
#include "mesh/layout_words.h"
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
}

std::string GroupName(const DeviceMesh& from, const DeviceMesh& to) {
  return absl::StrCat("(", from.ToString(), ") to (", to.ToString(), ")");
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
  lowered.group = &state.Group(GroupName(ends.from_mesh, ends.to_mesh), transfer.ranks);
  return cache.Insert(ends, std::make_shared<const LoweredMeshTransfer>(std::move(lowered)));
}

// `piece` as the transfer's regions see it: a scalar has one dim there.
Tensor WithOneDim(const Tensor& piece) { return piece.ndim() == 0 ? piece.Reshape({1}) : piece; }

DTensor RunTransfer(const MeshTransferEnds& ends, const DTensor& source,
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

// What the ranks of a tensor's mesh know of it.
struct Told {
  bool is_defined = false;  // a gradient may not be
  bool wants_gradient = false;
  TensorType type = {};
  Layout layout = {};
};

constexpr int kWords = kToldBytes / sizeof(int64_t);
static_assert(kWords == 4 + Layout::kMaxDims + kLayoutWords);

std::vector<int64_t> ToWords(const Told& told) {
  std::vector<int64_t> words(kWords);
  words[0] = told.is_defined ? 1 : 0;
  words[1] = told.wants_gradient ? 1 : 0;
  words[2] = static_cast<int64_t>(told.type.dtype);
  words[3] = told.type.ndim();
  for (int dim = 0; dim < told.type.ndim(); ++dim) words[4 + dim] = told.type.shape[dim];
  PutLayout(told.layout, &words[4 + Layout::kMaxDims]);
  return words;
}

Told FromWords(const std::vector<int64_t>& words) {
  return {.is_defined = words[0] != 0,
          .wants_gradient = words[1] != 0,
          .type = TensorType{static_cast<DType>(words[2]), Shape(absl::MakeConstSpan(&words[4], words[3]))},
          .layout = GetLayout(&words[4 + Layout::kMaxDims])};
}

// The ranks of `to` that are not in `from`, ascending.
std::vector<int> Strangers(const DeviceMesh& from, const DeviceMesh& to) {
  std::vector<int> strangers;
  for (const int rank : to.ranks()) {
    if (!from.Contains(rank)) strangers.push_back(rank);
  }
  std::sort(strangers.begin(), strangers.end());
  return strangers;
}

// What `mine` says, on ranks of `to` that are not in `from`, too: the ranks of `from` share in telling them. From the
// host's memory, so that no rank waits for another's device.
Told Tell(RankState& state, const DeviceMesh& from, const DeviceMesh& to, const Told& mine) {
  const std::vector<int> strangers = Strangers(from, to);
  const int own_rank = state.world().rank();
  if (strangers.empty() || !(from.Contains(own_rank) || to.Contains(own_rank))) return mine;
  std::vector<int> ranks = from.ranks();
  std::sort(ranks.begin(), ranks.end());
  const std::vector<int> tellers = ranks;
  ranks.insert(ranks.end(), strangers.begin(), strangers.end());
  std::sort(ranks.begin(), ranks.end());
  const auto place_of = [&](int rank) {
    return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  Communicator& group = state.HostGroup(absl::StrCat("told ", GroupName(from, to)), ranks);
  const bool on_host = state.world().allocator()->device().type == DeviceType::kCuda;
  const std::shared_ptr<Allocator>& allocator =
      on_host ? state.world().host_allocator() : state.world().allocator();
  const bool knows = from.Contains(own_rank);
  const Tensor words = knows ? Tensor::FromValues<int64_t>({kWords}, ToWords(mine), allocator)
                             : Tensor::Empty(allocator, DType::kI64, {kWords});
  std::vector<Message> sends, receives;
  for (size_t i = 0; i < strangers.size(); ++i) {
    const int teller = tellers[i % tellers.size()];
    if (teller == own_rank) sends.push_back({place_of(strangers[i]), words});
    if (strangers[i] == own_rank) receives.push_back({place_of(teller), words});
  }
  group.SendRecv(sends, receives, {.tag = state.tag()}).Wait();
  return knows ? mine : FromWords(words.ToVector<int64_t>());
}

// `source` as ranks of its mesh tell of it.
Told Describe(const DTensor& source, bool wants_gradient) {
  if (!source.defined() || source.is_absent()) return {};
  return {
      .is_defined = true, .wants_gradient = wants_gradient, .type = source.type(), .layout = source.layout()};
}

// Takes gradients back to where the source of a transfer lies. Every rank of both meshes runs it.
class MeshTransferNode final : public TapeNode {
 public:
  MeshTransferNode(Edge edge, IntrusivePtr<MeshContext> from, const Layout& source,
                   IntrusivePtr<MeshContext> to)
      : TapeNode(from->state(), Edges{std::move(edge)}, /*num_outputs=*/1),
        from_(std::move(from)),
        source_(WithoutPartial(source)),
        to_(std::move(to)) {}

  std::string Name() const override {
    return absl::StrCat("transfer ", GroupName(from_->mesh(), to_->mesh()));
  }
  bool RunsUnreached() const override { return true; }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients,
                    const NodeRun& /*run*/) override {
    RankState& state = context.state();
    if (state.grad_enabled()) {
      Throw(absl::StatusCode::kFailedPrecondition, Name(),
            ": there is no gradient of its gradient; differentiate once");
    }
    const bool holds = to_->is_member();
    const DTensor gradient = holds ? gradients[0] : DTensor();
    const Told told = Tell(state, to_->mesh(), from_->mesh(), Describe(gradient, /*wants_gradient=*/false));
    if (!told.is_defined) return {DTensor()};
    return {RunTransfer({to_->mesh(), told.layout, from_->mesh(), source_, told.type}, gradient,
                        from_->is_member() ? from_ : nullptr)};
  }

 private:
  const IntrusivePtr<MeshContext> from_;
  const Layout source_;
  const IntrusivePtr<MeshContext> to_;
};

TapeNode::Edge HistoryEdge(const DTensor& source) {
  return source.requires_grad() ? EdgeTo(source) : TapeNode::Edge();
}

void SetHistory(const DTensor& source, const Layout& layout, const DTensor& result) {
  result.impl()->node = IntrusivePtr<TapeNode>(
      new MeshTransferNode(HistoryEdge(source), source.context(), layout, result.context()));
}

}  // namespace

bool HaveSameRanks(const DeviceMesh& a, const DeviceMesh& b) {
  return a == b || (a.num_ranks() == b.num_ranks() &&
                    absl::c_all_of(a.ranks(), [&](int rank) { return b.Contains(rank); }));
}

DTensor Redistribute(const MeshTransferEnds& ends, const DTensor& source,
                     const IntrusivePtr<MeshContext>& target) {
  WEFT_REQUIRE(!source.requires_grad() || !source.context()->state().grad_enabled(),
               "Redistribute: ", source.ToString(), " has a history, of which ranks outside of mesh (",
               ends.from_mesh.ToString(), ") do not know: detach it, or use BringTo");
  return RunTransfer(ends, source, target);
}

DTensor Redistribute(const DTensor& source, const IntrusivePtr<MeshContext>& target, const Layout& layout) {
  WEFT_REQUIRE(target != nullptr, "Redistribute: there is no target mesh");
  const MeshTransferEnds ends = {source.context()->mesh(), source.layout(), target->mesh(), layout,
                                 source.type()};
  DTensor result = RunTransfer(ends, source, target);
  if (source.requires_grad() && source.context()->state().grad_enabled()) {
    SetHistory(source, source.layout(), result);
  }
  return result;
}

DTensor MovedTo(const DTensor& value, const IntrusivePtr<MeshContext>& target, const Layout& layout,
                absl::FunctionRef<std::string()> what) {
  const DTensor here = ToDevice(value.Detach());
  const IntrusivePtr<MeshContext> there = target->DeviceSide();
  const DeviceMesh &from = here.context()->mesh(), &to = there->mesh();
  if (from != to) {
    WEFT_REQUIRE(HaveSameRanks(from, to), what(), ": the value lies on mesh (", from.ToString(),
                 "), expected mesh (", to.ToString(), ") or another of the same ranks");
    return Redistribute(here, there, layout);
  }
  const DTensor moved = here.Redistribute(layout);
  if (moved.context() == there) return moved;
  DTensor result(MakeIntrusive<DTensorImpl>(there, layout, moved.type(), moved.ToLocal()));
  result.impl()->ShareWrites(*moved.impl());
  return result;
}

DTensor BringTo(const DTensor& source, const IntrusivePtr<MeshContext>& target,
                absl::FunctionRef<Layout(int ndim)> layout_of) {
  const IntrusivePtr<MeshContext>& from = source.context();
  RankState& state = from->state();
  const bool is_present = from->is_member();
  if (!is_present && !target->is_member()) {
    DTensor absent = DTensor::Absent(target);
    absent.impl()->node = source.impl()->node;  // what led to it, leads to this
    absent.impl()->output = source.impl()->output;
    return absent;
  }
  const Told told = Tell(state, from->mesh(), target->mesh(),
                         Describe(source, source.requires_grad() && state.grad_enabled()));
  const MeshTransferEnds ends = {from->mesh(), told.layout, target->mesh(), layout_of(told.type.ndim()),
                                 told.type};
  DTensor result = RunTransfer(ends, is_present ? source : DTensor(), target->is_member() ? target : nullptr);
  if (!result.defined()) result = DTensor::Absent(target);
  if (told.wants_gradient) SetHistory(source, told.layout, result);
  return result;
}

}  // namespace weft
