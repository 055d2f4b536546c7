// What weft_run does on one node.

#ifndef WEFT_TOOLS_LAUNCHER_AGENT_H_
#define WEFT_TOOLS_LAUNCHER_AGENT_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/error.h"
#include "runtime/store/store.h"
#include "tools/launcher/outbox.h"
#include "tools/launcher/processes/signal_source.h"
#include "tools/launcher/processes/stop_wishes.h"
#include "tools/launcher/rendezvous/rendezvous.h"
#include "tools/launcher/workers/console.h"
#include "tools/launcher/workers/worker_group.h"

namespace weft {

struct AgentOptions {
  WorkerGroupOptions workers;
  std::chrono::milliseconds failure_grace{3000};  // for workers to end after another has failed, then SIGKILL
  // For workers to save and end after the user's signal, and where a node joins.
  std::chrono::milliseconds stop_grace{30'000};
  pid_t guard = -1;  // the process above; once it is gone nobody waits for workers to save
  // Called once nobody wants to wait for a store that is away or full: calls to it end then. May be empty.
  std::function<void()> give_up_store = {};
  // Called once this node has left the job: ends the store's server, if it is here. The last of the output may wait for its
  // reader after that, and another job at the same address must not meet the store of this one. May be empty.
  std::function<void()> end_server = {};
};

// What a launcher does on one node: starts this node's workers, generation after generation, until the job
// has finished or failed. The process's only: it takes all signals, and all children are its own.
//
// While workers run it waits for nobody, but for an instant that the others may hear that this node was told to stop: what it
// tells the store goes by the outbox. Between generations it waits for the
// store and the other nodes.
//
// Lifetime: borrows all but the store.
class Agent {
 public:
  // `store`: the job's; each end of a worker is written there under "<run id>/<generation>/exit/<rank>" before it is told
  // that the generation has ended. May be null.
  Agent(AgentOptions options, Rendezvous* rendezvous, std::shared_ptr<Store> store, Console* console,
        SignalSource* signals);

  // Returns the exit code of the program: 0, that of the first worker that failed on any node, or 128 + N
  // after signal N. The failure, if there was one, is the last that is printed.
  // Errors: as Rendezvous::Next.
  int Run();

 private:
  int RunGenerations();
  GenerationEnd RunGeneration(const Assignment& assignment);
  void Wait(const WorkerGroup& workers);
  void OnSignals(WorkerGroup* workers);
  // That this node was told to stop, for the others; `grace`: what its workers have.
  GenerationEnd OwnEnd(std::chrono::milliseconds grace) const;
  // What the workers here have to end, in a generation that has ended so.
  std::chrono::milliseconds GraceAfter(const GenerationEnd& end) const;
  bool HasGuard() const;
  void OnExit(const Assignment& assignment, const WorkerExit& exit, WorkerGroup* workers);
  void Announce(const Assignment& assignment, const WorkerExit& exit);

  // The rendezvous', by the outbox; the loss of the store does not make them throw but ends the job here.
  void Publish(const GenerationEnd& end);
  void Done();
  std::optional<GenerationEnd> End();
  void LoseStore(GenerationEnd end, const Error& error);
  std::optional<GenerationEnd> StoreEnd();

  void SayWhy(const Assignment& assignment, const GenerationEnd& end);
  void FlushConsole();

  const AgentOptions options_;
  Rendezvous* const rendezvous_;
  const std::shared_ptr<Store> store_;
  Console* const console_;
  SignalSource* const signals_;
  StopWishes wishes_;
  int stop_signal_ = 0;  // the user's first; 0: none
  std::mutex store_end_mutex_;
  std::optional<GenerationEnd> store_end_;  // of a job whose store is gone
  bool lost_announcement_ = false;          // the outbox's thread
  Outbox outbox_;                           // ends before what it uses
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_AGENT_H_
