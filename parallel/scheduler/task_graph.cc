#include "parallel/scheduler/task_graph.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// A job that holds up a worker until `works` have ended.
auto Awaiting(std::vector<Work> works) {
  return [works = std::move(works)] {
    for (const Work& work : works) work.WaitOnWorker();
  };
}

// Returns when `works` have ended on the device, too. What has failed meanwhile is told by Wait.
void AwaitDevice(const std::vector<Work>& works) {
  constexpr std::chrono::seconds kPatience(1);
  for (const Work& work : works) {
    while (!work.WaitFor(kPatience)) work.Wait();
  }
}

}  // namespace

TaskGraph::TaskGraph(IntrusivePtr<MeshContext> context) : context_(std::move(context)) {}

TaskGraph::~TaskGraph() {
  if (host_worker_ != nullptr) host_worker_->Close();
}

TaskGraph::Task TaskGraph::Compute(std::string name, std::function<void()> run,
                                   absl::Span<const Task> after) {
  WEFT_REQUIRE(run != nullptr, "TaskGraph: task '", name, "' has no function");
  return Add({.name = std::move(name), .kind = Kind::kCompute, .run = std::move(run)}, after);
}

TaskGraph::Task TaskGraph::Host(std::string name, std::function<void()> run, absl::Span<const Task> after) {
  WEFT_REQUIRE(run != nullptr, "TaskGraph: task '", name, "' has no function");
  return Add({.name = std::move(name), .kind = Kind::kHost, .run = std::move(run)}, after);
}

TaskGraph::Task TaskGraph::Communicate(std::string name, Lane lane,
                                       std::function<std::vector<EachMove>()> moves,
                                       absl::Span<const Task> after) {
  WEFT_REQUIRE(moves != nullptr, "TaskGraph: task '", name, "' has no function");
  return Add({.name = std::move(name), .kind = Kind::kCommunicate, .lane = lane, .moves = std::move(moves)},
             after);
}

TaskGraph::Task TaskGraph::Add(Node node, absl::Span<const Task> after) {
  for (const Task task : after) At(task);
  node.after.assign(after.begin(), after.end());
  nodes_.push_back(std::move(node));
  return static_cast<Task>(nodes_.size()) - 1;
}

const TaskGraph::Node& TaskGraph::At(Task task) const {
  WEFT_REQUIRE(task >= 0 && task < std::ssize(nodes_), "TaskGraph: there is no task ", task,
               "; the graph has ", nodes_.size());
  return nodes_[task];
}

void TaskGraph::DependsOn(Task later, Task earlier) {
  At(later);
  At(earlier);
  nodes_[later].after.push_back(earlier);
}

const std::vector<DTensor>& TaskGraph::Results(Task task) const {
  const Node& node = At(task);
  WEFT_REQUIRE(node.kind == Kind::kCommunicate, "TaskGraph: task '", node.name,
               "' does not communicate: it has no results");
  return node.results;
}

// Those that were asked for, and of a collective the one that was inserted before it.
std::vector<std::vector<TaskGraph::Task>> TaskGraph::AllDependencies() const {
  std::vector<std::vector<Task>> all;
  Task last_collective = -1;
  for (Task task = 0; task < std::ssize(nodes_); ++task) {
    all.push_back(nodes_[task].after);
    if (nodes_[task].kind != Kind::kCommunicate) continue;
    if (last_collective >= 0) all.back().push_back(last_collective);
    last_collective = task;
  }
  return all;
}

// What need not be computed here goes first, so that it is under way while the rank computes; by insertion.
std::vector<TaskGraph::Task> TaskGraph::Order() const {
  const std::vector<std::vector<Task>> waits_for = AllDependencies();
  std::vector<bool> placed(nodes_.size());
  const auto is_ready = [&](Task task) {
    return !placed[task] && std::all_of(waits_for[task].begin(), waits_for[task].end(),
                                        [&](Task earlier) { return placed[earlier]; });
  };
  std::vector<Task> order;
  while (order.size() < nodes_.size()) {
    Task next = -1;
    for (Task task = 0; task < std::ssize(nodes_); ++task) {
      if (!is_ready(task)) continue;
      const bool computes = nodes_[task].kind == Kind::kCompute;
      if (next < 0 || !computes) next = task;
      if (!computes) break;
    }
    WEFT_REQUIRE(next >= 0, "TaskGraph: tasks wait for each other in a circle: ", Circle(waits_for, placed));
    placed[next] = true;
    order.push_back(next);
  }
  return order;
}

