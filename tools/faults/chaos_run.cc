#include "tools/faults/chaos_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "tools/faults/clocks.h"
#include "tools/faults/job.h"
#include "tools/faults/processes.h"
#include "tools/faults/storage.h"

namespace weft {
namespace {

using Clock = ChaosJob::Clock;
using std::chrono::milliseconds;

// Saves after the step of the last fault, which may be for one of them.
constexpr int64_t kLastSaves = 10;
constexpr milliseconds kLook{2};

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void SleepFor(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// What a safetensors file holds, but for the texts in it, which name files: the header as JSON, and the elements.
struct SavedState {
  nlohmann::json tensors;
  std::string elements;

  bool operator==(const SavedState&) const = default;
};

std::optional<SavedState> ReadState(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  uint64_t header = 0;
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header > bytes.size() - sizeof(header)) return std::nullopt;
  SavedState state = {.tensors = nlohmann::json::parse(bytes.substr(sizeof(header), header), nullptr, false),
                      .elements = bytes.substr(sizeof(header) + header)};
  if (!state.tensors.is_object()) return std::nullopt;
  state.tensors.erase("__metadata__");
  return state;
}

bool HitsARank(Fault fault) {
  return fault == Fault::kRank || fault == Fault::kStop || fault == Fault::kFlip || fault == Fault::kClock;
}

// The job that is hurt, and the one that is not.
class ChaosRun {
 public:
  ChaosRun(const ChaosOptions& options, const std::function<void(const std::string&)>& say)
      : options_(options), say_(say), plan_(PlanFaults(options.plan)) {
    if (Plans(Fault::kDisk)) disk_.emplace(Checkpoints());
    if (Plans(Fault::kClock)) clocks_.emplace(options.folder, options.libfaketime, options.train_gpt);
  }

  ChaosReport Run() {
    const std::vector<std::string> names_before = SharedMemoryNames();
    report_.planned = static_cast<int>(plan_.size());
    RunInPeace();
    job_.emplace(Command("hurt"), LogOf("hurt"));
    job_->Start();
    for (size_t i = 0; i < plan_.size(); ++i) {
      Hurt(plan_[i]);
      // The next one comes before the ranks have made a step again.
      if (i + 1 < plan_.size() && plan_[i + 1].moment == Moment::kRestart) continue;
      AwaitStep();
    }
    AwaitEnd();
    const std::optional<SavedState> hurt = ReadState(Saved("hurt"));
    report_.equal = hurt.has_value() && hurt == ReadState(Saved("calm"));
    std::sort(seconds_.begin(), seconds_.end());
    if (!seconds_.empty()) {
      report_.median_s = seconds_[seconds_.size() / 2];
      report_.worst_s = seconds_.back();
    }
    CountWhatIsLeft(names_before);
    return report_;
  }

 private:
  bool Plans(Fault fault) const {
    return absl::c_any_of(plan_, [fault](const PlannedFault& planned) { return planned.fault == fault; });
  }
  std::string RunId(const std::string& name) const { return absl::StrCat("chaos-", getpid(), "-", name); }
  std::string LogOf(const std::string& name) const {
    return absl::StrCat(options_.folder, "/", name, ".log");
  }
  std::string Saved(const std::string& name) const {
    return absl::StrCat(options_.folder, "/", name, ".safetensors");
  }
  std::string Checkpoints() const { return absl::StrCat(options_.folder, "/hurt"); }

  std::vector<std::string> Command(const std::string& name) const {
    std::vector<std::string> command = {options_.weft_run, absl::StrCat("--rdzv-id=", RunId(name)),
                                        absl::StrCat("--nproc-per-node=", options_.plan.num_ranks),
                                        absl::StrCat("--max-restarts=", options_.max_restarts),
                                        clocks_ ? clocks_->program() : options_.train_gpt};
    absl::c_copy(options_.train_flags, std::back_inserter(command));
    absl::c_copy(std::vector<std::string>{absl::StrCat("--steps=", plan_.back().step +
                                                                       kLastSaves * options_.save_every + 1),
                                          absl::StrCat("--checkpoint_dir=", options_.folder, "/", name),
                                          absl::StrCat("--save_every=", options_.save_every),
                                          absl::StrCat("--save=", Saved(name)), "--log_format=json"},
                 std::back_inserter(command));
    return command;
  }

  void RunInPeace() {
    ChaosJob calm(Command("calm"), LogOf("calm"));
    const Clock::time_point begin = Clock::now();
    calm.Start();
    std::optional<Clock::time_point> first;
    while (calm.IsRunning()) {
      calm.Pump(milliseconds(20));
      if (!first && calm.num_lines() > 0) first = calm.last_line();
    }
    if (calm.exit_code() != 0 || calm.num_lines() < 2) {
      Throw(absl::StatusCode::kFailedPrecondition, "without any fault the job ends with exit code ",
            calm.exit_code(), " after ", calm.num_lines(), " steps: see ", LogOf("calm"));
    }
    start_s_ = std::chrono::duration<double>(*first - begin).count();
    step_s_ = std::chrono::duration<double>(calm.last_line() - *first).count() /
              static_cast<double>(calm.num_lines() - 1);
    say_(absl::StrFormat("in peace: %d steps of %.0f ms, the first %.1f s after the start", calm.num_lines(),
                         1000 * step_s_, start_s_));
  }

