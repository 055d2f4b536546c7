// The tensors of a state over all ranks, which each of them knows alike.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_STATE_TABLE_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_STATE_TABLE_H_

#include <map>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder/tensor_place.h"
#include "dtensor/checkpoint/state/agreement.h"
#include "dtensor/checkpoint/state/state.h"

namespace weft {

// A tensor of the whole state.
struct StateTableEntry {
  TensorPlace place;
  bool is_exact = true;  // StatePart::is_exact

  bool operator==(const StateTableEntry&) const = default;
};
using StateTable = std::map<std::string, StateTableEntry>;  // by name

// A tensor of this rank's state.
struct LocalStateTensor {
  StateTensor tensor;
  bool is_exact = true;
};

// This rank's tensors of the parts of these names; of all, if there are none.
// Errors: InvalidArgument for a name that no part has, a tensor that stands twice, is undefined or Partial.
std::vector<LocalStateTensor> TensorsOf(const State& state, const std::vector<std::string>& parts);

// How it lies.
TensorPlace PlaceOf(const DTensor& tensor);

// Of all ranks: each tells what the meshes have of which it is the first rank. Of a tensor that several stages of a
// pipeline have, the first of them counts: the place is its.
// Cost:   two small all-gathers.
// Errors: InvalidArgument on every rank, if two tensors of one name are of different types.
StateTable GatherStateTable(Agreement& agreement, const std::vector<LocalStateTensor>& tensors);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_STATE_TABLE_H_
