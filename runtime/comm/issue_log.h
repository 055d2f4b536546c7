#ifndef WEFT_RUNTIME_COMM_ISSUE_LOG_H_
#define WEFT_RUNTIME_COMM_ISSUE_LOG_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// The collectives that a rank has issued, in order, to be compared with the other ranks': a switch for debugging
// (WorldOptions::check_issue_order).
//
// The rule: of any two ranks, those collectives whose groups hold both are issued in the same order, whatever lanes
// they go through. Members that pair other calls are told so by the call itself; what that cannot see is two calls
// alike in the wrong order, such as two buckets of gradients of one size: each would be added to the other.
//
// Threads: any.
class IssueLog {
 public:
  struct Entry {
    std::string group;       // the same on all members
    std::vector<int> ranks;  // world ranks of the members
    std::string call;        // "all_reduce(f32, sum, count 12) on axis dp (blocks.1, grad)"

    bool operator==(const Entry&) const = default;
  };

  void Add(Entry entry);
  void Clear();
  std::vector<Entry> entries() const;

  // By rank of the world: a hash of the entries in whose groups it is, in order.
  std::vector<uint64_t> HashesByPeer(int world_size) const;

  // The entries as bytes, and back.
  // Errors: InvalidArgument for bytes that Encode has not made.
  std::string Encode() const;
  static std::vector<Entry> Decode(absl::string_view bytes);

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

// What differs first between the ranks' entries, of which `by_rank` has one list per rank of the world; nullopt if
// nothing does. Of the ranks, the one that disagrees with most others is named, with the first of those: "rank 1
// issued all_reduce(f32, sum, count 12) on axis dp (b, grad) as collective 3 of those that it shares with rank 0,
// which issued all_reduce(f32, sum, count 12) on axis dp (a, grad)". Of a rank that issued fewer: "issued nothing".
std::optional<std::string> FirstDifference(absl::Span<const std::vector<IssueLog::Entry>> by_rank);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_ISSUE_LOG_H_
