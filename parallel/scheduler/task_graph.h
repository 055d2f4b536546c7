// Overlaps of a user's own: what computes, what moves and what the host does, as tasks that wait for each other.

#ifndef WEFT_PARALLEL_SCHEDULER_TASK_GRAPH_H_
#define WEFT_PARALLEL_SCHEDULER_TASK_GRAPH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/context/lane.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "dtensor/redistribute_each.h"
#include "runtime/comm/work.h"
#include "runtime/comm/worker.h"

namespace weft {

// Tasks of one rank, each of which may wait for others. The graph is built once and may run many times.
//
//   task            runs on                    waits for what it depends on
//   Compute         the rank's thread          there
//   Communicate     its lane's worker          on that worker, but for computing, which comes before it is issued
//   Host            a thread of the graph      there
//
// On a GPU lanes are streams or, where the CPU carries the data, have workers for the last of a move's collectives; the rank's
// thread waits before it issues a Communicate task for what is not in a stream, and before it starts a Host task until the
// communication before that has ended.
//
// Order() is fixed by the graph alone: it is the same on every rank that builds the same graph, and nothing that
// arrives early changes it. Collectives are issued in the order of their insertion, each as soon as the computing
// before it has run. Compute tasks may communicate inline, since they run in the same order everywhere.
//
// Lifetime: what the functions refer to must live while Run does.
// Threads:  the rank's thread. Functions of Host tasks run on another: they touch no DTensor.
class TaskGraph {
 public:
  using Task = int;  // by insertion, from 0

  explicit TaskGraph(IntrusivePtr<MeshContext> context);
  ~TaskGraph();
  TaskGraph(const TaskGraph&) = delete;
  TaskGraph& operator=(const TaskGraph&) = delete;

  // Errors: InvalidArgument for an empty function, or a task in `after` that there is not.
  Task Compute(std::string name, std::function<void()> run, absl::Span<const Task> after = {});
  Task Host(std::string name, std::function<void()> run, absl::Span<const Task> after = {});
  // `moves` is asked when it is issued, and goes to RedistributeEach; what it borrows must live until then. Sources
  // may be pending: results of another Communicate, say.
  Task Communicate(std::string name, Lane lane, std::function<std::vector<EachMove>()> moves,
                   absl::Span<const Task> after = {});

  // `later` waits for `earlier`, whichever was inserted first.
  // Errors: InvalidArgument for a task that there is not.
  void DependsOn(Task later, Task earlier);

  // As it was inserted.
  const std::string& Name(Task task) const { return At(task).name; }

  // What a Communicate task brought in the last Run, by move; may be pending. Empty before.
  // Errors: InvalidArgument for a task of another kind.
  const std::vector<DTensor>& Results(Task task) const;

  // The order in which tasks are issued or run: each behind all that it waits for.
  // Errors: InvalidArgument that names a circle of tasks, where there is one. That collectives are issued in the
  //         order of insertion counts as waiting.
  std::vector<Task> Order() const;

  // Runs all tasks. Returns when those of kinds Compute and Host have ended; results of Communicate tasks may be
  // pending still.
  // Errors: those of Order, before anything runs; the first of a task, when Host tasks that run have ended. What has
  //         been issued by then goes on.
  void Run();

 private:
  enum class Kind : uint8_t { kCompute, kCommunicate, kHost };
  struct Node {
    std::string name;
    Kind kind = Kind::kCompute;
    Lane lane = Lane::kInline;
    std::function<void()> run = {};
    std::function<std::vector<EachMove>()> moves = {};
    std::vector<Task> after = {};
    // Of the last Run:
    std::vector<DTensor> results = {};
    std::vector<Work> works = {};  // what ends when the task does; none: it has ended
  };

  Task Add(Node node, absl::Span<const Task> after);
  const Node& At(Task task) const;
  std::string Circle(const std::vector<std::vector<Task>>& waits_for, const std::vector<bool>& placed) const;
  std::vector<std::vector<Task>> AllDependencies() const;
  std::vector<Work> WorksBefore(const Node& node, bool with_own_lane) const;
  void Start(Node& node);
  void StartOnHost(Node& node);
  void StartCommunication(Node& node);

  const IntrusivePtr<MeshContext> context_;
  std::vector<Node> nodes_;
  std::shared_ptr<Worker> host_worker_;  // started at its first use
};

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_TASK_GRAPH_H_
