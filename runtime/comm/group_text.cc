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
    const int stride = i + 1 < ranks.size() ? ranks[i + 1] - ranks[i] : 1;
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + stride) ++last;
    // Of two that are no neighbours, the second may begin a longer run.
    if (stride > 1 && last == i + 1) last = i;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[i]);
    if (last > i) absl::StrAppend(&text, "-", ranks[last]);
    if (last > i && stride > 1) absl::StrAppend(&text, ":", stride);
    i = last + 1;
  }
  return text;
}

}  // namespace weft
