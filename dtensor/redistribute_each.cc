#include "dtensor/redistribute_each.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "dtensor/redistribution/move_program.h"
#include "dtensor/redistribution/pending_moves.h"
#include "dtensor/redistribution/redistribute.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"
#include "runtime/device/device_queue.h"

namespace weft {
namespace {

void CheckMove(const EachMove& move, const MeshContext& context) {
  WEFT_REQUIRE(move.source.defined(), "RedistributeEach: a source is undefined (default-constructed)");
  const DTensorImpl& source = *move.source.impl();
  WEFT_REQUIRE(source.context->mesh() == context.mesh(),
               "RedistributeEach: sources lie on different meshes: ", context.mesh().ToString(), " and ",
               source.context->mesh().ToString());
  WEFT_REQUIRE(move.to.ndim() == source.type.ndim() && move.to.num_axes() == context.mesh().num_axes(),
               "RedistributeEach: layout ", move.to.ToString(), " has ", move.to.ndim(), " dims and ",
               move.to.num_axes(), " axes; the source is ", source.type.ToString(), " on mesh ",
               context.mesh().ToString());
  if (!move.into.defined()) return;
  const Shape shape = LocalBox(source.type.shape, move.to, context.mesh(), context.coordinate()).shape;
  WEFT_REQUIRE(
      move.into.dtype() == source.type.dtype && move.into.shape() == shape && move.into.IsContiguous(),
      "RedistributeEach: the result's piece is ", TypeString(source.type.dtype, shape),
      ", contiguous; it cannot go into ", move.into.TypeString(),
      move.into.IsContiguous() ? "" : ", which is not contiguous");
}

// What fills a source that is still under way, to be waited for by the lane that moves it on. The source's own lane stays
// though it has just ended: its error is theirs who move the source on.
void AppendLanes(const DTensorImpl& source, PendingMoves::Lanes* lanes) {
  const PendingMoves::Lanes& of_source = source.pending()->lanes();
  for (const std::shared_ptr<const LaneWorks>& lane : of_source) {
    const bool is_own = lane == of_source.back();
    const bool has_ended = !is_own && (lane->works.empty() || lane->works.back().Test());
    const bool is_known = std::find(lanes->begin(), lanes->end(), lane) != lanes->end();
    if (!has_ended && !is_known) lanes->push_back(lane);
  }
}

// The lane's worker runs `program` behind what fills its sources.
IntrusivePtr<PendingMoves> IssueToWorker(RankState& state, Lane lane,
                                         std::shared_ptr<const MoveProgram> program,
                                         PendingMoves::Lanes before) {
  Worker& worker = state.LaneWorker(lane);
  LaneWorks own = {.worker = &worker};
  if (!before.empty()) {
    own.works.push_back(worker.Submit([before] {
      for (const auto& lane : before) {
        for (const Work& work : lane->works) work.WaitOnWorker();
      }
    }));
  }
  for (Work& work : MoveProgram::Issue(std::move(program), worker)) own.works.push_back(std::move(work));
  return MakeIntrusive<PendingMoves>(state, std::move(own), std::move(before));
}

// The rank runs `program` in its own order, and the lane's worker the last collective of it, through the host.
IntrusivePtr<PendingMoves> IssueFromHost(RankState& state, Lane lane,
                                         std::shared_ptr<const MoveProgram> program,
                                         absl::Span<const EachMove> moves) {
  for (const EachMove& move : moves) move.source.impl()->Local();
  Worker& worker = state.LaneWorker(lane);
  const Work work = MoveProgram::IssueFromHost(std::move(program), worker);
  return MakeIntrusive<PendingMoves>(state, LaneWorks{.worker = &worker, .works = {work}});
}

// What the moves of a call read and write, as far as it says whether a lane's queue has to wait for the rank's own stream.
bool FollowsRank(absl::Span<const EachMove> moves) {
  return std::any_of(moves.begin(), moves.end(), [](const EachMove& move) {
    const DTensorImpl& source = *move.source.impl();
    const bool writes_elsewhere =
        move.into.defined() && move.into.buffer() != source.piece().buffer();  // which the rank may still use
    return !source.is_pending() || writes_elsewhere;
  });
}

// The lane's queue of the device runs `program` behind what fills its sources. `allocates`: it writes to new memory, whose
// last owner's work is the rank's. Null where the rank has done all there is to do.
IntrusivePtr<PendingMoves> IssueToQueue(MeshContext& context, Lane lane,
                                        std::shared_ptr<const MoveProgram> program,
                                        absl::Span<const EachMove> moves, bool allocates) {
  std::vector<Work> before;
  std::vector<const PendingMoves*> known;
  for (const EachMove& move : moves) {
    const PendingMoves* const pending = move.source.impl()->pending().get();
    if (pending == nullptr || std::find(known.begin(), known.end(), pending) != known.end()) continue;
    known.push_back(pending);
    before.insert(before.end(), pending->works().begin(), pending->works().end());
  }
  if (before.empty() && !program->communicates()) {
    MoveProgram::Run(*program);
    return {};
  }
  DeviceQueue& queue = DeviceQueueOf(*context.allocator(), kLaneQueue + static_cast<int>(lane));
  const Work work =
      MoveProgram::IssueToQueue(std::move(program), queue, allocates || FollowsRank(moves), before);
  return MakeIntrusive<PendingMoves>(context.state(), LaneWorks{.works = {work}});
}

bool IsOnHost(const EachMove& move) { return move.source.defined() && move.source->context->is_host_side(); }

// The moves of each memory in a call of their own: they have other allocators, and beside a GPU other communicators and lanes.
std::vector<DTensor> RedistributeInEachMemory(absl::Span<const EachMove> moves, Lane lane) {
  std::vector<DTensor> moved(moves.size());
  for (const bool on_host : {false, true}) {
    std::vector<EachMove> some;
    std::vector<size_t> places;
    for (size_t i = 0; i < moves.size(); ++i) {
      if (IsOnHost(moves[i]) != on_host) continue;
      some.push_back(moves[i]);
      places.push_back(i);
    }
    std::vector<DTensor> results = RedistributeEach(some, lane);
    for (size_t i = 0; i < places.size(); ++i) moved[places[i]] = std::move(results[i]);
  }
  return moved;
}

}  // namespace

std::vector<DTensor> RedistributeEach(absl::Span<const EachMove> moves, Lane lane) {
  if (moves.empty()) return {};
  WEFT_REQUIRE(moves[0].source.defined(), "RedistributeEach: a source is undefined (default-constructed)");
  const bool on_host = IsOnHost(moves[0]);
  const bool is_mixed = std::any_of(moves.begin() + 1, moves.end(),
                                    [&](const EachMove& move) { return IsOnHost(move) != on_host; });
  if (is_mixed) return RedistributeInEachMemory(moves, lane);
  MeshContext& context = *moves[0].source->context;
  const DeviceType device = context.allocator()->device().type;
  const bool waits = lane == Lane::kInline || device == DeviceType::kMeta;
  const bool on_worker = !waits && device == DeviceType::kCpu;
  const bool on_queue = !waits && !on_worker;
  const int64_t allocations_before = on_queue ? context.allocator()->stats().num_allocations : 0;
  std::vector<MoveProgram::Move> parts;
  parts.reserve(moves.size());
  PendingMoves::Lanes before;  // of other calls, whose results are moved on
  for (const EachMove& move : moves) {
    CheckMove(move, context);
    const DTensorImpl& source = *move.source.impl();
    const bool by_worker = source.is_pending() && source.pending()->lanes().back()->worker != nullptr;
    const bool chains = on_worker && by_worker && !source.pending()->Test();
    if (chains) AppendLanes(source, &before);
    MoveProgram::Move& part = parts.emplace_back();
    part.local = chains || (on_queue && !by_worker) ? source.piece() : source.Local();
    part.into = move.into;
    part.subject = move.subject;
    if (source.layout != move.to) {
      part.lowered = LowerCached(context, source.type, source.layout, move.to);
    }
  }
  auto program = std::make_shared<MoveProgram>(context, waits ? Lane::kInline : lane, std::move(parts));
  std::vector<Tensor> results = program->TakeResults();
  IntrusivePtr<PendingMoves> pending;
  if (waits) {
    MoveProgram::Run(*program);
  } else if (on_worker) {
    pending = IssueToWorker(context.state(), lane, std::exchange(program, nullptr), std::move(before));
  } else if (program->runs_on_host()) {
    pending = IssueFromHost(context.state(), lane, std::exchange(program, nullptr), moves);
  } else {
    const bool allocates = context.allocator()->stats().num_allocations != allocations_before;
    pending = IssueToQueue(context, lane, std::exchange(program, nullptr), moves, allocates);
  }
  std::vector<DTensor> moved;
  moved.reserve(moves.size());
  for (size_t i = 0; i < moves.size(); ++i) {
    const DTensorImpl& source = *moves[i].source.impl();
    moved.push_back(DTensor(MakeIntrusive<DTensorImpl>(moves[i].source->context, moves[i].to, source.type,
                                                       std::move(results[i]), pending)));
    moved.back().impl()->ShareWrites(source);
    moved.back().impl()->ShareOrigin(source);
  }
  return moved;
}

}  // namespace weft
