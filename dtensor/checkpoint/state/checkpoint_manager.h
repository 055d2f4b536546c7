// The checkpoints of a run: saves steps into a folder, beside training if wanted, and goes on from the last.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_CHECKPOINT_MANAGER_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_CHECKPOINT_MANAGER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/state/agreement.h"
#include "dtensor/checkpoint/state/folder_lock.h"
#include "dtensor/checkpoint/state/host_pieces.h"
#include "dtensor/checkpoint/state/restore.h"
#include "dtensor/checkpoint/state/snapshots.h"
#include "dtensor/checkpoint/state/state.h"
#include "dtensor/checkpoint/state/state_table.h"
#include "dtensor/checkpoint/state/step_writer.h"
#include "runtime/base/error.h"
#include "runtime/launch/world.h"

namespace weft {

struct CheckpointOptions {
  std::string folder;           // that all machines see; made if it is not there
  int64_t save_every = 0;       // steps; 0: whenever Save is called
  int keep = 3;                 // steps that stay, the newest; 0: all
  bool background = false;      // Save copies, and returns: threads write beside training
  bool incremental = false;     // tensors that have not changed since the last save are not written again
  double bytes_per_second = 0;  // of each rank's writing beside training; 0: as fast as it goes
  std::string run_id = {};      // of the job, which all its lives have alike (weft_run's); empty: none
  int64_t generation = 0;       // how often the job has been restarted: temporary folders of two do not meet
  std::chrono::milliseconds timeout = std::chrono::hours(1);  // for the slowest rank's writing or reading
  int num_ranks = 0;  // that take part, the world's first: others are spares; 0: all
  // Steps between snapshots in memory that outlives the ranks, which a start prefers to an older step of the folder
  // (snapshots.h); 0: none. `snapshot_memory`: where they lie, which is needed then.
  int64_t snapshot_every = 0;
  std::optional<SnapshotMemory> snapshot_memory = std::nullopt;
  // On rank 0, when a step has been saved, or a snapshot is whole; from the thread that writes. What they throw is a warning:
  // what is saved stays saved.
  std::function<void(int64_t step)> on_saved = nullptr;
  std::function<void(int64_t step)> on_snapshot = nullptr;
  std::shared_ptr<Files> files = nullptr;                       // null: the disk's
  std::function<void(const std::string& line)> warn = nullptr;  // on rank 0; null: stderr
};

// What a save was, on this rank. Times are seconds.
struct SaveStats {
  int64_t step = 0;
  int64_t num_bytes = 0;      // that this rank owns
  int64_t written_bytes = 0;  // into its file
  double stall = 0;           // that Save took
  double writing = 0;         // from Save to the end
  double cpu = 0;             // of the thread that wrote
};

// One per rank, made on all alike.
//
//   CheckpointManager checkpoints(world, {.folder = "runs/a", .save_every = 100, .background = true});
//   State state;
//   state.Add("model", MakeModelState(model));
//   state.Add("optimizer", MakeOptimizerState(optimizer));
//   if (const auto step = checkpoints.Resume(state)) trainer.set_step(*step);
//   after each step:  if (checkpoints.IsDue(step)) trainer.Flush();
//                     checkpoints.AfterStep(step, state);
//   at the end:       trainer.Flush(); checkpoints.Save(step, state); checkpoints.Wait();
//
// Lifetime: ends before the world. The destructor waits for a save that is under way; its error is lost: call Wait before.
//           Where an exception unwinds the stack it gives the save up, and waits for what cannot be left half way: a piece's
//           checksum, a flush of the file, on rank 0 the step's publication.
// Threads:  the rank's.
class CheckpointManager {
 public:
  // Makes the folder, removes what writers that died left in it, unless another job saves there now (FolderLock), which is a
  // warning, checks that all ranks see it, and looks for the newest step that is whole.
  // Cost:   as Agreement, and four rounds of it; rank 0 reads the headers of the newest step's files.
  // Errors: as CheckFolderIsShared; InvalidArgument for options that are out of range; DataLoss for a folder with steps
  //         of which none is whole, unless there is a snapshot in memory.
  CheckpointManager(World& world, const CheckpointOptions& options);
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  // The newest step that was whole when this was made, or that this has saved since; nothing without any.
  const std::optional<int64_t>& latest_step() const { return latest_step_; }

  // The snapshot in memory that the first Resume takes: above latest_step(), and whole; nothing without one, or behind Resume.
  const std::optional<int64_t>& snapshot_step() const { return snapshot_step_; }
  // Of the step that Resume has loaded.
  const StateTexts& resumed_texts() const { return resumed_texts_; }

