#ifndef WEFT_RUNTIME_COMM_GLOO_COLLECTIVE_PIECES_H_
#define WEFT_RUNTIME_COMM_GLOO_COLLECTIVE_PIECES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/gloo/group.h"

namespace weft {

// Bytes of a caller's tensor.
struct Piece {
  char* data = nullptr;
  int64_t num_bytes = 0;
};

// Which bytes of a call go to whom and come from whom, before anything is reduced or passed on.
struct CollectivePieces {
  CollectivePieces(const GlooGroup& group, const CollectiveCall& call);

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
