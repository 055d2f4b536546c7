#include "runtime/comm/group_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {

std::string OperationText(const std::string& group, CollectiveKind kind, uint64_t sequence) {
  return absl::StrCat("group '", group, "', ", kind == CollectiveKind::kSendRecv ? "send_recv" : "collective",
                      " #", sequence);
}

std::string WorldRanksText(const std::vector<int>& world_ranks, const std::vector<int>& members) {
  const auto append = [&](std::string* text, int member) { absl::StrAppend(text, world_ranks[member]); };
  return absl::StrCat("world ranks [", absl::StrJoin(members, ", ", append), "]");
}

std::string WaitedText(const std::string& call, int world_rank, std::chrono::milliseconds timeout) {
  return absl::StrCat(call, ": world rank ", world_rank, " waited ", timeout.count(), " ms; ");
}

std::string TimeoutText(const std::string& call, int world_rank, std::chrono::milliseconds timeout,
                        const std::vector<int>& world_ranks, const std::vector<int>& missing) {
  return absl::StrCat(WaitedText(call, world_rank, timeout), WorldRanksText(world_ranks, missing),
                      " have not arrived");
}

std::string RankSetText(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[i]);
    if (last > i) absl::StrAppend(&text, "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace weft
