#include "dtensor/redistribution/move_program.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/queued_communicator.h"
#include "runtime/comm/queued_work.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

constexpr uint32_t kFnvPrime = 16777619u;  // FNV-1a, by words

template <class From, class To>
void Append(From&& works, To* to) {
  if (works.empty()) return;
  to->insert(to->end(), std::make_move_iterator(works.begin()), std::make_move_iterator(works.end()));
  works.clear();
}

}  // namespace

// How far a move has been prepared.
struct MoveProgram::Progress {
  Tensor* current = nullptr;       // in the end its result
  size_t next = 0;                 // its step
  std::vector<LocalWork> waiting;  // to be run before its next collective, or at the end
};

MoveProgram::MoveProgram(MeshContext& context, Lane lane, std::vector<Move> moves)
    : context_(context),
      lane_(lane),
      tag_(context.state().tag()),
      tracer_(context.world().tracer()),
      rank_(context.world().rank()) {
  std::vector<Progress> progress(moves.size());
  results_.reserve(moves.size());
  for (size_t i = 0; i < moves.size(); ++i) {
    results_.push_back(moves[i].local);
    progress[i].current = &results_[i];
  }
  bool more = true;
  while (more) {
    more = false;
    const size_t round_begin = stages_.size();
    for (size_t i = 0; i < moves.size(); ++i) {
      if (moves[i].lowered == nullptr || progress[i].next == moves[i].lowered->steps.size()) continue;
      Advance(moves[i], progress[i], {.begin = round_begin, .most_parts = moves.size() - i});
      more = true;
    }
  }
  Stage last;
  lowered_.reserve(moves.size());
  for (size_t i = 0; i < moves.size(); ++i) {
    Finish(moves[i], progress[i], &last.before);
    lowered_.push_back(std::move(moves[i].lowered));
  }
  if (!last.before.empty()) stages_.push_back(std::move(last));
}

// Prepares the move's steps up to its next collective.
void MoveProgram::Advance(const Move& move, Progress& progress, const Round& round) {
  const std::vector<LoweredStep>& steps = move.lowered->steps;
  const Tensor anywhere;
  while (progress.next < steps.size()) {
    const LoweredStep& step = steps[progress.next++];
    const Tensor& into = progress.next == steps.size() ? move.into : anywhere;
    PreparedStep prepared = PrepareStep(step, *progress.current, into, context_.allocator());
    *progress.current = prepared.result;
    if (!Communicates(step.kind)) {
      Append(std::move(prepared.before), &progress.waiting);
      continue;
    }
    Stage& stage = StageFor(step, prepared.result.dtype(), round);
    Append(std::move(progress.waiting), &stage.before);
    Append(std::move(prepared.before), &stage.before);
    Append(std::move(prepared.after), &stage.after);
    if (move.subject != 0) stage.subject = (stage.subject ^ move.subject) * kFnvPrime;
    if (Merges(step.kind)) {
      stage.parts.push_back(PartOf(step, std::move(prepared)));
    } else {
      stage.alone = std::make_unique<PreparedStep>(std::move(prepared));
    }
    return;
  }
}

// The stage of the round that the step may join, or a new one.
MoveProgram::Stage& MoveProgram::StageFor(const LoweredStep& step, DType dtype, const Round& round) {
  for (size_t i = round.begin; i < stages_.size() && Merges(step.kind); ++i) {
    const LoweredStep& first = *stages_[i].step;
    const bool same = first.kind == step.kind && first.axes == step.axes && first.op == step.op &&
                      stages_[i].parts[0].output.dtype() == dtype;
    if (same) return stages_[i];
  }
  Stage stage;
  stage.step = &step;
  stage.group = context_.SharedGroup(step.axes, lane_);
  if (Merges(step.kind)) stage.parts.reserve(round.most_parts);
  stages_.push_back(std::move(stage));
  return stages_.back();
}

// The result where it is wanted, and never a view that keeps a larger buffer of an earlier step alive.
void MoveProgram::Finish(const Move& move, Progress& progress, LocalWorks* works) {
  Append(std::move(progress.waiting), works);
  const bool moved = move.lowered != nullptr && !move.lowered->steps.empty();
  const bool is_view = moved && move.lowered->steps.back().kind == StepKind::kSlice;
  const bool keeps_more =
      is_view && !move.into.defined() && progress.current->buffer() != move.local.buffer();
  const bool must_copy = keeps_more || (!moved && move.into.defined());
  if (!must_copy) return;
  const Tensor& from = *progress.current;
  Tensor to =
      move.into.defined() ? move.into : Tensor::Empty(context_.allocator(), from.dtype(), from.shape());
  works->push_back({.from = from, .to = to});
  *progress.current = std::move(to);
}