  // Loads the newest step, of memory or the folder, if there is one, and returns its number. Texts are loaded, too. Another
  // Resume takes what is the newest then, this one's step again if nothing has been saved since.
  // Errors: as Restore. Where they say that the step is broken (DataLoss), it is set aside, so that the next start takes an
  //         older one, and with it all steps that have the same broken elements: the error says so.
  std::optional<int64_t> Resume(State& state, const RestoreOptions& options = {});
  // Loads a step, to look at or to go back to. Steps above it stay.
  RestoreResult Load(int64_t step, State& state, const RestoreOptions& options = {});

  // Saves a step: all of its files, or none. A step that this has saved last, or resumed from, is not saved again, unless
  // Load has been called since. In the background: returns when what this rank owns has been copied to the host. Waits for the
  // save before; what is waited for, here, in Wait or by the destructor, goes as fast as it can, whatever bytes_per_second.
  // Cost:   two small all-gathers, and a round of Agreement, in the background if the save is.
  // Errors: as WriteStep; those of the save before, if it is still to be told: this one is over then, and has done its work.
  //         An error of one rank's state is one on all ranks, as is World::ThrowIfCutOff.
  void Save(int64_t step, const State& state);

  // For each step: tells of a save in the background, or a snapshot, that has failed; takes a snapshot if snapshot_every
  // divides the step, and saves if save_every does. Returns whether it has saved.
  // Errors: as Save; as Snapshots::Take, once the save that is due is done.
  bool AfterStep(int64_t step, const State& state);

  bool IsDue(int64_t step) const { return options_.save_every > 0 && step % options_.save_every == 0; }
  bool IsSnapshotDue(int64_t step) const {
    return options_.snapshot_every > 0 && step % options_.snapshot_every == 0;
  }

  // Until the save in the background is over, and the snapshot.
  // Errors: its own.
  void Wait();
  bool is_saving() const { return writer_.joinable(); }  // or is it over, and not waited for
  bool is_over() const { return is_over_; }

  // Of the last save that is over, and the last snapshot.
  const SaveStats& last_save() const { return last_save_; }
  SnapshotStats last_snapshot() const { return snapshots_ ? snapshots_->last() : SnapshotStats(); }
  // Memory that copies for saves in the background take.
  int64_t host_bytes() const { return host_.num_bytes(); }

 private:
  void TakeFolder();
  std::string Beginning() const;
  std::string Begin();
  void WaitForSave();
  void Warn(const std::string& line) const;
  RestoreResult RestoreStep(int64_t step, State& state, const RestoreOptions& options, StateTexts* texts);
  void RestoreSnapshot(State& state, const RestoreOptions& options, StateTexts* texts);
  [[noreturn]] void GiveUp(int64_t step, const Error& error);  // sets it aside, and throws
  void LoadTexts(const StateTexts& texts, State& state, const RestoreOptions& options);
  StepToWrite Prepare(int64_t step, const State& state);
  void AddPieces(std::vector<LocalStateTensor> tensors, StepToWrite* write);
  void StartSave(int64_t step, const State& state);
  void Write(const StepToWrite& step);
  void TakeOver(const WrittenPieces& written, int64_t step);

  World& world_;
  const CheckpointOptions options_;
  const std::shared_ptr<Files> files_;
  Agreement agreement_;
  std::optional<FolderLock> lock_;  // rank 0's
  std::string life_;                // of the job: told by rank 0
  std::optional<int64_t> latest_step_;
  // That the state was resumed from, or saved as, last; none behind Load.
  std::optional<int64_t> current_step_;
  std::unique_ptr<Snapshots> snapshots_;  // null: none are taken
  std::optional<int64_t> snapshot_step_;
  bool looks_again_ = false;  // Resume: for a snapshot, since snapshot_step_ may not be the newest any more
  StateTexts resumed_texts_;
  HostPieces host_;
  PieceTable last_table_;   // of the last save: what the next one may refer to
  KnownSteps known_steps_;  // rank 0's
  SaveStats last_save_;
  // Of a save that is under way: what the writer leaves, read once it has ended.
  std::thread writer_;
  std::stop_source hurry_;  // it is waited for: bytes_per_second does not hold any more
  std::atomic<bool> is_over_ = false;
  std::exception_ptr failure_;
  WrittenPieces written_;
  SaveStats stats_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_CHECKPOINT_MANAGER_H_
