#include "tools/faults/cluster.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "tools/faults/processes.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

// Between looks at a store that is to begin again.
constexpr milliseconds kLook{20};

volatile sig_atomic_t told_to_stop = 0;  // the signal

void HearSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { told_to_stop = signal; };
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction before = {};
    const bool is_ignored =
        sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;  // nohup
    if (!is_ignored) sigaction(signal, &action, nullptr);
  }
}

}  // namespace

ChaosCluster::ChaosCluster(const ClusterOptions& options) : options_(options) {
  HearSignals();
  WEFT_CHECK(options.num_nodes == 1 || !options.store_folder.empty(), "nodes meet in a store apart");
  if (!options.store_folder.empty()) {
    store_.emplace(options.weft_run, options.store_folder, options.store_flags, options.log,
                   [this] { SetTemporaryFolder(); });
  }
}

// What is stopped would not end with its weft_run.
ChaosCluster::~ChaosCluster() {
  for (const pid_t pid : stopped_) kill(pid, SIGCONT);
}

void ChaosCluster::Start() {
  std::vector<std::string> command = {options_.weft_run, absl::StrCat("--rdzv-id=", options_.run_id),
                                      absl::StrCat("--nproc-per-node=", options_.ranks_per_node)};
  if (store_) {
    store_->Start();
    command.push_back(absl::StrCat("--store=", store_->address()));
    command.push_back(absl::StrCat("--nnodes=", options_.num_nodes));
  }
  command.insert(command.end(), options_.node_flags.begin(), options_.node_flags.end());
  command.insert(command.end(), options_.program.begin(), options_.program.end());
  for (int node = 0; node < options_.num_nodes; ++node) {
    const auto enter = [this, node] {
      SetTemporaryFolder();
      if (options_.cables != nullptr) options_.cables->Enter(node);
    };
    nodes_.push_back(std::make_unique<ChaosJob>(command, options_.log, enter));
    nodes_.back()->Start();
  }
}

void ChaosCluster::SetTemporaryFolder() const {
  setenv("TMPDIR", options_.temporary_folder.c_str(), /*overwrite=*/1);
}

void ChaosCluster::Pump(milliseconds wait) {
  if (const int signal = told_to_stop; signal != 0) {
    Throw(absl::StatusCode::kCancelled, "told to stop by signal ", signal);
  }
  if (store_) store_->Tend();
  if (Clock::now() >= back_at_) BringBack();
  std::vector<pollfd> fds;
  for (const auto& node : nodes_) fds.push_back({node->fd(), POLLIN, 0});  // poll passes over -1
  if (store_) wait = std::min(wait, kLook);
  poll(fds.data(), fds.size(), static_cast<int>(wait.count()));
  for (const auto& node : nodes_) node->Pump(milliseconds(0));
}

void ChaosCluster::PumpFor(double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    Pump(std::clamp(left, milliseconds(1), kLook));
  }
}

bool ChaosCluster::IsRunning() { return !Guards().empty(); }

bool ChaosCluster::HasEndedWell() { return !IsRunning() && exit_code() == 0; }

int ChaosCluster::exit_code() {
  for (const auto& node : nodes_) {
    if (!node->IsRunning() && node->exit_code() != 0) return node->exit_code();
  }
  return 0;
}

void ChaosCluster::Revive() {
  for (const auto& node : nodes_) {
    if (!node->IsRunning() && node->exit_code() != 0) node->Start();
  }
}

std::vector<pid_t> ChaosCluster::Guards() {
  std::vector<pid_t> guards;
  for (const auto& node : nodes_) {
    if (node->IsRunning()) guards.push_back(node->pid());
  }
  return guards;
}

int ChaosCluster::NodeThatRuns(int node) {
  const int count = static_cast<int>(nodes_.size());
  for (int i = 0; i < count; ++i) {
    if (nodes_[(node + i) % count]->IsRunning()) return (node + i) % count;
  }
  return -1;
}

std::vector<pid_t> ChaosCluster::GuardsHit(Fault fault, int node) {
  if (fault == Fault::kHosts) return Guards();
  const int running = NodeThatRuns(node);
  return running < 0 ? std::vector<pid_t>() : std::vector<pid_t>{nodes_[running]->pid()};
}

std::vector<pid_t> ChaosCluster::FamiliesHit(Fault fault, int node) {
  std::vector<pid_t> families;
  for (const pid_t guard : GuardsHit(fault, node))
    absl::c_copy(FamilyOf(guard), std::back_inserter(families));
  return families;
}

bool ChaosCluster::HasAllAgents() {
  const std::vector<pid_t> guards = Guards();
  return guards.size() == nodes_.size() &&
         absl::c_none_of(guards, [](pid_t guard) { return ChildrenOf(guard).empty(); });
}

void ChaosCluster::SendAway(int node, Fault how, milliseconds duration) {
  WEFT_CHECK(how != Fault::kUnplug || options_.cables != nullptr, "a node without a cable");
  const int running = NodeThatRuns(node);
  if (running < 0) return;
  BringBack();
  const pid_t guard = nodes_[running]->pid();
  if (how == Fault::kFreeze) stopped_ = FamilyOf(guard);
  if (how == Fault::kPause) stopped_ = ChildrenOf(guard);
  for (const pid_t pid : stopped_) kill(pid, SIGSTOP);
  if (how == Fault::kUnplug) {
    options_.cables->Unplug(running);
    unplugged_ = running;
  }
  back_at_ = Clock::now() + duration;
}

void ChaosCluster::BringBack() {
  for (const pid_t pid : stopped_) kill(pid, SIGCONT);
  stopped_.clear();
  if (unplugged_ >= 0) options_.cables->Plug(unplugged_);
  unplugged_ = -1;
}

int64_t ChaosCluster::last_step() const {
  const auto last = std::max_element(nodes_.begin(), nodes_.end(), [](const auto& a, const auto& b) {
    return a->last_line() < b->last_line();
  });
  return last == nodes_.end() ? 0 : (*last)->last_step();
}

int64_t ChaosCluster::num_lines() const {
  int64_t lines = 0;
  for (const auto& node : nodes_) lines += node->num_lines();
  return lines;
}

ChaosCluster::Clock::time_point ChaosCluster::last_line() const {
  Clock::time_point last;
  for (const auto& node : nodes_) last = std::max(last, node->last_line());
  return last;
}

}  // namespace weft
