#ifndef WEFT_DTENSOR_CONTEXT_RANK_STATE_H_
#define WEFT_DTENSOR_CONTEXT_RANK_STATE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "dtensor/context/lane.h"
#include "dtensor/context/random_snapshot.h"
#include "runtime/base/dtype.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/ledger.h"
#include "runtime/comm/link_turns.h"
#include "runtime/launch/world.h"

namespace weft {

class BackwardPass;
class BlockLabels;
class CallObserver;
class ImplicitRedistributionGuard;
class KeptResults;
class MeshTransferCache;
class Worker;

// Why bytes move: the purpose column of the communication ledger.
enum class Purpose : uint8_t { kActivation, kParam, kGrad, kLoss, kNorm, kMetric };

inline constexpr Purpose kPurposes[] = {Purpose::kActivation, Purpose::kParam, Purpose::kGrad,
                                        Purpose::kLoss,       Purpose::kNorm,  Purpose::kMetric};

// "activation", "param", "grad", "loss", "norm", "metric".
absl::string_view PurposeName(Purpose purpose);

// The ambient state of one rank, shared by all its mesh contexts, so that a guard reaches every mesh:
// gradient mode, module path, purpose of communication, and the inputs of randomness. Never global, never
// thread-local: ranks may be threads. Used by the owning rank's thread only.
class RankState {
 public:
  explicit RankState(World& world);
  ~RankState();

  World& world() { return world_; }

  bool grad_enabled() const { return grad_enabled_; }
  // Whether a backward pass runs.
  bool in_backward() const { return outermost_pass_ != nullptr; }
  // The backward pass that runs, or, of passes within passes, the first (dtensor/autograd/backward_pass.h).
  BackwardPass* outermost_pass() const { return outermost_pass_; }
  // Whether what backward delivers to parameters is brought to rest in the pass that delivers it (NoSync).
  bool syncs_gradients() const { return syncs_gradients_; }
  Purpose purpose() const { return purpose_; }
  // Whether what differs between training and use (dropout, batch norm) is to do as in training: unless the rank
  // evaluates (EvaluationGuard), or the module that runs (Module::Eval).
  bool training() const { return training_ && module_training_; }
  void set_training(bool training) { training_ = training; }

  // Every module's output is checked for elements that are not finite: for finding where they come from.
  bool check_finite() const { return check_finite_; }
  void set_check_finite(bool check) { check_finite_ = check; }

  // Randomness is a pure function of (seed, stream, step, global element index); these are the first and the
  // third, where dim 0 of what is being computed begins in the global batch, which shifts the fourth
  // (BatchOffsetGuard), and a number that changes the second (FoldInGuard; 0: not).
  uint64_t seed() const { return seed_; }
  void set_seed(uint64_t seed) { seed_ = seed; }
  uint64_t step() const { return step_; }
  void set_step(uint64_t step) {
    step_ = step;
    draws_outside_ = 0;
  }
  int64_t batch_offset() const { return batch_offset_; }
  uint64_t random_fold() const { return random_fold_; }

  // The module path being run, as a number: 0 is the root or none.
  int path_id() const { return place_.path_id.load(std::memory_order_relaxed); }
  int PathId(const std::string& path);
  const std::string& PathName(int path_id) const { return paths_[path_id]; }

  // Counts random calls in the current module path since the outermost root module's call began; outside of modules' calls,
  // since set_step. ResetCallNumbers starts both anew.
  uint64_t NextCallNumber() { return CallNumber()++; }
  void ResetCallNumbers();
  bool is_outside_modules() const { return path_id() == 0 && !in_root_call_; }
  // The number of the next random call here, and to set it.
  uint64_t call_number() { return CallNumber(); }
  void set_call_number(uint64_t number) { CallNumber() = number; }

  // Where the rank stands now, for a RandomScope later.
  // Cost:   copies one number per module path that has drawn since the root module's call.
  RandomSnapshot random_snapshot() const;

  // A communicator among `ranks` (world ranks, ascending, this one among them), for what runs between meshes.
  // Created at its first use, which every member reaches in the same order; then pooled by name and ranks.
  Communicator& Group(const std::string& name, const std::vector<int>& ranks);
  // The same for tensors in the ranks' second memory (World::host_allocator).
  Communicator& HostGroup(const std::string& name, const std::vector<int>& ranks);

