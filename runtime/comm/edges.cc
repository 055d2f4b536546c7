#include "runtime/comm/edges.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"

namespace weft {

// In the order of `edges`, which is everybody's: a member waits for the other end of a queue, which comes to it.
Edges::Edges(const std::string& name, const std::vector<int>& ranks, int world_rank,
             absl::Span<const Edge> edges, MakeGroup make_group)
    : name_(name), ranks_(ranks) {
  const int size = static_cast<int>(ranks.size());
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  WEFT_REQUIRE(found != ranks.end(), "edges '", name, "': world rank ", world_rank, " is no member of [",
               absl::StrJoin(ranks, ", "), "]");
  me_ = static_cast<int>(found - ranks.begin());
  std::set<std::pair<int, int>> known;
  for (const Edge& edge : edges) {
    const std::string what = absl::StrCat("edges '", name, "': edge ", edge.from, "->", edge.to);
    WEFT_REQUIRE(std::min(edge.from, edge.to) >= 0 && std::max(edge.from, edge.to) < size, what,
                 " leaves the group, which has ", size, " members");
    WEFT_REQUIRE(edge.from != edge.to, what, " leads to itself");
    WEFT_REQUIRE(edge.num_tags >= 1, what, " has ", edge.num_tags, " tags, expected at least 1");
    WEFT_REQUIRE(known.insert({edge.from, edge.to}).second, what, " is given twice");
  }
  for (const Edge& edge : edges) {
    if (edge.from != me_ && edge.to != me_) continue;
    const std::vector<int> ends = {ranks[std::min(edge.from, edge.to)], ranks[std::max(edge.from, edge.to)]};
    for (int tag = 0; tag < edge.num_tags; ++tag) {
      queues_[{edge.from, edge.to, tag}] =
          make_group(absl::StrCat(name, " ", ranks[edge.from], "->", ranks[edge.to], " tag ", tag), ends);
    }
  }
}

Communicator& Edges::queue(int from, int to, int tag) const {
  const auto found = queues_.find({from, to, tag});
  if (found != queues_.end()) return *found->second;
  std::vector<std::string> known;
  for (const auto& [key, queue] : queues_) {
    known.push_back(absl::StrCat(std::get<0>(key), "->", std::get<1>(key), " tag ", std::get<2>(key)));
  }
  ThrowInvalidArgument(absl::StrCat("edges '", name_, "': member ", me_, " has no edge ", from, "->", to,
                                    " tag ", tag, "; it has ",
                                    known.empty() ? "none" : absl::StrJoin(known, ", ")));
}

// Of the two ends, group ranks go by world rank.
Work Edges::Send(const Tensor& tensor, int to, int tag, CommOptions options) {
  return queue(me_, to, tag).Send(tensor, me_ < to ? 1 : 0, options);
}

Work Edges::Recv(const Tensor& tensor, int from, int tag, CommOptions options) {
  return queue(from, me_, tag).Recv(tensor, me_ < from ? 1 : 0, options);
}

void Edges::set_timeout(std::chrono::milliseconds timeout) {
  for (const auto& [key, queue] : queues_) queue->set_timeout(timeout);
}

}  // namespace weft
