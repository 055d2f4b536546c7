#include "tools/launcher/agent.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Without any event: a loop that has missed one must not stand still.
constexpr std::chrono::milliseconds kLongestWait{1000};
// A reader of this program's output that takes nothing for so long gets no more.
constexpr std::chrono::seconds kReaderPatience{60};
constexpr std::chrono::seconds kReaderPatienceAfterSignal{2};
// For the store to take the word that this node leaves, before its workers hear of it.
constexpr std::chrono::milliseconds kTellsFirst{200};

}  // namespace

Agent::Agent(AgentOptions options, Rendezvous* rendezvous, std::shared_ptr<Store> store, Console* console,
             SignalSource* signals)
    : options_(std::move(options)),
      rendezvous_(rendezvous),
      store_(std::move(store)),
      console_(console),
      signals_(signals),
      wishes_(options_.guard) {}

int Agent::Run() {
  const auto end = [this] {
    if (options_.end_server) options_.end_server();
    FlushConsole();
  };
  try {
    const int code = RunGenerations();
    end();
    return code;
  } catch (...) {
    end();
    throw;
  }
}

int Agent::RunGenerations() {
  const auto cancelled = [this] {
    OnSignals(nullptr);
    console_->WriteSome();
    // Whoever was told to stop does not wait for a store that is away or full.
    if (stop_signal_ != 0 && options_.give_up_store) options_.give_up_store();
    return stop_signal_ != 0;
  };
  int code = 0;
  for (;;) {
    std::optional<Assignment> assignment;
    try {
      assignment = rendezvous_->Next(cancelled);
    } catch (const Error&) {
      if (!cancelled()) throw;
    }
    if (!assignment) {
      code = 128 + stop_signal_;
      break;
    }
    const GenerationEnd end = RunGeneration(*assignment);
    code = stop_signal_ != 0 ? 128 + stop_signal_ : end.exit_code;
    if (stop_signal_ == 0) SayWhy(*assignment, end);
    if (stop_signal_ != 0 || !end.restart) break;
  }
  try {
    if (!StoreEnd()) rendezvous_->Leave();
  } catch (const Error&) {
    // The store has gone first: how the job ended is known here.
  }
  return code;
}

GenerationEnd Agent::RunGeneration(const Assignment& assignment) {
  // It was told to stop before it knew that the generation had begun, and the others wait for its workers.
  if (stop_signal_ != 0) {
    Publish(OwnEnd(options_.failure_grace));
    outbox_.Drain();
    return *End();
  }
  // Another node's workers may have failed before this one's start.
  if (const std::optional<GenerationEnd> end = End()) return *end;
  std::optional<WorkerGroup> workers;
  try {
    workers.emplace(options_.workers, assignment, console_);
  } catch (const Error& error) {
    Publish({.kind = GenerationEnd::Kind::kFailed,
             .exit_code = 1,
             .headline = absl::StrCat("on ", options_.workers.host, ": ", error.message())});
    outbox_.Drain();
    return *End();
  }
  bool done = false;
  for (;;) {
    Wait(*workers);
    OnSignals(&*workers);
    workers->Pump();
    console_->WriteSome();
    for (const WorkerExit& exit : workers->Reap()) OnExit(assignment, exit, &*workers);
    if (const std::optional<GenerationEnd> end = End(); end && !workers->stopping()) {
      workers->Stop(SIGTERM, GraceAfter(*end));
    }
    workers->KillIfLate();
    if (!workers->AllEnded()) continue;
    // Whoever was told to stop, and has nothing to save any more, does not wait for a store that is away or full.
    if (stop_signal_ != 0 && options_.give_up_store) options_.give_up_store();
    if (!done && !workers->stopping()) {
      done = true;
      Done();
    }
    if (const std::optional<GenerationEnd> end = End()) {
      workers->Finish();
      outbox_.Drain();
      return *end;
    }
  }
}

void Agent::Wait(const WorkerGroup& workers) {
  std::vector<pollfd> fds = {{signals_->fd(), POLLIN, 0}, {outbox_.event_fd(), POLLIN, 0}};
  // It stays readable once there is an end.
  if (rendezvous_->event_fd() >= 0 && !End()) fds.push_back({rendezvous_->event_fd(), POLLIN, 0});
  workers.AddPollFds(&fds);
  console_->AddPollFds(&fds);
  const std::chrono::milliseconds wait = std::min(kLongestWait, workers.UntilKill().value_or(kLongestWait));
  poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
  outbox_.Clear();
}

void Agent::OnSignals(WorkerGroup* workers) {
  for (const ReceivedSignal& received : signals_->Take()) {
    const int signal = received.number;
    if (signal == SIGCHLD) continue;
    if (!SignalSource::EndsAProgram(signal)) {
      if (workers != nullptr) workers->Signal(signal);
      continue;
    }
    // Without its guard nobody waits, also where the guard's death says what has been said already.
    if (workers != nullptr && stop_signal_ != 0 && !HasGuard()) {
      workers->Stop(signal, options_.failure_grace);
    }
    if (!wishes_.Note(received, StopWishes::Clock::now())) continue;
    const bool second = stop_signal_ != 0;
    if (!second) stop_signal_ = signal;
    if (workers == nullptr) continue;
    const std::chrono::milliseconds grace = HasGuard() ? options_.stop_grace : options_.failure_grace;
    if (!second) {
      // Workers that die of the signal may make those of other nodes fail, which would count if it were told first.
      Publish(OwnEnd(grace));
      outbox_.DrainFor(kTellsFirst);
    }
    // A user that asks twice does not want to wait.
    workers->Stop(signal, second ? std::chrono::milliseconds(0) : grace);
  }
}

bool Agent::HasGuard() const { return getppid() == options_.guard; }