  // What transfers between meshes this rank has worked out (dtensor/mesh_transfer.h).
  MeshTransferCache& mesh_transfers() { return *mesh_transfers_; }

  // The worker of a lane other than kInline; started at its first use.
  Worker& LaneWorker(Lane lane);

  // The turns of this rank's groups, by LanePriority; off until a plan asks for them.
  const std::shared_ptr<LinkTurns>& link_turns() const { return link_turns_; }

  // What the next collective is written down as.
  CommTag tag() const { return {static_cast<uint8_t>(purpose_), path_id()}; }

  // Number of tape nodes recorded so far: their order.
  uint64_t NextSequence() { return next_sequence_++; }

  // What watches the calls: the innermost guard of implicit redistributions
  // (dtensor/redistribution/implicit.h) and the observer of every call (dtensor/call/call_observer.h); null
  // where there is none.
  ImplicitRedistributionGuard* implicit_guard() const { return implicit_guard_; }
  CallObserver* call_observer() const { return call_observer_; }
  // Of the recomputed region that runs (dtensor/tape/kept_results.h): what it keeps; null where there is none.
  KeptResults* kept_results() const { return kept_results_; }

  // Whether what is saved for backward goes to the ranks' second memory (dtensor/host_memory.h).
  bool saves_on_host() const { return saves_on_host_; }
  // Whether what is recorded is dropped before it is differentiated (DropsHistoryGuard).
  bool drops_history() const { return drops_history_; }

  // The dtype in which products of floating tensors are computed, whatever theirs is (AutocastGuard); nothing outside.
  const std::optional<DType>& autocast() const { return autocast_; }

  // What tells allocators who holds their memory: by the module path.
  const std::shared_ptr<const BlockLabels>& labels() const { return labels_; }
  void set_labels(std::shared_ptr<const BlockLabels> labels) { labels_ = std::move(labels); }

  // Where warnings go, a line each; by default to stderr, from the mesh's first rank alone.
  using WarningSink = std::function<void(const std::string& line)>;
  const WarningSink& warning_sink() const { return warning_sink_; }
  void set_warning_sink(WarningSink sink) { warning_sink_ = std::move(sink); }
  // Whether nothing has been warned of under `key` before.
  bool FirstWarning(std::string key);

 private:
  friend class ImplicitRedistributionGuard;
  friend class NoImplicitChecksGuard;
  friend class CallObserverGuard;
  friend class KeptResultsGuard;
  friend class SaveOnHostGuard;
  friend class DropsHistoryGuard;
  friend class AutocastGuard;
  friend class BatchOffsetGuard;
  friend class FoldInGuard;
  friend class RandomScope;
  friend class RootCallScope;
  friend class NoGradGuard;
  friend class EnableGradGuard;
  friend class SyncGradientsGuard;
  friend class BackwardScope;
  friend class TrainingGuard;
  friend class ModuleTrainingGuard;
  friend class CheckFiniteGuard;
  friend class PurposeGuard;
  friend class PathGuard;

  uint64_t& CallNumber() { return is_outside_modules() ? draws_outside_ : call_numbers_[path_id()]; }