// Every task that has no place waits for another that has none: going back ends in a circle.
std::string TaskGraph::Circle(const std::vector<std::vector<Task>>& waits_for,
                              const std::vector<bool>& placed) const {
  std::vector<Task> way = {
      static_cast<Task>(std::find(placed.begin(), placed.end(), false) - placed.begin())};
  for (;;) {
    const std::vector<Task>& earlier = waits_for[way.back()];
    const Task next = *std::find_if(earlier.begin(), earlier.end(), [&](Task task) { return !placed[task]; });
    const auto seen = std::find(way.begin(), way.end(), next);
    const bool closes = seen != way.end();
    if (closes) way.erase(way.begin(), seen);
    way.push_back(next);
    if (closes) break;
  }
  std::string text = absl::StrCat("'", nodes_[way[0]].name, "'");
  for (size_t i = 1; i < way.size(); ++i) {
    const std::vector<Task>& asked = nodes_[way[i - 1]].after;
    const bool is_asked = std::find(asked.begin(), asked.end(), way[i]) != asked.end();
    absl::StrAppend(&text, is_asked ? " after '" : " issued after '", nodes_[way[i]].name, "'");
  }
  return text;
}

void TaskGraph::Run() {
  const std::vector<Task> order = Order();
  for (Node& node : nodes_) {
    node.results.clear();
    node.works.clear();
  }
  std::exception_ptr failure;
  const auto keep_first = [&](auto&& act) {
    try {
      act();
    } catch (...) {
      if (failure == nullptr) failure = std::current_exception();
    }
  };
  keep_first([&] {
    for (const Task task : order) Start(nodes_[task]);
  });
  // They use what the caller owns.
  for (const Node& node : nodes_) {
    for (const Work& work : node.works) {
      if (node.kind == Kind::kHost) keep_first([&] { work.Wait(); });
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

// What must have ended before the task and may not have; a lane has its own in order.
std::vector<Work> TaskGraph::WorksBefore(const Node& node, bool with_own_lane) const {
  std::vector<Work> works;
  for (const Task task : node.after) {
    const Node& earlier = nodes_[task];
    const bool same_lane =
        node.kind == Kind::kCommunicate && earlier.kind == Kind::kCommunicate && node.lane == earlier.lane;
    if (same_lane && !with_own_lane) continue;
    works.insert(works.end(), earlier.works.begin(), earlier.works.end());
  }
  return works;
}

void TaskGraph::Start(Node& node) {
  switch (node.kind) {
    case Kind::kCompute:
      for (const Task task : node.after) {
        for (const DTensor& result : nodes_[task].results) result.ToLocal();
      }
      for (const Work& work : WorksBefore(node, /*with_own_lane=*/true)) work.Wait();
      node.run();
      return;
    case Kind::kHost:
      StartOnHost(node);
      return;
    case Kind::kCommunicate:
      StartCommunication(node);
      return;
  }
}

// What a device's streams do only the rank's thread waits for. Other Host tasks come before it on the graph's thread.
void TaskGraph::StartOnHost(Node& node) {
  std::vector<Work> before;
  if (context_->allocator()->device().type == DeviceType::kCpu) {
    before = WorksBefore(node, /*with_own_lane=*/true);
  } else {
    for (const Task task : node.after) {
      if (nodes_[task].kind == Kind::kCommunicate) AwaitDevice(nodes_[task].works);
    }
  }
  if (host_worker_ == nullptr) host_worker_ = context_->world().StartWorker();
  node.works = {host_worker_->Submit([&node, await = Awaiting(std::move(before))] {
    await();
    node.run();
  })};
}

// Where the lane has no worker, or a device's streams carry it, the rank waits before it issues.
void TaskGraph::StartCommunication(Node& node) {
  const bool on_worker =
      node.lane != Lane::kInline && context_->allocator()->device().type == DeviceType::kCpu;
  if (std::vector<Work> before = WorksBefore(node, /*with_own_lane=*/!on_worker); !before.empty()) {
    if (on_worker) {
      node.works.push_back(context_->state().LaneWorker(node.lane).Submit(Awaiting(std::move(before))));
    } else {
      for (const Work& work : before) work.Wait();
    }
  }
  node.results = RedistributeEach(node.moves(), node.lane);
  const PendingMoves* last = nullptr;  // which results share, those of each memory
  for (const DTensor& result : node.results) {
    const PendingMoves* const pending = result.impl()->pending().get();
    if (pending == nullptr || pending == last) continue;
    last = pending;
    node.works.insert(node.works.end(), pending->works().begin(), pending->works().end());
  }
}

}  // namespace weft
