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

}  // namespace

Agent::Agent(AgentOptions options, Rendezvous* rendezvous, std::shared_ptr<Store> store, Console* console,
             SignalSource* signals)
    : options_(std::move(options)),
      rendezvous_(rendezvous),
      store_(std::move(store)),
      console_(console),
      signals_(signals) {}

int Agent::Run() {
  try {
    const int code = RunGenerations();
    FlushConsole();
    return code;
  } catch (...) {
    FlushConsole();
    throw;
  }
}

int Agent::RunGenerations() {
  const auto cancelled = [this] {
    OnSignals(nullptr);
    console_->WriteSome();
    return stop_signal_ != 0;
  };
  int code = 0;
  for (;;) {
    const std::optional<Assignment> assignment = rendezvous_->Next(cancelled);
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
    if (!store_end_) rendezvous_->Leave();
  } catch (const Error&) {
    // The store has gone first: how the job ended is known here.
  }
  return code;
}

GenerationEnd Agent::RunGeneration(const Assignment& assignment) {
  // Another node's workers may have failed before this one's start.
  if (const std::optional<GenerationEnd> end = End()) return *end;
  std::optional<WorkerGroup> workers;
  try {
    workers.emplace(options_.workers, assignment, console_);
  } catch (const Error& error) {
    Publish({.kind = GenerationEnd::Kind::kFailed,
             .exit_code = 1,
             .headline = absl::StrCat("on ", options_.workers.host, ": ", error.message())});
    return *End();
  }
  bool done = false;
  for (;;) {
    Wait(*workers);
    OnSignals(&*workers);
    workers->Pump();
    console_->WriteSome();
    for (const WorkerExit& exit : workers->Reap()) OnExit(assignment, exit, &*workers);
    if (End() && !workers->stopping()) workers->Stop(SIGTERM, options_.failure_grace);
    workers->KillIfLate();
    if (!workers->AllEnded()) continue;
    if (!done && !workers->stopping()) {
      done = true;
      Done();
    }
    if (const std::optional<GenerationEnd> end = End()) {
      workers->Finish();
      return *end;
    }
  }
}

void Agent::Wait(const WorkerGroup& workers) {
  std::vector<pollfd> fds = {{signals_->fd(), POLLIN, 0}};
  // It stays readable once there is an end.
  if (rendezvous_->event_fd() >= 0 && !End()) fds.push_back({rendezvous_->event_fd(), POLLIN, 0});
  workers.AddPollFds(&fds);
  console_->AddPollFds(&fds);
  const std::chrono::milliseconds wait = std::min(kLongestWait, workers.UntilKill().value_or(kLongestWait));
  poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
}

void Agent::OnSignals(WorkerGroup* workers) {
  for (int signal : signals_->Take()) {
    if (signal == SIGCHLD) continue;
    if (!SignalSource::EndsAProgram(signal)) {
      if (workers != nullptr) workers->Signal(signal);
      continue;
    }
    const bool second = stop_signal_ != 0;
    if (!second) stop_signal_ = signal;
    if (workers == nullptr) continue;
    // A user that asks twice does not want to wait.
    const std::chrono::milliseconds grace =
        getppid() == options_.guard ? options_.stop_grace : options_.failure_grace;
    workers->Stop(signal, second ? std::chrono::milliseconds(0) : grace);
    if (second) continue;
    Publish({.kind = GenerationEnd::Kind::kLeft,
             .restart = true,
             .exit_code = 128 + signal,
             .node = options_.workers.node_id,
             .headline =
                 absl::StrCat("node ", options_.workers.host, " was told to stop (signal ", signal, ")")});
  }
}

void Agent::OnExit(const Assignment& assignment, const WorkerExit& exit, WorkerGroup* workers) {
  Announce(assignment, exit);
  if (!exit.failed() || workers->stopping()) return;
  workers->Stop(SIGTERM, options_.failure_grace);
  const FailureReport report = workers->Describe(exit);
  Publish({.kind = GenerationEnd::Kind::kFailed,
           .restart = true,
           .exit_code = exit.ExitCode(),
           .node = options_.workers.node_id,
           .headline = absl::StrCat(exit.What(), " on ", options_.workers.host),
           .report = report.ToString()});
}

void Agent::Announce(const Assignment& assignment, const WorkerExit& exit) {
  if (store_ == nullptr || store_end_) return;
  try {
    store_->Set(absl::StrCat(options_.workers.job.run_id, "/", assignment.generation, "/exit/", exit.rank),
                exit.What());
  } catch (const Error&) {
    // The job has lost its store, which is said once, where it ends for that: in Publish, Done or the rendezvous.
  }
}

void Agent::Publish(const GenerationEnd& end) {
  try {
    rendezvous_->Publish(end);
  } catch (const Error& error) {
    store_end_ = end;
    store_end_->restart = false;
    absl::StrAppend(&store_end_->headline, "; and the job's store is gone: ", error.message());
  }
}

void Agent::Done() {
  try {
    rendezvous_->Done();
  } catch (const Error& error) {
    store_end_ = GenerationEnd{.kind = GenerationEnd::Kind::kLost,
                               .exit_code = 1,
                               .headline = absl::StrCat("the job's store is gone: ", error.message())};
  }
}

std::optional<GenerationEnd> Agent::End() {
  const std::optional<GenerationEnd> agreed = rendezvous_->End();
  return agreed ? agreed : store_end_;
}

void Agent::SayWhy(const Assignment& assignment, const GenerationEnd& end) {
  if (end.kind == GenerationEnd::Kind::kFinished) return;
  const int restarts = end.saved ? 0 : assignment.restarts;
  if (end.restart) {
    const std::string which =
        end.kind == GenerationEnd::Kind::kGrow
            ? ""
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
    for (int signal : signals_->Take()) {
      if (SignalSource::EndsAProgram(signal)) return;
    }
    console_->WriteSome();
    if (console_->num_bytes() < left) deadline = std::chrono::steady_clock::now() + patience;
    left = console_->num_bytes();
  }
}

}  // namespace weft
