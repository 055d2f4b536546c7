// Loading a run's state, on any mesh.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_RESTORE_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_RESTORE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/state/agreement.h"
#include "dtensor/checkpoint/state/state.h"
#include "dtensor/checkpoint/tensor_source.h"

namespace weft {

// Who reads what several ranks hold: replicas of parameters, of state that ZeRO does not split.
enum class ReplicaReads {
  kAuto,  // kOnce where the ranks are on more than one machine: on one, the system reads a file once, whoever asks
  kByEach,  // each rank all that it holds
  kOnce,    // one rank, which sends it to the others
};

struct RestoreOptions {
  std::vector<std::string> parts = {};  // those of the state that are loaded; none: all
  // The name in the checkpoint of what the state calls `name`; "" for what is not to be loaded. Not given: the same.
  std::function<std::string(const std::string& name)> rename = nullptr;
  bool strict = true;  // what only one side has is an error
  bool cast = false;   // takes floating values of another floating dtype, rounded
  ReplicaReads replicas = ReplicaReads::kAuto;
};

// What only one side has, in alphabetical order.
struct RestoreResult {
  std::vector<std::string> missing = {};     // the state's names of what the checkpoint lacks
  std::vector<std::string> unexpected = {};  // the checkpoint's, of what no part of the state has or knows

  bool operator==(const RestoreResult&) const = default;
};

// Reads a state: each rank the boxes that it has, whatever mesh, plan and number of ranks saved them. All names and types
// are looked at before anything is changed. Every rank calls it alike.
//
// `open`: opens the checkpoint; called once per rank.
// Cost:   two small all-gathers, with ReplicaReads::kAuto four; what is read, is read by the rank that needs it, or by one of those
//         that do, which sends it to each of the others (DivideReplicas): as many bytes as an all-gather of the replicas. Saved pieces that no rank reads whole, as on
//         another mesh, are read once more, shared out over the ranks, for their checksums: before anything is changed.
// Errors: on every rank, InvalidArgument that lists all that does not fit; those of `open` and of reading, which say which
//         rank's they are: tensors may be changed by then.
RestoreResult Restore(Agreement& agreement, const std::function<std::unique_ptr<TensorSource>()>& open,
                      const State& state, const RestoreOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_RESTORE_H_