  // What is being written, and what a killed rank has left there until the next start.
  std::vector<std::string> TemporaryNames() const {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(Checkpoints(), error)) {
      const std::string name = entry.path().filename().string();
      if (absl::EndsWith(name, ".tmp")) names.push_back(name);
    }
    return names;
  }

  void Hurt(const PlannedFault& fault) {
    AwaitMoment(fault);
    if (!job_->IsRunning()) return;  // it has come to its end before
    job_->Pump(milliseconds(0));
    const bool in_restart = fault.moment == Moment::kRestart && job_->num_lines() == lines_before_;
    if (!in_restart && num_unanswered_ > 0) AwaitStep();  // the restart was faster
    ++report_.kills;
    ++num_unanswered_;
    report_.in_restart += in_restart ? 1 : 0;
    say_(absl::StrFormat(
        "fault %d of %d: %s%s at step %d%s", report_.kills, plan_.size(), std::string(FaultName(fault.fault)),
        HitsARank(fault.fault) ? absl::StrCat(" ", fault.rank) : std::string(), job_->last_step(),
        in_restart                      ? ", while it started again"
        : fault.moment == Moment::kSave ? ", in a save"
                                        : ""));
    Strike(fault);
  }

  void AwaitMoment(const PlannedFault& fault) {
    if (fault.fault == Fault::kFlip) {  // there must be an older one to go on from
      AwaitOrThrow([&] { return WholeSteps(Checkpoints()).size() >= 2; }, "save two steps by step",
                   fault.step);
    }
    if (fault.moment == Moment::kRestart) {
      AwaitRanks();
      SleepFor(fault.delay * start_s_ / 2);
      return;
    }
    AwaitOrThrow([&] { return job_->last_step() >= fault.step; }, "make step", fault.step);
    AwaitRanks();
    if (fault.moment == Moment::kStep) {
      SleepFor(fault.delay * step_s_);
      return;
    }
    const std::vector<std::string> before = TemporaryNames();
    const auto is_saving = [&] {
      const std::vector<std::string> now = TemporaryNames();
      return !now.empty() && now != before;
    };
    // How long a save lasts is not known: what comes too late for one comes earlier in the next.
    for (double longest = 0.02;; longest /= 2) {
      AwaitOrThrow(is_saving, "save after step", job_->last_step(), milliseconds(0));
      SleepFor(fault.delay * longest);
      if (is_saving()) break;
      if (!job_->IsRunning()) return;  // the job has come to its end meanwhile
    }
    ++report_.in_save;
  }

  // All ranks are there, also those of a job that has to be started again.
  void AwaitRanks() {
    const auto all_are_there = [&] {
      ranks_ = RanksOf(RunId("hurt"));
      return static_cast<int>(ranks_.size()) == options_.plan.num_ranks;
    };
    AwaitOrThrow(all_are_there, "start ranks:", options_.plan.num_ranks, kLook);
  }

  void Strike(const PlannedFault& fault) {
    hurt_.clear();
    for (const auto& [rank, pid] : ranks_) hurt_.push_back(pid);
    lines_before_ = job_->num_lines();
    struck_ = Clock::now();
    switch (fault.fault) {
      case Fault::kRank:
      case Fault::kStop:
        kill(ranks_.at(fault.rank), fault.fault == Fault::kRank ? SIGKILL : SIGSTOP);
        break;
      case Fault::kAgent:
      case Fault::kBoth:
        for (const pid_t agent : ChildrenOf(job_->pid())) kill(agent, SIGKILL);
        if (fault.fault == Fault::kBoth) kill(job_->pid(), SIGKILL);
        break;
      case Fault::kGuard:
        kill(job_->pid(), SIGKILL);
        break;
      case Fault::kDisk:
        disk_->Fill();
        break;
      case Fault::kFlip:
        kill(ranks_.at(fault.rank), SIGKILL);
        FlipBit(WholeSteps(Checkpoints()).front(), fault.delay);
        break;
      case Fault::kClock:
        clocks_->Jump(fault.rank, 2 * fault.delay - 1);
        return;
    }
    // No rank of that life stays, and nobody starts another life of the job before; what it had written before its end is
    // no answer.
    while (!AwaitGone(hurt_, milliseconds(0))) {
      job_->Pump(kLook);
      // A save that was all but written removes an old step, and there would be room for the next.
      if (fault.fault == Fault::kDisk) disk_->Fill();
      if (SecondsSince(struck_) < static_cast<double>(options_.patience.count())) continue;
      Throw(absl::StatusCode::kDeadlineExceeded, "ranks live on, ", options_.patience.count(),
            " s after a fault: see ", LogOf("hurt"));
    }
    job_->Pump(milliseconds(0));
    lines_before_ = job_->num_lines();
    if (fault.fault != Fault::kDisk) return;
    disk_->Free();
    struck_ = Clock::now();  // the failed save was still to come
  }