  World& world_;
  // Of the world, which tensors and models may outlive, as this state does with them.
  const std::shared_ptr<FlightRecorder> flight_recorder_;
  bool grad_enabled_ = true;
  bool syncs_gradients_ = true;
  BackwardPass* outermost_pass_ = nullptr;
  bool training_ = true;
  bool module_training_ = true;
  bool check_finite_ = false;
  Purpose purpose_ = Purpose::kActivation;
  uint64_t seed_ = 0;
  uint64_t step_ = 0;
  int64_t batch_offset_ = 0;
  uint64_t random_fold_ = 0;
  uint64_t next_sequence_ = 0;
  FlightPlace place_;  // the module path being run, and whether backward is
  ImplicitRedistributionGuard* implicit_guard_ = nullptr;
  CallObserver* call_observer_ = nullptr;
  KeptResults* kept_results_ = nullptr;
  bool saves_on_host_ = false;
  bool drops_history_ = false;
  std::optional<DType> autocast_;
  std::shared_ptr<const BlockLabels> labels_;
  WarningSink warning_sink_;
  absl::flat_hash_set<std::string> warned_;
  std::vector<std::string> paths_ = {""};
  absl::flat_hash_map<std::string, int> path_ids_;
  absl::flat_hash_map<int, uint64_t> call_numbers_;
  uint64_t draws_outside_ = 0;  // of modules' calls
  bool in_root_call_ = false;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Communicator>> groups_, host_groups_;
  const std::unique_ptr<MeshTransferCache> mesh_transfers_;
  std::shared_ptr<Worker> lane_workers_[kNumLanes];
  const std::shared_ptr<LinkTurns> link_turns_ = std::make_shared<LinkTurns>();
};

// Gives a variable another value while it lives, then its own again: what every guard below is.
template <class T>
class ScopedValue {
 public:
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 protected:
  ScopedValue(T& variable, T value) : variable_(variable), before_(std::exchange(variable, value)) {}
  ~ScopedValue() { variable_ = before_; }
  const T& before() const { return before_; }

 private:
  T& variable_;
  T before_;
};

// The same of a number that other threads read; only the owner's thread writes it.
class ScopedNumber {
 public:
  ScopedNumber(const ScopedNumber&) = delete;
  ScopedNumber& operator=(const ScopedNumber&) = delete;

 protected:
  ScopedNumber(std::atomic<int32_t>& number, int32_t value)
      : number_(number), before_(number.load(std::memory_order_relaxed)) {
    number.store(value, std::memory_order_relaxed);
  }
  ~ScopedNumber() { number_.store(before_, std::memory_order_relaxed); }

 private:
  std::atomic<int32_t>& number_;
  const int32_t before_;
};

// Records nothing on the tape while it lives.
class NoGradGuard : ScopedValue<bool> {
 public:
  explicit NoGradGuard(RankState& state) : ScopedValue(state.grad_enabled_, false) {}
};

// Records on the tape while it lives, within a NoGradGuard too.
class EnableGradGuard : ScopedValue<bool> {
 public:
  explicit EnableGradGuard(RankState& state) : ScopedValue(state.grad_enabled_, true) {}
};

// Says whether gradients that passes deliver while it lives are brought to rest in these (RankState::syncs_gradients).
class SyncGradientsGuard : ScopedValue<bool> {
 public:
  SyncGradientsGuard(RankState& state, bool syncs) : ScopedValue(state.syncs_gradients_, syncs) {}
};

// For loops that add up the gradients of several microbatches: backward passes that run while it lives leave
// gradients on each rank as they are, where the plan keeps them whole (DataParallel; with shard_state too), so
// that all ranks' are reduced once, in the first pass after it. Where the plan keeps gradients sharded
// (shard_gradient, FullyShard) each pass reduces, since what is not reduced would be whole.
//   for (int i = 0; i < n; ++i) {
//     std::optional<NoSync> no_sync;
//     if (i + 1 < n) no_sync.emplace(state);
//     Backward(Loss(i));
//   }
// Gradients that are held back are not in grad(); an optimizer's step before the last pass misses them. ClearGrad (ZeroGrad)
// drops them too, and so does a pass that fails: which part of them was its own nobody knows.
class NoSync : SyncGradientsGuard {
 public:
  explicit NoSync(RankState& state) : SyncGradientsGuard(state, false) {}
};

// Around a backward pass; passes nest.
class BackwardScope : ScopedValue<BackwardPass*>, ScopedNumber {
 public:
  BackwardScope(RankState& state, BackwardPass& pass)
      : ScopedValue(state.outermost_pass_, state.in_backward() ? state.outermost_pass_ : &pass),
        ScopedNumber(state.place_.in_backward, 1) {}
  bool is_outermost() const { return before() == nullptr; }
};

// Says where a microbatch starts in the global batch. While the guard lives, random activations (dropout,
// attention's dropout, the random functions of dtensor/functions/creation.h) count their dim 0 from `offset`
// on, so that a batch has the same bits in one microbatch and in many. A loop of microbatches holds one
// around each forward:
//   const BatchOffsetGuard guard(state, /*offset=*/i * x.shape()[0]);
// A guard within another states its own offset, not a sum: 0 for what has no batch dim. Initial values of
// parameters take no notice, and backward drops what its forward dropped.
//
// Errors: InvalidArgument for a negative offset.
class BatchOffsetGuard : ScopedValue<int64_t> {
 public:
  BatchOffsetGuard(RankState& state, int64_t offset);
};

// Puts the rank back to where it stood in its random draws: the same calls draw the same bits again. When it
// ends, the rank goes on from where it stood before, as if nothing had been drawn. This is how a forward is run a
// second time, for its backward, with the masks of the first:
//   const RandomSnapshot before = state.random_snapshot();
//   DTensor y = block(x);
//   ...
//   const RandomScope again(state, before);
//   DTensor same_bits = block(x);
// The seed, and whether the rank evaluates, are left as they are. Scopes nest. Within one, the call of a root
// module resets call numbers as it did there (RootCallScope); their end undoes that too.
class RandomScope {
 public:
  RandomScope(RankState& state, RandomSnapshot snapshot);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  void Swap() noexcept;

