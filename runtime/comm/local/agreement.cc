#include "runtime/comm/local/agreement.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Of all-to-alls, each sender's counts are compared with the receivers'.
bool Agrees(const LocalPosting& a, const LocalPosting& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root && a.count == b.count &&
         (a.kind == CollectiveKind::kAllToAll || a.counts == b.counts);
}

[[noreturn]] void Disagree(LocalGroup& group, int me, int a, int b, const std::string& what) {
  const auto call = [&](int member) {
    return absl::StrCat("rank ", group.ranks()[member], " called ",
                        group.posting(me, member).Descriptor().ToString());
  };
  const LocalPosting& posting = group.posting(me, a);
  group.Fail(absl::StatusCode::kInvalidArgument,
             absl::StrCat(group.Where(posting.kind, posting.sequence), ": ", call(a), ", ", call(b), what));
  group.Leave(me);
}

struct ListDifference {
  int peer = 0;  // that differs from member 0
  std::string what;
};

// Lists whose sums agree may still differ part by part.
std::optional<ListDifference> FindListDifference(const LocalGroup& group, int me) {
  const std::vector<LocalPart>& first = group.posting(me, 0).parts;
  for (int peer = 1; peer < group.size(); ++peer) {
    const std::vector<LocalPart>& parts = group.posting(me, peer).parts;
    if (parts.size() != first.size()) {
      return ListDifference{peer, absl::StrCat(": lists of ", first.size(), " parts and of ", parts.size())};
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].count == first[i].count && parts[i].counts == first[i].counts) continue;
      return ListDifference{peer, absl::StrCat(": their counts differ in part ", i, " of the list")};
    }
    // Counts are equal: so what they are of is not.
    if (group.posting(me, peer).list_fingerprint != group.posting(me, 0).list_fingerprint) {
      return ListDifference{peer, ": lists of the same counts, of other things"};
    }
  }
  return std::nullopt;
}

}  // namespace

void AgreeOnPostings(LocalGroup& group, int me) {
  const LocalPosting& first = group.posting(me, 0);
  for (int peer = 1; peer < group.size(); ++peer) {
    if (!Agrees(first, group.posting(me, peer))) Disagree(group, me, 0, peer, "");
  }
  if (first.kind != CollectiveKind::kAllToAll) return;
  for (int from = 0; from < group.size(); ++from) {
    for (int to = 0; to < group.size(); ++to) {
      const int64_t sent = group.posting(me, from).counts[to];
      const int64_t expected = group.posting(me, to).receive_counts[from];
      if (sent == expected) continue;
      Disagree(group, me, from, to,
               absl::StrCat(": rank ", group.ranks()[from], " sends ", sent, " elements to rank ",
                            group.ranks()[to], ", which expects ", expected));
    }
  }
}

// The counts of the parts lie in their owners' memory: a member that has come to the verdict stays until the others
// have, too. It tells the verdict outside, since members would wait for each other.
void AgreeOnParts(LocalGroup& group, int me) {
  std::optional<ListDifference> difference;
  {
    const LocalGroup::Access access(group, me);
    difference = FindListDifference(group, me);
  }
  if (difference.has_value()) Disagree(group, me, 0, difference->peer, difference->what);
}

}  // namespace weft
