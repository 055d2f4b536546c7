#include "runtime/comm/gloo/collective_pieces.h"

#include <numeric>

namespace weft {
namespace {

// Up to here everybody sends a whole all-reduce to everybody: one step instead of two.
constexpr int64_t kWholeBytes = 32 << 10;
// From here on the receivers of a broadcast pass pieces on.
constexpr int64_t kPassedOnBytes = 256 << 10;

int64_t Offset(absl::Span<const int64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

}  // namespace

CollectivePieces::CollectivePieces(const GlooGroup& group, const CollectiveCall& call, bool in_list)
    : kind(call.descriptor.kind),
      counts(call.descriptor.counts),
      receive_counts(call.receive_counts),
      root(call.descriptor.root),
      me(group.rank()),
      size(group.size()),
      item(ItemSize(call.descriptor.dtype)),
      input(call.input.defined() ? static_cast<char*>(call.input.data()) : nullptr),
      output(call.output.defined() ? static_cast<char*>(call.output.data()) : nullptr) {
  if (HasOneCount(kind)) bytes = counts[0] * item;
  if (kind == CollectiveKind::kAllReduce) {
    // Of two by memory, each reads the other's whole at the price of passing halves back and forth.
    const bool is_large = in_list || bytes * (size - 1) > kWholeBytes;
    in_steps = size > 1 && is_large && (size > 2 || group.has_tcp());
  } else if (kind == CollectiveKind::kBroadcast) {
    in_steps = size > 2 && bytes > kPassedOnBytes;
  }
}

int64_t CollectivePieces::Begin(int rank) const { return Offset(counts, rank) * item; }

Piece CollectivePieces::Outgoing(int peer) const {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return in_steps ? Piece() : Piece{input, bytes};
    case CollectiveKind::kAllGather:
      return {input, counts[me] * item};
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return {input + Begin(peer), counts[peer] * item};
    case CollectiveKind::kBroadcast:
      return me == root && !in_steps ? Piece{input, bytes} : Piece();
    case CollectiveKind::kReduce:
      return peer == root ? Piece{input, bytes} : Piece();
    case CollectiveKind::kGather:
      return peer == root ? Piece{input, counts[me] * item} : Piece();
    case CollectiveKind::kScatter:
      return me == root ? Piece{input + Begin(peer), counts[peer] * item} : Piece();
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
      break;
  }
  return {};
}

Piece CollectivePieces::Incoming(int peer) const {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return {nullptr, in_steps ? 0 : bytes};
    case CollectiveKind::kAllGather:
      return {output + Begin(peer), counts[peer] * item};
    case CollectiveKind::kReduceScatter:
      return {nullptr, counts[me] * item};
    case CollectiveKind::kAllToAll:
      return {output + Offset(receive_counts, peer) * item, receive_counts[peer] * item};
    case CollectiveKind::kBroadcast:
      return peer == root && !in_steps ? Piece{output, bytes} : Piece();
    case CollectiveKind::kReduce:
      return {nullptr, me == root ? bytes : 0};
    case CollectiveKind::kGather:
      return me == root ? Piece{output + Begin(peer), counts[peer] * item} : Piece();
    case CollectiveKind::kScatter:
      return peer == root ? Piece{output, counts[me] * item} : Piece();
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
      break;
  }
  return {};
}

Piece CollectivePieces::Own() const {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return {input, counts[me] * item};
    case CollectiveKind::kAllToAll:
      return {input + Begin(me), counts[me] * item};
    case CollectiveKind::kGather:
      return me == root ? Piece{input, counts[me] * item} : Piece();
    case CollectiveKind::kScatter:
      return me == root ? Piece{input + Begin(me), counts[me] * item} : Piece();
    default:
      return {};
  }
}

int64_t CollectivePieces::OwnOffset() const {
  if (kind == CollectiveKind::kScatter) return 0;
  if (kind == CollectiveKind::kAllToAll) return Offset(receive_counts, me) * item;
  return Begin(me);
}

}  // namespace weft
