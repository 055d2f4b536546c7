#ifndef WEFT_RUNTIME_COMM_GROUP_TEXT_H_
#define WEFT_RUNTIME_COMM_GROUP_TEXT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/comm/collective.h"

namespace weft {

// How every backend's errors name an operation of a group: "group 'dp', collective #3", "group 'pp',
// send_recv #1".
std::string OperationText(const std::string& group, CollectiveKind kind, uint64_t sequence);

// And members, given as group ranks, by their world ranks: "world ranks [1, 3]".
std::string WorldRanksText(const std::vector<int>& world_ranks, const std::vector<int>& members);

// What every backend says of a call whose timeout has passed: "group 'dp', collective #3, barrier(): world rank 0
// waited 50 ms; world ranks [1] have not arrived". `call` names group and call, `world_rank` has waited, `missing`
// are group ranks.
std::string TimeoutText(const std::string& call, int world_rank, std::chrono::milliseconds timeout,
                        const std::vector<int>& world_ranks, const std::vector<int>& missing);

// The same up to the semicolon, for whoever cannot say who is missing.
std::string WaitedText(const std::string& call, int world_rank, std::chrono::milliseconds timeout);

// A set of ranks, ascending, as short text for keys: "0-3,8", and with a stride "0-8190:2". No other set has the same.
std::string RankSetText(const std::vector<int>& ranks);

// The set whose text it is.
// Errors: InvalidArgument for what is no set's text.
std::vector<int> ParseRankSet(absl::string_view text);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GROUP_TEXT_H_