GenerationEnd Agent::OwnEnd(std::chrono::milliseconds grace) const {
  const std::string& host = options_.workers.host;
  // The signal that the guard's death sends is nobody's wish: such a node counts as lost.
  if (!HasGuard()) {
    return {.kind = GenerationEnd::Kind::kLost,
            .restart = true,
            .exit_code = 1,
            .node = options_.workers.node_id,
            .headline = absl::StrCat("node ", host, " was lost: its weft_run was killed")};
  }
  return {.kind = GenerationEnd::Kind::kLeft,
          .restart = true,
          .exit_code = 128 + stop_signal_,
          .node = options_.workers.node_id,
          .headline = absl::StrCat("node ", host, " was told to stop (signal ", stop_signal_, ")"),
          .grace = grace};
}

std::chrono::milliseconds Agent::GraceAfter(const GenerationEnd& end) const {
  // A save needs the ranks of all nodes, so those here get as long for it as the leaving node's.
  if (end.kind == GenerationEnd::Kind::kLeft) return end.grace;
  // Nothing is wrong with a job that grows: its ranks save as after a signal.
  return end.kind == GenerationEnd::Kind::kGrow ? options_.stop_grace : options_.failure_grace;
}

void Agent::OnExit(const Assignment& assignment, const WorkerExit& exit, WorkerGroup* workers) {
  const bool is_first = exit.failed() && !workers->stopping();
  if (is_first) workers->Stop(SIGTERM, options_.failure_grace);
  Announce(assignment, exit);
  if (!is_first) return;
  const FailureReport report = workers->Describe(exit);
  Publish({.kind = GenerationEnd::Kind::kFailed,
           .restart = true,
           .exit_code = exit.ExitCode(),
           .node = options_.workers.node_id,
           .headline = absl::StrCat(exit.What(), " on ", options_.workers.host),
           .report = report.ToString()});
}

void Agent::Announce(const Assignment& assignment, const WorkerExit& exit) {
  if (store_ == nullptr) return;
  const std::string key =
      absl::StrCat(options_.workers.job.run_id, "/", assignment.generation, "/exit/", exit.rank);
  outbox_.Post([this, key, what = exit.What()] {
    if (lost_announcement_ || StoreEnd()) return;
    try {
      store_->Set(key, what);
    } catch (const Error&) {
      // The job has lost its store, which is said once, where it ends for that: in Publish, Done or the rendezvous. No other
      // worker's end waits for it as long.
      lost_announcement_ = true;
    }
  });
}

void Agent::Publish(const GenerationEnd& end) {
  outbox_.Post([this, end] {
    try {
      rendezvous_->Publish(end);
    } catch (const Error& error) {
      GenerationEnd own = end;
      own.restart = false;
      absl::StrAppend(&own.headline, "; and ");
      LoseStore(own, error);
    }
  });
}

void Agent::Done() {
  outbox_.Post([this] {
    try {
      rendezvous_->Done();
    } catch (const Error& error) {
      LoseStore({.kind = GenerationEnd::Kind::kLost, .exit_code = 1}, error);
    }
  });
}

void Agent::LoseStore(GenerationEnd end, const Error& error) {
  if (rendezvous_->End()) return;  // all have agreed on how it ended
  const bool full = error.code() == absl::StatusCode::kResourceExhausted;
  absl::StrAppend(&end.headline,
                  full ? "the job's store is full: " : "the job's store is gone: ", error.message());
  const std::lock_guard<std::mutex> lock(store_end_mutex_);
  store_end_ = std::move(end);
}

std::optional<GenerationEnd> Agent::StoreEnd() {
  const std::lock_guard<std::mutex> lock(store_end_mutex_);
  return store_end_;
}

std::optional<GenerationEnd> Agent::End() {
  const std::optional<GenerationEnd> agreed = rendezvous_->End();
  return agreed ? agreed : StoreEnd();
}

void Agent::SayWhy(const Assignment& assignment, const GenerationEnd& end) {
  if (end.kind == GenerationEnd::Kind::kFinished) return;
  const int restarts = end.saved ? 0 : assignment.restarts;
  if (end.restart) {
    const std::string which =
        !end.IsFailure() ? ""
                         : absl::StrCat(" (restart ", restarts + 1, " of ", options_.workers.job.max_restarts,
                                        end.saved ? " since the last save)" : ")");
    console_->Say(absl::StrCat(end.headline, ": all workers start again", which));
    return;
  }
  const std::string used =
      options_.workers.job.max_restarts > 0
          ? absl::StrCat(" (after ", restarts, " of ", options_.workers.job.max_restarts, " restarts)")
          : "";
  const std::string report = end.report.empty() ? "" : absl::StrCat("\n", end.report);
  console_->Say(absl::StrCat("the job failed", used, ": ", end.headline, report));
}

void Agent::FlushConsole() {
  const auto patience = stop_signal_ != 0 ? kReaderPatienceAfterSignal : kReaderPatience;
  size_t left = console_->num_bytes();
  auto deadline = std::chrono::steady_clock::now() + patience;
  while (!console_->empty() && std::chrono::steady_clock::now() < deadline) {
    std::vector<pollfd> fds = {{signals_->fd(), POLLIN, 0}};
    console_->AddPollFds(&fds);
    poll(fds.data(), fds.size(), static_cast<int>(kLongestWait.count()));
    for (const ReceivedSignal& signal : signals_->Take()) {
      if (SignalSource::EndsAProgram(signal.number) && wishes_.Note(signal, StopWishes::Clock::now())) return;
    }
    console_->WriteSome();
    if (console_->num_bytes() < left) deadline = std::chrono::steady_clock::now() + patience;
    left = console_->num_bytes();
  }
}

}  // namespace weft
