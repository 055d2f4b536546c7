// What a recomputed region keeps of its forward, so that some calls need not run twice.

#ifndef WEFT_DTENSOR_TAPE_KEPT_RESULTS_H_
#define WEFT_DTENSOR_TAPE_KEPT_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/context/rank_state.h"
#include "dtensor/dtensor.h"
#include "dtensor/tape/saved_value.h"
#include "mesh/layout.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

class Execution;
class OpDef;
struct ErasedCall;

// The ops whose results a recomputed region keeps. A value.
class KeptOps {
 public:
  // Each word is an op's name, or one of the families
  //   contract:  every product of the operands by the weights or by each other: contract, linear, gelu_linear
  //   attention: every form of it: attention, packed_attention, masked_attention
  // Errors: InvalidArgument for another word, naming the nearest op.
  explicit KeptOps(const std::vector<std::string>& words = {});

  bool Has(const OpDef& op) const;
  bool empty() const { return names_.empty(); }

 private:
  std::vector<std::string> names_;
};

// The results of the calls of one region, in the order of the calls: forward adds them, each later run of the region
// takes them in the place of running the calls. In between they are saved like everything that backward reads (SavedValue): in
// the second memory, where the rank's state says so.
class KeptResults {
 public:
  // `drops`: whether the region's history is dropped (DropsHistoryGuard), as within another region's first run.
  explicit KeptResults(const KeptOps& ops, bool drops = false) : ops_(ops), drops_(drops) {}

  bool keeps_any() const { return !ops_.empty(); }
  // From now on the region runs again, from its beginning.
  // Cost:   what lies in the second memory is fetched, the last first.
  // Errors: FailedPrecondition if what it reads has been written to since (NoteReads).
  void Rewind();
  // Notes what the region's first run reads of what may be written to in place, in calls, functions of pieces and where its
  // history is moved: of leaves and parameters, of copies of these too.
  void NoteReads(absl::Span<const DTensorRef> operands);
  // Those of a region within it.
  void NoteReads(const KeptResults& inner);

  // Runs a call that is to be recorded. One of an op that is kept runs the first time alone: later it gives what it made,
  // with its operands brought to where backward will read them.
  // Errors: those of the call; FailedPrecondition if it makes another type or layout than the first time, or is one
  //         call too many.
  DTensors Run(Execution& execution);

 private:
  // What an op made.
  struct Result {
    TensorType type;
    Layout layout;
    SavedValue value;  // without history
  };
  // Of memory that may be written to: when it was read, and as what.
  struct Read {
    IntrusivePtr<WriteLog> writes;
    int64_t version = 0;
    TensorType type;
  };

  void Note(const Read& read);

  KeptOps ops_;
  bool drops_;
  std::vector<std::vector<Result>> results_;  // of each call
  std::vector<Read> reads_;                   // one of each log, the last
  bool is_first_ = true;                      // the region runs for the first time
  std::vector<DTensors> here_;                // those of the run that goes on, until it takes them
  size_t next_ = 0;
};

// RunRecorded for the calls of a recomputed function.
DTensors RunInRecomputed(const ErasedCall& call, KeptResults& kept);

// Calls that are recorded while it lives are those of a region; null: of none.
class KeptResultsGuard : ScopedValue<KeptResults*> {
 public:
  KeptResultsGuard(RankState& state, KeptResults* results) : ScopedValue(state.kept_results_, results) {}
};

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_KEPT_RESULTS_H_
