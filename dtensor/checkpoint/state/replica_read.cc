#include "dtensor/checkpoint/state/replica_read.h"

#include <algorithm>

namespace weft {

std::map<std::string, ReplicaRead> DivideReplicas(const StateTable& table,
                                                  const std::vector<LocalStateTensor>& tensors, int rank) {
  std::map<std::string, const LocalStateTensor*> by_name;  // in an order that all ranks have
  for (const LocalStateTensor& local : tensors) {
    if (local.is_exact) by_name[local.tensor.name] = &local;
  }
  // What each holder has to read so far, by the ranks that hold the same. The holders see all of it alike.
  std::map<std::vector<int>, std::vector<int64_t>> loads;
  std::map<std::string, ReplicaRead> reads;
  for (const auto& [name, local] : by_name) {
    const TensorPlace& place = table.at(name).place;
    const int64_t num_bytes = local->tensor.tensor.ToLocal().num_bytes();
    if (num_bytes == 0 || PlaceOf(local->tensor.tensor) != place) continue;
    std::vector<int> holders = HoldersOf(place, rank);
    if (holders.size() == 1) continue;
    std::sort(holders.begin(), holders.end());
    std::vector<int64_t>& load = loads[holders];
    load.resize(holders.size());
    const auto least = std::min_element(load.begin(), load.end());
    *least += num_bytes;
    reads[name] = {holders, holders[least - load.begin()]};
  }
  return reads;
}

}  // namespace weft
