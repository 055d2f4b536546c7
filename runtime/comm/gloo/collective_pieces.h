#ifndef WEFT_RUNTIME_COMM_GLOO_COLLECTIVE_PIECES_H_
#define WEFT_RUNTIME_COMM_GLOO_COLLECTIVE_PIECES_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/gloo/group.h"
#include "runtime/comm/gloo/ring.h"

namespace weft {

// Bytes of a caller's tensor.
struct Piece {
  char* data = nullptr;
  int64_t num_bytes = 0;
};

// What a member reduces or passes on at a time by memory: it stays in the cache.
inline constexpr int64_t kRingChunk = 128 << 10;

// A part of `bytes` that `member` of `size` makes or passes on: whole lines, but for the last.
struct Slice {
  int64_t begin;
  int64_t end;
};
inline Slice SliceOf(int64_t bytes, int member, int size) {
  const int64_t chunk = WholeLines((bytes + size - 1) / size);
  return {std::min(bytes, chunk * member), std::min(bytes, chunk * (member + 1))};
}
// Up to `length` bytes of it.
inline Slice PartOf(const Slice& slice, int64_t begin, int64_t length) {
  return {std::min(slice.end, slice.begin + begin), std::min(slice.end, slice.begin + begin + length)};
}

// Which bytes of a call go to whom and come from whom, before anything is reduced or passed on.
struct CollectivePieces {
  // `in_list`: behind one header with others; all all-reduces of a list go in steps, or none.
  CollectivePieces(const GlooGroup& group, const CollectiveCall& call, bool in_list = false);

  Piece Outgoing(int peer) const;
  Piece Incoming(int peer) const;  // no data: it is to be reduced
  Piece Own() const;               // this member's piece of its own output: where it comes from
  int64_t OwnOffset() const;       // and where in the output it belongs

  // Bytes before the piece of `rank`, of the kinds that have one count a rank.
  int64_t Begin(int rank) const;

  const CollectiveKind kind;
  const CollectiveDescriptor::Counts& counts;
  const absl::Span<const int64_t> receive_counts;
  const int root;
  const int me;
  const int size;
  const int64_t item;  // bytes
  char* const input;   // null: this member has none
  char* const output;
  int64_t bytes = 0;      // of the whole, of kinds with one count
  bool in_steps = false;  // a large all-reduce or broadcast: it sends its own pieces
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_COLLECTIVE_PIECES_H_