Work MoveProgram::IssueCollective(const Stage& stage, bool async, Worker* worker) const {
  const CommOptions options = {.async = async, .tag = tag_, .worker = worker, .subject = stage.subject};
  if (stage.alone != nullptr) return IssueStep(*stage.group, *stage.step, *stage.alone, options);
  return IssueParts(*stage.group, *stage.step, stage.parts, options);
}

void MoveProgram::Run(const MoveProgram& program) {
  for (const Stage& stage : program.stages_) {
    const absl::string_view name = stage.step == nullptr ? "copy" : StepKindName(stage.step->kind);
    const Span span(program.tracer_, program.rank_, "comm", name, static_cast<int>(program.lane_));
    RunLocalWorks(stage.before);
    if (stage.step != nullptr) program.IssueCollective(stage, /*async=*/false, nullptr).Wait();
    RunLocalWorks(stage.after);
  }
}

std::vector<Work> MoveProgram::Issue(std::shared_ptr<const MoveProgram> program, Worker& worker) {
  std::vector<Work> works;
  Tracer* const tracer = program->tracer_;
  for (const Stage& stage : program->stages_) {
    const auto begun_ns = tracer != nullptr ? std::make_shared<int64_t>(0) : nullptr;
    if (tracer != nullptr) worker.Submit([=] { *begun_ns = tracer->Now(); });
    if (!stage.before.empty())
      works.push_back(worker.Submit([program, &stage] { RunLocalWorks(stage.before); }));
    if (stage.step != nullptr) works.push_back(program->IssueCollective(stage, /*async=*/true, &worker));
    if (!stage.after.empty())
      works.push_back(worker.Submit([program, &stage] { RunLocalWorks(stage.after); }));
    if (tracer != nullptr && stage.step != nullptr) {
      // Waited for too, so that a span ends before what its reader does next.
      works.push_back(worker.Submit([program, &stage, begun_ns] {
        program->tracer_->Add(program->rank_, "comm", StepKindName(stage.step->kind), *begun_ns,
                              program->tracer_->Now(), static_cast<int>(program->lane_));
      }));
    }
  }
  return works;
}

bool MoveProgram::communicates() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const Stage& stage) { return stage.step != nullptr; });
}

bool MoveProgram::runs_on_host() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const Stage& stage) { return stage.step != nullptr && RunsOnHost(*stage.group); });
}

Work MoveProgram::IssueFromHost(std::shared_ptr<const MoveProgram> program, Worker& worker) {
  const std::vector<Stage>& stages = program->stages_;
  const auto is_last = [](const Stage& stage) { return stage.step != nullptr; };
  const size_t last = stages.rend() - std::find_if(stages.rbegin(), stages.rend(), is_last) - 1;
  for (size_t i = 0; i < last; ++i) {
    RunLocalWorks(stages[i].before);
    program->IssueCollective(stages[i], /*async=*/false, nullptr).Wait();
    RunLocalWorks(stages[i].after);
  }
  RunLocalWorks(stages[last].before);
  const Work work = program->IssueCollective(stages[last], /*async=*/true, &worker);
  return work.Then([program, last] {
    RunLocalWorks(program->stages_[last].after);
    for (size_t i = last + 1; i < program->stages_.size(); ++i) RunLocalWorks(program->stages_[i].before);
  });
}

Work MoveProgram::IssueToQueue(std::shared_ptr<const MoveProgram> program, DeviceQueue& queue,
                               bool follows_rank, absl::Span<const Work> before) {
  std::vector<Work> works(before.begin(), before.end());
  QueueScope scope(queue, follows_rank);
  for (const Work& work : before) work.WaitOnWorker();
  for (const Stage& stage : program->stages_) {
    RunLocalWorks(stage.before);
    if (stage.step != nullptr) {
      works.push_back(program->IssueCollective(stage, /*async=*/true, nullptr));
      works.back().WaitOnWorker();
    }
    RunLocalWorks(stage.after);
  }
  return MakeQueuedWork(scope.End({.on_device = std::move(program)}), std::move(works));
}

}  // namespace weft
