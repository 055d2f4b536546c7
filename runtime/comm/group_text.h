#ifndef WEFT_RUNTIME_COMM_GROUP_TEXT_H_
#define WEFT_RUNTIME_COMM_GROUP_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/collective.h"

namespace weft {

// How every backend's errors name an operation of a group: "group 'dp', collective #3", "group 'pp',
// send_recv #1".
std::string OperationText(const std::string& group, CollectiveKind kind, uint64_t sequence);

// And members, given as group ranks, by their world ranks: "world ranks [1, 3]".
std::string WorldRanksText(const std::vector<int>& world_ranks, const std::vector<int>& members);

// A set of ranks, ascending, as short text for keys: "0-3,8".
std::string RankSetText(const std::vector<int>& ranks);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GROUP_TEXT_H_
