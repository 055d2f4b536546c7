// The kinds of collectives, and what the members of a group have to agree on.

#ifndef WEFT_RUNTIME_COMM_COLLECTIVE_H_
#define WEFT_RUNTIME_COMM_COLLECTIVE_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"

namespace weft {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kSendRecv,
  kBarrier,
};

// "all_reduce", "all_gather", ...: the names used in errors, the ledger and traces.
absl::string_view CollectiveName(CollectiveKind kind);

// True for the kinds whose descriptor has one count, the same on all members; other kinds have one per rank.
bool HasOneCount(CollectiveKind kind);

// True for the kinds that combine elements, whose descriptor has an op.
bool HasReduction(CollectiveKind kind);

// True for the kinds whose descriptor has a root.
bool HasRoot(CollectiveKind kind);

// What every member of a group must agree on when it enters a collective.
struct CollectiveDescriptor {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;  // broadcast, reduce, gather, scatter
  // Elements: one for the equal kinds, one per rank for the uneven ones. In place for small groups.
  using Counts = absl::InlinedVector<int64_t, 4>;
  Counts counts = {};
  // Of a list that is one operation (`counts` are then sums): how many parts it has. 0: it is no list.
  uint32_t num_parts = 0;
  // What the counts of a list's parts are, and what the operation is of (CommOptions::subject), as far as a number can
  // tell. 0: neither.
  uint32_t fingerprint = 0;

  // Adds `part` to the list that this is; to an empty descriptor, the first. Parts are of one kind, dtype and op.
  void Append(const CollectiveDescriptor& part);
  // Goes into the fingerprint.
  void Mix(uint32_t word);

  bool operator==(const CollectiveDescriptor&) const = default;

  // "all_reduce(f32, sum, count 12)"; of a list "all_reduce(f32, sum, count 12 in 2 parts #9f3a01bc)", the number being
  // the fingerprint.
  std::string ToString() const;
};

// Bytes of one collective summed over its group, counting what members lack (not what an algorithm moves):
// all-gather and reduce-scatter of S bytes (n-1)S, all-reduce 2(n-1)S, broadcast (n-1)S, reduce (n-1)S,
// gather and scatter S less the root's own piece. S is the bytes of the whole buffer. All-to-all is not a
// function of this descriptor alone: see Communicator::AllToAll.
int64_t LedgerBytes(const CollectiveDescriptor& descriptor, int group_size);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_COLLECTIVE_H_
