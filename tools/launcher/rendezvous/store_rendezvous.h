// How the nodes of a job meet, through its store.

#ifndef WEFT_TOOLS_LAUNCHER_RENDEZVOUS_STORE_RENDEZVOUS_H_
#define WEFT_TOOLS_LAUNCHER_RENDEZVOUS_STORE_RENDEZVOUS_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/store/store.h"
#include "tools/launcher/processes/file_descriptor.h"
#include "tools/launcher/rendezvous/liveness.h"
#include "tools/launcher/rendezvous/meeting_state.h"
#include "tools/launcher/rendezvous/rendezvous.h"

namespace weft {

struct StoreRendezvousOptions {
  std::string id;       // of this life of this launcher: no other node's, ever
  std::string host;     // for people
  int fixed_rank = -1;  // this node's rank; -1: the order of arrival gives one. All nodes alike.
  int min_nodes = 1;
  int max_nodes = 1;
  int workers_per_node = 1;
  int max_restarts = 0;
  std::string master_addr;
  int master_port = 0;

  std::chrono::milliseconds poll{100};              // between looks at what the others wrote
  std::chrono::milliseconds beat{500};              // between this node's signs of life
  std::chrono::milliseconds silence{5000};          // a node without one for so long is lost
  std::chrono::milliseconds join_timeout{600'000};  // for enough nodes to come, where no generation runs
  std::chrono::milliseconds last_call{30'000};      // for more than min_nodes, once those are there

  std::function<void(const std::string&)> say = {};  // a line for the user: whom one waits for
  Rendezvous::HasSaved has_saved = {};               // empty: never
  // The job's store is this process's: it stays until the job is over, even where it may take part no more.
  bool holds_store = false;
  // The store outlives the nodes: they may all be lost, and others come that go on.
  bool store_apart = false;
  std::function<int64_t()> now_s = {};  // since 1970; empty: the machine's clock
};

// Nodes that meet in a store: with fixed ranks (static) or in the order in which they come (dynamic).
//
// A generation begins when max_nodes are there, or last_call after min_nodes are. After one that ended badly,
// it begins as soon as every node that was in it and lives has come back, if those are min_nodes at least. A
// node keeps its place, also in the order, as long as its launcher lives. A node that comes to a running job with
// room for it ends the generation (kGrow), which costs no restart; one for which there is no room waits, as long as the job
// runs. A node that is told
// to stop (kLeft) costs none either: the others go on if they are min_nodes, or wait for one in its place if there may be
// restarts at all: without, the job is over once the nodes that stay are too few. The store of a node that keeps it goes with
// it, and the job.
//
// A node whose workers were the first to fail three times within ten minutes, without a save between them, is left out
// if the others are enough: it cannot take part again. Where it keeps the store, it stays until the job is over, or
// nobody has come for join_timeout after the others were gone. So does the store's node if it finds no place.
//
// Each node watches the next: one that falls silent ends the generation (kLost). So after a loss the others
// begin again within silence + the time that stopping their workers takes + beat and poll.
//
// Threads: one more, of this object's own, from the first Next to Leave.
class StoreRendezvous final : public Rendezvous {
 public:
  // `store`: the job's own part of the store.
  StoreRendezvous(std::shared_ptr<Store> store, StoreRendezvousOptions options);
  ~StoreRendezvous() override;

  std::optional<Assignment> Next(const std::function<bool()>& cancelled) override;
  void Done() override;
  GenerationEnd Publish(GenerationEnd end) override;
  std::optional<GenerationEnd> End() override;
  int event_fd() const override { return event_.get(); }
  void Leave() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Gathering;

  // Gathering, on the caller's thread.
  bool IsNewToMe(const MeetingState& state) const;
  MeetingState Advanced(MeetingState state, Gathering* gathering);
  void JoinIfAbsent(MeetingState* state, Gathering* gathering);
  static bool MayLive(const std::string& id, Gathering* gathering);
  // Of the nodes that are in or should come back.
  static bool AnyMayLive(const MeetingState& state, Gathering* gathering);
  void WaitToLook(const std::function<bool()>& cancelled) const;
  // Whether the time that this node waits is one in which nodes ought to come.
  bool CountsJoinTimeout(const MeetingState& state, Gathering* gathering);
  // Whether the generation that runs has lost all its nodes, so that none of them can tell; then it has ended. Somebody
  // outside finds that whose store lives on: its own, or one apart.
  bool EndedUnseen(MeetingState* state, Gathering* gathering);
  void RequireFit(const MeetingState& state);
  std::string WhyLeftOut() const;
  // What the store's node, which had no place or was left out, is told once the job is over, as if it had been there.
  std::optional<Assignment> LookOn(const MeetingState& state);
  bool RankIsFree(const MeetingState& state, Gathering* gathering);
  bool HasPlace(const MeetingState& state, Gathering* gathering);
  void RunIfComplete(MeetingState* state, Gathering* gathering);
  Assignment Begin(const MeetingState& state);
  bool BeatsGoThrough() const;
  void TellThatIHaveLeft();
  // Takes this node out of what follows, unless the others have begun a generation with it that is new to it. Closes the job
  // where that cannot go on without. Returns the state.
  MeetingState Withdraw(const std::string& why);
  void Close(const std::string& why);
  // Replaces the state by what `change` makes of it; tries again as long as others are faster. Returns it as it is then.
  template <class Change>
  MeetingState ChangeState(const Change& change);
  // What a node that waits sees: "1 of 2 nodes are at node0:29400 (node1)".
  std::string Presence(const MeetingState& state) const;
  void SayWhoIsMissing(const MeetingState& state, Gathering* gathering) const;
  [[noreturn]] void ThrowTooFew(const MeetingState& state) const;

  // Watching, on the own thread.
  void Watch();
  void WatchOnce(Liveness& liveness);
  void WatchNodes(const MeetingState& state, Liveness& liveness);
  bool IsInGeneration();
  void StopWatching();

  void SetEnd(int64_t generation, const GenerationEnd& end);
  void SetEndLocked(int64_t generation, const GenerationEnd& end);
  static constexpr char kStateKey[] = "state";

  static std::string Seconds(std::chrono::milliseconds duration) {
    return absl::StrCat(static_cast<double>(duration.count()) / 1000, " s");
  }
  bool HasSaved(int64_t generation) const;
  // Whether another generation may follow that of `state` if it ends so.
  bool MayGoOn(const GenerationEnd& end, const MeetingState& state) const;
  // Whether it is the end of this node, and no other.
  bool IsMyEnd(const GenerationEnd& end) const { return end.EndsANode() && end.node == options_.id; }
  // Opens the generation after that of `state`, with the saves that came after its end.
  void Reopen(MeetingState* state, GenerationEnd end) const;

  std::string EndKey(int64_t generation) const;
  std::string LeftKey(int64_t generation) const;

  const std::shared_ptr<Store> store_;
  const StoreRendezvousOptions options_;
  FileDescriptor event_;
  int64_t arrival_ = -1;          // once the state has it: where another was faster, it has that number
  int64_t left_generation_ = -1;  // the last one that this node has said that it left

  std::atomic<bool> stop_{false};
  std::atomic<Clock::time_point> beaten_at_{Clock::time_point()};  // the last sign of life that went through
  std::thread watcher_;

  std::mutex mutex_;
  bool looks_on_ = false;  // the caller's thread: it has no part in current_
  MeetingState current_;   // of the generation that this node is or was in; generation -1: of none yet
  std::optional<GenerationEnd> end_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_RENDEZVOUS_STORE_RENDEZVOUS_H_
