#include "runtime/comm/group_text.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"

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

std::vector<int> ParseRankSet(absl::string_view text) {
  using Two = std::pair<absl::string_view, absl::string_view>;
  const auto number = [&](absl::string_view part) {
    int value = 0;
    WEFT_REQUIRE(absl::SimpleAtoi(part, &value), "not a set of ranks: '", text, "'");
    return value;
  };
  std::vector<int> ranks;
  if (text.empty()) return ranks;
  for (const absl::string_view run : absl::StrSplit(text, ',')) {
    const Two by_stride = absl::StrSplit(run, absl::MaxSplits(':', 1));
    const Two ends = absl::StrSplit(by_stride.first, absl::MaxSplits('-', 1));
    const int64_t last = number(ends.second.empty() ? ends.first : ends.second);
    const int stride = by_stride.second.empty() ? 1 : number(by_stride.second);
    WEFT_REQUIRE(stride > 0, "not a set of ranks: '", text, "'");
    for (int64_t rank = number(ends.first); rank <= last; rank += stride) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

}  // namespace weft
