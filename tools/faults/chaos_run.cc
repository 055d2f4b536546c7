#include "tools/faults/chaos_run.h"

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "tools/faults/chaos_places.h"
#include "tools/faults/cluster.h"
#include "tools/faults/equipment.h"
#include "tools/faults/kill_node.h"
#include "tools/faults/leftovers.h"
#include "tools/faults/processes.h"
#include "tools/faults/saved_state.h"
#include "tools/faults/storage.h"

namespace weft {
namespace {

using Clock = ChaosCluster::Clock;
using std::chrono::milliseconds;

// Saves after the step of the last fault, which may be for one of them.
constexpr int64_t kLastSaves = 10;
constexpr int64_t kPausedSteps = 100;  // that ranks may make before anybody misses their paused agent
constexpr milliseconds kLook{2};
constexpr milliseconds kCalmSuspicion{60'000};  // of the job in peace, which a busy machine is not to end
constexpr double kMeetingPart = 16;             // of a start, in the first of which launchers meet
// How much longer than twice the suspicion time a node is frozen, paused or unplugged.
constexpr milliseconds kBeyond{500};

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The job that is hurt, and the one that is not.
class ChaosRun {
 public:
  ChaosRun(const ChaosOptions& options, const std::function<void(const std::string&)>& say)
      : options_(options),
        say_(say),
        places_{options.folder},
        plan_(PlanFaults(options.plan)),
        equipment_({.folder = options.folder,
                    .checkpoints = places_.Checkpoints(),
                    .program = options.train_gpt,
                    .libfaketime = options.libfaketime,
                    .cut_writes = options.cut_writes,
                    .num_nodes = options.num_nodes},
                   say, &plan_) {
    report_.planned = options.plan.count;
    report_.skipped = equipment_.num_skipped;
    std::filesystem::create_directories(places_.Temporary());
  }

  ChaosReport Run() {
    const std::vector<std::string> names_before = SharedMemoryNames();
    RunInPeace();
    job_.emplace(Cluster("hurt"));
    job_->Start();
    for (size_t i = 0; i < plan_.size(); ++i) {
      Hurt(plan_[i]);
      // The next one comes before the ranks have made a step again.
      if (i + 1 < plan_.size() && IsInRestart(plan_[i + 1].moment)) continue;
      AwaitStep();
    }
    AwaitEnd();
    const std::optional<SavedState> hurt = ReadSavedState(places_.Saved("hurt"));
    report_.equal = hurt.has_value() && hurt == ReadSavedState(places_.Saved("calm"));
    times_.Summarize(options_.suspicion_time, say_, &report_);
    equipment_.clocks.reset();  // takes with it what libfaketime has left of processes that were killed
    CountWhatIsLeft(names_before);
    return report_;
  }

 private:
  int64_t NumPlanned(Fault fault) const {
    return absl::c_count_if(plan_, [fault](const PlannedFault& planned) { return planned.fault == fault; });
  }
  std::vector<std::string> Program(const std::string& name) const {
    std::vector<std::string> program = {equipment_.program};
    absl::c_copy(options_.train_flags, std::back_inserter(program));
    const int64_t steps =
        plan_.back().step + kLastSaves * options_.save_every + 1 + kPausedSteps * NumPlanned(Fault::kPause);
    absl::c_copy(std::vector<std::string>{absl::StrCat("--steps=", steps),
                                          absl::StrCat("--checkpoint_dir=", places_.CheckpointsOf(name)),
                                          absl::StrCat("--save_every=", options_.save_every),
                                          absl::StrCat("--save=", places_.Saved(name)), "--log_format=json"},
                 std::back_inserter(program));
    return program;
  }

  // The one in peace has one node and its own suspicion time, whatever the other has.
  ClusterOptions Cluster(const std::string& name) const {
    const bool is_hurt = name == "hurt";
    const int num_nodes = is_hurt ? options_.num_nodes : 1;
    const std::optional<Cables>& cables = equipment_.cables;
    const milliseconds time = is_hurt ? options_.suspicion_time : kCalmSuspicion;
    const std::string suspicion = absl::StrCat("--suspicion_time=", time.count(), "ms");
    ClusterOptions cluster = {
        .weft_run = options_.weft_run,
        .run_id = places_.RunId(name),
        .num_nodes = num_nodes,
        .ranks_per_node = options_.plan.num_ranks / num_nodes,
        .node_flags = {absl::StrCat("--max-restarts=", options_.max_restarts), suspicion},
        .store_folder = "",
        .store_flags = {suspicion, absl::StrCat("--host=", cables ? cables->address() : "127.0.0.1")},
        .cables = is_hurt && cables ? &*cables : nullptr,
        .temporary_folder = places_.Temporary(),
        .program = Program(name),
        .log = places_.LogOf(name)};
    if (is_hurt && (num_nodes > 1 || NumPlanned(Fault::kStore) > 0)) {
      cluster.store_folder = absl::StrCat(options_.folder, "/store");
    }
    return cluster;
  }

  void RunInPeace() {
    ChaosCluster calm(Cluster("calm"));
    const Clock::time_point begin = Clock::now();
    calm.Start();
    std::optional<Clock::time_point> first;
    while (calm.IsRunning()) {
      calm.Pump(milliseconds(20));
      if (!first && calm.num_lines() > 0) first = calm.last_line();
    }
    if (calm.exit_code() != 0 || calm.num_lines() < 2) {
      Throw(absl::StatusCode::kFailedPrecondition, "without any fault the job ends with exit code ",
            calm.exit_code(), " after ", calm.num_lines(), " steps: see ", places_.LogOf("calm"));
    }
    start_s_ = std::chrono::duration<double>(*first - begin).count();
    step_s_ = std::chrono::duration<double>(calm.last_line() - *first).count() /
              static_cast<double>(calm.num_lines() - 1);
    say_(absl::StrFormat("in peace: %d steps of %.0f ms, the first %.1f s after the start", calm.num_lines(),
                         1000 * step_s_, start_s_));
  }

  int NodeOf(const PlannedFault& fault) const {
    return fault.rank * options_.num_nodes / options_.plan.num_ranks;
  }
  std::string Victim(const PlannedFault& fault) const {
    if (HitsARank(fault.fault)) return absl::StrCat(" ", fault.rank);
    if (HitsANode(fault.fault) && options_.num_nodes > 1) return absl::StrCat(" of node ", NodeOf(fault));
    return "";
  }

  void Hurt(const PlannedFault& fault) {
    for (AwaitMoment(fault); !job_->IsRunning(); AwaitMoment(fault)) {
      if (job_->HasEndedWell()) return;  // it has come to its end before
      job_->Revive();                    // it has ended by the fault before, which was seen late
    }
    report_.in_save += fault.moment == Moment::kSave ? 1 : 0;
    job_->Pump(milliseconds(0));
    const bool in_restart = IsInRestart(fault.moment) && job_->num_lines() == lines_before_;
    if (!in_restart && times_.num_waiting() > 0) AwaitStep();  // the restart was faster
    const bool has_ranks = std::ssize(ranks_) == options_.plan.num_ranks;
    ++report_.kills;
    report_.in_restart += in_restart ? 1 : 0;
    say_(absl::StrFormat("fault %d of %d: %s%s at step %d%s", report_.kills, plan_.size(),
                         std::string(FaultName(fault.fault)), Victim(fault), job_->last_step(),
                         in_restart && !has_ranks        ? ", before its ranks were there"
                         : in_restart                    ? ", before it had gone on"
                         : fault.moment == Moment::kSave ? ", in a save"
                                                         : ""));
    Strike(fault);
  }

  void AwaitMoment(const PlannedFault& fault) {
    if (fault.fault == Fault::kStore) {  // one that is away cannot be killed
      AwaitOrThrow([&] { return job_->store()->IsRunning(); }, "get its store back for step", fault.step);
    }
    if (fault.fault == Fault::kFlip) {  // there must be an older one to go on from
      AwaitOrThrow([&] { return WholeSteps(places_.Checkpoints()).size() >= 2; }, "save two steps by step",
                   fault.step);
    }
    if (fault.moment == Moment::kRestart) {
      AwaitRanks();
      job_->PumpFor(fault.delay * start_s_ / 2);
      return;
    }
    if (fault.moment == Moment::kMeeting) return AwaitMeeting(fault.delay);
    AwaitOrThrow([&] { return job_->last_step() >= fault.step; }, "make step", fault.step);
    AwaitRanks();
    if (fault.moment == Moment::kStep) {
      job_->PumpFor(fault.delay * step_s_);
      return;
    }
    const std::vector<std::string> before = TemporaryNames(places_.Checkpoints());
    const auto is_saving = [&] {
      const std::vector<std::string> now = TemporaryNames(places_.Checkpoints());
      return !now.empty() && now != before;
    };
    // How long a save lasts is not known: what comes too late for one comes earlier in the next, and so do all behind it.
    for (;; save_s_ /= 2) {
      AwaitOrThrow(is_saving, "save after step", job_->last_step(), milliseconds(0));
      job_->PumpFor(fault.delay * save_s_);
      if (is_saving() || !job_->IsRunning()) return;
    }
  }

  void AwaitMeeting(double delay) {
    // A launcher may have still to end for the fault before.
    const auto run_for_a_while = [&] {
      if (!job_->HasAllAgents()) return false;
      job_->PumpFor(delay * start_s_ / kMeetingPart);
      return job_->HasAllAgents();
    };
    AwaitOrThrow(run_for_a_while, "run on all its nodes after step", job_->last_step(), kLook);
    ranks_ = RanksOf(places_.RunId("hurt"));
  }

  // All ranks are there, also those of a job that has to be started again.
  void AwaitRanks() {
    const auto all_are_there = [&] {
      ranks_ = RanksOf(places_.RunId("hurt"));
      return static_cast<int>(ranks_.size()) == options_.plan.num_ranks;
    };
    AwaitOrThrow(all_are_there, "start ranks:", options_.plan.num_ranks, kLook);
  }

  void Strike(const PlannedFault& fault) {
    hurt_.clear();
    for (const auto& [rank, pid] : ranks_) hurt_.push_back(pid);
    // Ranks may begin at this moment; and a launcher outlives the process that was killed by a moment.
    if (KillsALauncher(fault.fault)) {
      absl::c_copy(job_->FamiliesHit(fault.fault, NodeOf(fault)), std::back_inserter(hurt_));
    }
    lines_before_ = job_->num_lines();
    last_fault_ = fault.fault;
    const Clock::time_point begin = Clock::now();
    times_.Strike(fault.fault, begin);
    Do(fault);
    // Not before the fault, which is to hit ranks whose writes are being cut.
    if (equipment_.short_writes && fault.fault != Fault::kShort) equipment_.short_writes->End();
    if (!EndsALife(fault.fault, options_.num_nodes)) return;
    // No rank of that life stays, and nobody starts another life of the job before; what it had written before its end is
    // no answer.
    while (!AwaitGone(hurt_, milliseconds(0))) {
      job_->Pump(kLook);
      // A save that was all but written removes an old step, and there would be room for the next.
      if (fault.fault == Fault::kDisk) equipment_.disk->Fill();
      if (SecondsSince(begin) < static_cast<double>(options_.patience.count())) continue;
      Throw(absl::StatusCode::kDeadlineExceeded, "ranks live on, ", options_.patience.count(),
            " s after a fault: see ", places_.LogOf("hurt"));
    }
    job_->Pump(milliseconds(0));
    lines_before_ = job_->num_lines();
    if (fault.fault != Fault::kDisk) return;
    equipment_.disk->Free();
    times_.Postpone(Clock::now());  // the failed save was still to come
  }

  void Do(const PlannedFault& fault) {
    switch (fault.fault) {
      case Fault::kRank:
      case Fault::kStop:
        kill(ranks_.at(fault.rank), fault.fault == Fault::kRank ? SIGKILL : SIGSTOP);
        return;
      case Fault::kAgent:
      case Fault::kGuard:
      case Fault::kBoth:
      case Fault::kHost:
        for (const pid_t guard : job_->GuardsHit(fault.fault, NodeOf(fault))) KillNode(guard, fault.fault);
        return;
      case Fault::kHosts:
        for (const pid_t guard : job_->GuardsHit(fault.fault, NodeOf(fault))) KillNode(guard, Fault::kHost);
        return;
      case Fault::kDisk:
        equipment_.disk->Fill();
        return;
      case Fault::kShort:
        equipment_.short_writes->Begin();
        AwaitOrThrow([&] { return equipment_.short_writes->num_cut() > 0; }, "save after step",
                     job_->last_step());
        times_.Postpone(Clock::now());
        return;
      case Fault::kFlip:
        kill(ranks_.at(fault.rank), SIGKILL);
        FlipBit(WholeSteps(places_.Checkpoints()).front(), fault.delay);
        return;
      case Fault::kClock:
        equipment_.clocks->Jump(fault.rank, 2 * fault.delay - 1);
        return;
      case Fault::kFreeze:
      case Fault::kPause:
      case Fault::kUnplug:
        job_->SendAway(NodeOf(fault), fault.fault, 2 * options_.suspicion_time + kBeyond);
        return;
      case Fault::kStore:
        job_->store()->Kill(milliseconds(static_cast<int64_t>(
            (0.1 + 0.9 * fault.delay) * static_cast<double>(options_.store_away.count()))));
        return;
    }
  }

  // A step of the next life.
  void AwaitStep() {
    if (times_.num_waiting() == 0) return;  // the job had come to its end before the fault
    AwaitStore();
    // A line that the agent had still to pass on is of the life before.
    AwaitRanks();
    job_->Pump(milliseconds(0));
    lines_before_ = job_->num_lines();
    const Clock::time_point there = Clock::now();
    const auto folder_before = LastChangeOf(places_.Checkpoints());
    std::optional<Clock::time_point> met;  // whoever leads looks into the folder then
    const auto has_made_one = [&] {
      if (!met && LastChangeOf(places_.Checkpoints()) != folder_before) met = Clock::now();
      return job_->num_lines() > lines_before_;
    };
    AwaitOrThrow(has_made_one, "make a step after", job_->last_step());
    // A node that was frozen, paused or unplugged is missed until it is back.
    times_.Postpone(job_->back_at());
    // What a job does without its store is no answer to the store's end.
    if (job_->store() != nullptr) times_.Postpone(job_->store()->back_since());
    const Clock::time_point struck = times_.last_strike();
    if (EndsALife(last_fault_, options_.num_nodes) && met && times_.num_waiting() == 1) {
      times_.AddParts({struck, there, *met, job_->last_line()});
    }
    report_.recovered += times_.num_waiting();
    say_(absl::StrFormat("  step %d, %.2f s later", job_->last_step(), times_.Answer(job_->last_line())));
  }

  void AwaitStore() {
    if (job_->store() == nullptr) return;
    AwaitOrThrow([&] { return job_->store()->IsBack(); }, "get its store back after step", job_->last_step());
  }

  void AwaitEnd() {
    AwaitOrThrow([&] { return job_->HasEndedWell(); }, "come to its end after step", job_->last_step());
    while (job_->store() != nullptr && !job_->store()->IsBack()) job_->Pump(kLook);
  }

  // Pumps until it is so, or the job has come to its end; starts again what has ended badly.
  template <class Condition>
  void AwaitOrThrow(const Condition& is_so, const std::string& what, int64_t number,
                    milliseconds look = milliseconds(20)) {
    const Clock::time_point begin = Clock::now();
    int64_t lines = job_->num_lines();
    Clock::time_point alive = begin;
    while (!is_so()) {
      job_->Pump(look);
      if (job_->HasEndedWell()) return;
      job_->Revive();
      if (job_->num_lines() != lines) alive = Clock::now();
      lines = job_->num_lines();
      if (SecondsSince(alive) < static_cast<double>(options_.patience.count())) continue;
      Throw(absl::StatusCode::kDeadlineExceeded, "the job did not ", what, " ", number, " within ",
            options_.patience.count(), " s: see ", places_.LogOf("hurt"));
    }
  }

  void CountWhatIsLeft(const std::vector<std::string>& names_before) {
    std::vector<std::string> left = LeftBy({.run_ids = {places_.RunId("calm"), places_.RunId("hurt")},
                                            .shared_memory_before = names_before,
                                            .folder = options_.folder,
                                            .temporary = places_.Temporary(),
                                            .checkpoints = places_.Checkpoints()});
    if (StoreProcess* const store = job_->store())
      absl::c_move(LeftByStore(*store), std::back_inserter(left));
    for (const std::string& what : left) say_(absl::StrCat("left behind: ", what));
    report_.left_behind = static_cast<int>(left.size());
  }

  const ChaosOptions& options_;
  const std::function<void(const std::string&)>& say_;
  const ChaosPlaces places_;
  std::vector<PlannedFault> plan_;  // without what is skipped
  ChaosReport report_;
  Equipment equipment_;  // it outlives the job
  std::optional<ChaosCluster> job_;
  double start_s_ = 1;  // from the start of a job to its first step
  double step_s_ = 0.1;
  double save_s_ = 0.02;  // of a save, in which faults come
  std::map<int, pid_t> ranks_;
  std::vector<pid_t> hurt_;  // the ranks of the life that a fault has hit
  int64_t lines_before_ = 0;
  Fault last_fault_ = Fault::kRank;
  RecoveryTimes times_;
};

}  // namespace

ChaosReport RunChaos(const ChaosOptions& options, const std::function<void(const std::string&)>& say) {
  WEFT_REQUIRE(options.num_nodes >= 1 && options.plan.num_ranks % options.num_nodes == 0,
               options.plan.num_ranks, " ranks on ", options.num_nodes,
               " nodes: expected as many on each node");
  WEFT_REQUIRE(options.num_nodes > 1 || absl::c_none_of(options.plan.kinds, NeedsNodes),
               "a node is frozen or unplugged that others miss: expected --nodes above 1");
  return ChaosRun(options, say).Run();
}

}  // namespace weft
