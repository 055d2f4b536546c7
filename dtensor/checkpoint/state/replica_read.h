// Which rank reads what of a checkpoint, where several hold the same.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_REPLICA_READ_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_REPLICA_READ_H_

#include <map>
#include <string>
#include <vector>

#include "dtensor/checkpoint/state/state_table.h"

namespace weft {

// A box that several ranks hold: one reads it and sends it to the others.
struct ReplicaRead {
  std::vector<int> holders;  // ascending
  int reader = 0;            // of them

  bool operator==(const ReplicaRead&) const = default;
};

// Of `rank`'s boxes of `tensors`, those that other ranks hold, too, by the tensor's name; so that of ranks that hold the same
// boxes each reads as many bytes as the others, up to a tensor. Every rank comes to the same conclusion.
//
// Left out, to be read by each that holds it: what is not exact, and a tensor that lies here in another place than the table
// says, as one that several stages of a pipeline have.
std::map<std::string, ReplicaRead> DivideReplicas(const StateTable& table,
                                                  const std::vector<LocalStateTensor>& tensors, int rank);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_REPLICA_READ_H_