  // A step of the next life.
  void AwaitStep() {
    // A line that the agent had still to pass on is of the life before.
    AwaitRanks();
    job_->Pump(milliseconds(0));
    lines_before_ = job_->num_lines();
    AwaitOrThrow([&] { return job_->num_lines() > lines_before_ || IsAtItsEnd(); }, "make a step after",
                 job_->last_step());
    seconds_.push_back(std::chrono::duration<double>(job_->last_line() - struck_).count());
    say_(absl::StrFormat("  step %d, %.2f s later", job_->last_step(), seconds_.back()));
    report_.recovered += num_unanswered_;
    num_unanswered_ = 0;
  }

  bool IsAtItsEnd() { return !job_->IsRunning() && job_->exit_code() == 0; }

  void AwaitEnd() {
    AwaitOrThrow([&] { return IsAtItsEnd(); }, "come to its end after step", job_->last_step());
  }

  // Pumps until it is so; starts the job again if it has ended badly.
  template <class Condition>
  void AwaitOrThrow(const Condition& is_so, const std::string& what, int64_t number,
                    milliseconds look = milliseconds(20)) {
    const Clock::time_point begin = Clock::now();
    int64_t lines = job_->num_lines();
    Clock::time_point alive = begin;
    while (!is_so()) {
      job_->Pump(look);
      if (!job_->IsRunning()) {
        if (job_->exit_code() == 0) return;
        job_->Start();
      }
      if (job_->num_lines() != lines) alive = Clock::now();
      lines = job_->num_lines();
      if (SecondsSince(alive) < static_cast<double>(options_.patience.count())) continue;
      Throw(absl::StatusCode::kDeadlineExceeded, "the job did not ", what, " ", number, " within ",
            options_.patience.count(), " s: see ", LogOf("hurt"));
    }
  }

  void CountWhatIsLeft(const std::vector<std::string>& names_before) {
    std::vector<std::string> left;
    for (const std::string& name : {RunId("calm"), RunId("hurt")}) {
      const std::vector<pid_t> processes = ProcessesOf(name);
      AwaitGone(processes, milliseconds(1000));
      for (const pid_t pid : ProcessesOf(name)) left.push_back(absl::StrCat("process ", pid));
    }
    for (const std::string& name : SharedMemoryNames()) {
      if (!absl::c_linear_search(names_before, name)) left.push_back(absl::StrCat("/dev/shm/", name));
    }
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(options_.folder, error)) {
      if (absl::StrContains(entry.path().filename().string(), ".tmp")) left.push_back(entry.path().string());
    }
    for (const auto& entry : std::filesystem::directory_iterator(Checkpoints(), error)) {
      const bool is_step = std::filesystem::exists(entry.path() / "manifest.json") &&
                           !absl::EndsWith(entry.path().string(), ".tmp");
      if (!is_step && entry.path().filename() != "latest") left.push_back(entry.path().string());
    }
    for (const std::string& what : left) say_(absl::StrCat("left behind: ", what));
    report_.left_behind = static_cast<int>(left.size());
  }

  const ChaosOptions& options_;
  const std::function<void(const std::string&)>& say_;
  const std::vector<PlannedFault> plan_;
  ChaosReport report_;
  std::optional<SmallDisk> disk_;      // the checkpoints', if it is to be full
  std::optional<FalseClocks> clocks_;  // the ranks', if they are to jump
  std::optional<ChaosJob> job_;
  double start_s_ = 1;  // from the start of a job to its first step
  double step_s_ = 0.1;
  std::map<int, pid_t> ranks_;
  std::vector<pid_t> hurt_;  // the ranks of the life that a fault has hit
  Clock::time_point struck_;
  int64_t lines_before_ = 0;
  int num_unanswered_ = 0;  // faults since the last step
  std::vector<double> seconds_;
};

}  // namespace

std::string ChaosReport::ToJson() const {
  const auto rounded = [](double seconds) { return std::round(1000 * seconds) / 1000; };
  return nlohmann::ordered_json{{"kills", kills},
                                {"recovered", recovered},
                                {"equal", equal},
                                {"median_s", rounded(median_s)},
                                {"worst_s", rounded(worst_s)},
                                {"left_behind", left_behind},
                                {"in_save", in_save},
                                {"in_restart", in_restart}}
      .dump();
}

ChaosReport RunChaos(const ChaosOptions& options, const std::function<void(const std::string&)>& say) {
  return ChaosRun(options, say).Run();
}

}  // namespace weft
