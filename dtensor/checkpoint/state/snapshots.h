// Snapshots of a run's state in memory that outlives the ranks, each with a copy on another node.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_SNAPSHOTS_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_SNAPSHOTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/memory/segment.h"
#include "dtensor/checkpoint/memory/snapshot_choice.h"
#include "dtensor/checkpoint/memory/snapshot_piece.h"
#include "dtensor/checkpoint/state/agreement.h"
#include "dtensor/checkpoint/state/restore.h"
#include "dtensor/checkpoint/state/state.h"
#include "dtensor/checkpoint/state/step_contents.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/work.h"
#include "runtime/launch/snapshot_memory.h"
#include "runtime/launch/world.h"

namespace weft {

struct SnapshotOptions {
  SnapshotMemory memory;
  std::string folder;  // that the run saves into: snapshots of runs with another are none of its own
  int64_t every = 0;   // steps, for the line that says what it costs
  int64_t generation = 0;
  std::chrono::milliseconds timeout = std::chrono::hours(1);
  int num_ranks = 0;                                     // that take part, the world's first; 0: all
  std::function<void(int64_t step)> on_taken = nullptr;  // on rank 0, from another thread, when all have it
  std::function<void(const std::string& line)> warn = nullptr;  // on rank 0; null: stderr
};

// What a snapshot was, on this rank. Bytes of one piece each; times are seconds.
struct SnapshotStats {
  int64_t step = 0;
  int64_t own_bytes = 0;
  int64_t copied_bytes = 0;  // of other nodes' ranks
  double stall = 0;          // that Take took
  double finishing = 0;      // from Take until all ranks had theirs
};

// One per rank, made on all alike.
//
// A snapshot is each rank's boxes in a segment of its node, and a copy of them on the next node (BuddyCopies), which go there
// by messages of a group of their own. There are two places for each: a snapshot is written over the one before the last,
// once all ranks have the last. So a kill at any instant leaves one that is whole, of which every piece lies on two nodes, if
// there are two.
//
// Cost:     of memory on a node: two pieces of each of its ranks, two of each rank of the node before.
// Lifetime: ends before the world. Unless an exception unwinds the stack, the destructor waits; its error is lost.
// Threads:  the rank's.
class Snapshots {
 public:
  // Cost:   as Agreement, one more group, and two small all-gathers.
  // Errors: InvalidArgument, if `memory` lacks segments; as MemorySegment.
  Snapshots(World& world, const SnapshotOptions& options);
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  // The run's newest snapshot above step `above` of which every piece is there and has its checksums, wherever it lies; nothing
  // without one. Rank 0 says if a newer one is not whole. One that kMostTries starts have begun to load, and none to the
  // end, is not taken again.
  // Cost:   rounds of Agreement; one read of the pieces that are chosen, and of their copies.
  std::optional<int64_t> Find(std::optional<int64_t> above);

  // The snapshot that Find has found, as a step of the folder kFolder in `Files`, with the pieces that this rank's
  // state needs any of: those that its node has, own or copies, are read where they lie, others are received whole.
  // Cost:   four small all-gathers; a message per piece and rank that needs it and on whose node it is not.
  // Errors: DataLoss.
  static constexpr char kFolder[] = "memory";
  static constexpr int kMostTries = 3;
  std::shared_ptr<Files> Fetch(const State& state, const RestoreOptions& options);
  // The state has been loaded: on every rank.
  void NoteLoaded();

  // Takes a snapshot: returns when this rank's boxes have been copied; waits for the last one first.
  // Cost:   two small all-gathers as of a save, six more; a pass over the rank's boxes by the pool's threads. Beside training: the
  //         messages, a read of each piece for its checksums, and a round of Agreement.
  // Errors: on every rank, those of any: of this snapshot's beginning, or of the last one, if it is still to be told: this one is
  //         over then, and has done its work. So is World::ThrowIfCutOff. The last whole snapshot stays.
  void Take(int64_t step, const State& state);

  // Tells of a snapshot that is over and has failed.
  void Poll() {
    if (is_over_) Wait();
  }
  // Until the snapshot under way is over.
  // Errors: its own.
  void Wait();

  const SnapshotStats& last() const { return last_; }

 private:
  // A piece that is being written here: the rank's own, or a copy.
  struct Incoming {
    int source = 0;
    int peer = -1;  // whom it comes from; -1: it is this rank's own
    std::shared_ptr<MemorySegment> segment;
    std::vector<PieceToSave> pieces;
    Tensor elements;  // of the segment
  };

  void Warn(const std::string& line) const;
  std::vector<HeldPiece> Held() const;
  std::vector<HeldPiece> HeldByAll();
  std::string CheckChosen();
  void SetTriesOfChoice(int tries) const;
  std::string ManifestOfChoice();
  std::set<int> Needs(const Manifest& manifest, const State& state, const RestoreOptions& options) const;
  std::map<int, std::vector<int>> ReadersOf(const std::set<int>& mine);
  Tensor Bring(const HeldPiece& piece, const std::vector<int>& readers);
  int PlaceForNext();
  void TakeNow(int64_t step, const State& state);
  std::vector<Incoming> Begin(const Manifest& manifest);
  void CopyOwn(const std::vector<LocalStateTensor>& tensors, const Incoming& own);
  Work Shift(const std::vector<Incoming>& incoming);
  std::vector<std::string> TellOutcome(int64_t step, const std::function<std::string()>& part);
  std::string Finish(std::vector<Incoming>& incoming, const Manifest& manifest, const SnapshotKey& key,
                     const Work& messages);
  void Start(std::vector<Incoming> incoming, Manifest manifest, const Work& messages);
  void TellCost(const std::vector<std::string>& told);

  World& world_;
  const SnapshotOptions options_;
  Agreement agreement_;
  std::shared_ptr<Communicator> group_;
  uint64_t folder_ = 0;  // SnapshotKey::folder: rank 0's word
  std::vector<int> node_of_rank_;
  std::vector<BuddyCopy> copies_;
  std::vector<int> own_segments_;  // of the node, those whose pieces this rank tells of
  std::set<int> broken_;           // of them, those that do not have their checksums
  std::optional<SnapshotChoice> choice_;
  int parity_ = 0;         // which of the two places is written now
  int64_t serial_ = 0;     // of the next snapshot
  int64_t whole_ = -1;     // serial of the last that this rank knows to be whole, or was loaded
  int whole_parity_ = -1;  // its place; -1: there is none
  SnapshotStats last_;
  // Of a snapshot under way: what its thread leaves, read once it has ended.
  std::thread finisher_;
  std::atomic<bool> is_over_ = false;
  std::atomic<bool> cancelled_ = false;
  std::exception_ptr failure_;
  SnapshotStats stats_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_SNAPSHOTS_H_
