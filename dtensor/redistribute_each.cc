#include "dtensor/redistribute_each.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "dtensor/redistribution/move_program.h"
#include "dtensor/redistribution/pending_moves.h"
#include "dtensor/redistribution/redistribute.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"

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

}  // namespace

std::vector<DTensor> RedistributeEach(absl::Span<const EachMove> moves, Lane lane) {
  if (moves.empty()) return {};
  WEFT_REQUIRE(moves[0].source.defined(), "RedistributeEach: a source is undefined (default-constructed)");
  MeshContext& context = *moves[0].source->context;
  const DeviceType device = context.allocator()->device().type;
  const bool waits = lane == Lane::kInline || device == DeviceType::kMeta;
  const bool on_worker = !waits && device == DeviceType::kCpu;
  std::vector<MoveProgram::Move> parts;
  parts.reserve(moves.size());
  PendingMoves::Lanes before;  // of other calls, whose results are moved on
  for (const EachMove& move : moves) {
    CheckMove(move, context);
    const DTensorImpl& source = *move.source.impl();
    const bool chains = on_worker && source.is_pending() && !source.pending()->Test();
    if (chains) AppendLanes(source, &before);
    parts.push_back({
        .local = chains ? source.piece() : source.Local(),
        .lowered = nullptr,
        .into = move.into,
        .subject = move.subject,
    });
    if (source.layout != move.to) {
      parts.back().lowered = LowerCached(context, source.type, source.layout, move.to);
    }
  }
  auto program = std::make_shared<const MoveProgram>(context, waits ? Lane::kInline : lane, std::move(parts));
  const std::vector<Tensor> results = program->results();
  IntrusivePtr<PendingMoves> pending;
  if (waits) {
    MoveProgram::Run(*program);
  } else if (on_worker) {
    pending = IssueToWorker(context.state(), lane, std::exchange(program, nullptr), std::move(before));
  } else {
    std::function<void()> finish;
    std::vector<Work> works = MoveProgram::IssueToStreams(std::exchange(program, nullptr), &finish);
    if (!works.empty()) {
      pending = MakeIntrusive<PendingMoves>(context.state(), LaneWorks{.works = std::move(works)},
                                            PendingMoves::Lanes{}, std::move(finish));
    }
  }
  std::vector<DTensor> moved;
  moved.reserve(moves.size());
  for (size_t i = 0; i < moves.size(); ++i) {
    const DTensorImpl& source = *moves[i].source.impl();
    moved.push_back(DTensor(
        MakeIntrusive<DTensorImpl>(moves[i].source->context, moves[i].to, source.type, results[i], pending)));
    moved.back().impl()->ShareWrites(source);
    moved.back().impl()->ShareOrigin(source);
  }
  return moved;
}

}  // namespace weft