  RankState& state_;
  RandomSnapshot other_;  // what to go on from
};

// Around each module's call. A root module's starts modules' call numbers anew, unless another root's call stands, whose
// numbers go on: of a student whose forward calls a teacher that is no child of it.
class RootCallScope : ScopedValue<bool> {
 public:
  RootCallScope(RankState& state, bool is_root)
      : ScopedValue(state.in_root_call_, state.in_root_call_ || is_root) {
    if (is_root && !before()) state.call_numbers_.clear();
  }
};

// Runs with dropout while it lives, or without.
class TrainingGuard : ScopedValue<bool> {
 public:
  TrainingGuard(RankState& state, bool trains) : ScopedValue(state.training_, trains) {}
};
class EvaluationGuard : TrainingGuard {
 public:
  explicit EvaluationGuard(RankState& state) : TrainingGuard(state, false) {}
};

// Products are computed in another dtype while it lives: operands of matrix products, attention and convolutions are
// cast to it; losses, softmaxes and norms take theirs in f32, functions of two elements, Where and joins the widest of theirs.
// Everything else computes in what it is given: functions of single elements and reductions too, unlike PyTorch's. For code
// outside modules, and models without a Precision in their plan (parallel/styles/precision.h). `dtype` is f16, bf16, f32
// or f64; nothing: as it is, within another guard.
// Source: the semantics of torch.autocast, but for what is said above.
// Errors: InvalidArgument for a dtype that is not floating.
class AutocastGuard : ScopedValue<std::optional<DType>> {
 public:
  AutocastGuard(RankState& state, std::optional<DType> dtype);
};

// What is computed while it lives keeps what backward will read of it in the ranks' second memory, or on the device.
// Source: the semantics of torch.autograd.graph.save_on_cpu.
class SaveOnHostGuard : ScopedValue<bool> {
 public:
  SaveOnHostGuard(RankState& state, bool on_host) : ScopedValue(state.saves_on_host_, on_host) {}
};

// Says whether what is recorded while it lives is dropped before it is differentiated, as in the first run of a recomputed
// function. What is dropped is not copied to the second memory.
class DropsHistoryGuard : ScopedValue<bool> {
 public:
  DropsHistoryGuard(RankState& state, bool drops) : ScopedValue(state.drops_history_, drops) {}
};

// The module that runs is training, or is not, while it lives.
class ModuleTrainingGuard : ScopedValue<bool> {
 public:
  ModuleTrainingGuard(RankState& state, bool training) : ScopedValue(state.module_training_, training) {}
};

// Checks every module's output while it lives.
class CheckFiniteGuard : ScopedValue<bool> {
 public:
  explicit CheckFiniteGuard(RankState& state) : ScopedValue(state.check_finite_, true) {}
};

// Collectives are written down under `purpose` while it lives.
class PurposeGuard : ScopedValue<Purpose> {
 public:
  PurposeGuard(RankState& state, Purpose purpose) : ScopedValue(state.purpose_, purpose) {}
};

// The module path is `path_id` while it lives.
class PathGuard : ScopedNumber {
 public:
  PathGuard(RankState& state, int path_id) : ScopedNumber(state.place_.path_id, path_id) {}
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_RANK_STATE_H_
