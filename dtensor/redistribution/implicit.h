#ifndef WEFT_DTENSOR_REDISTRIBUTION_IMPLICIT_H_
#define WEFT_DTENSOR_REDISTRIBUTION_IMPLICIT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/context/rank_state.h"
#include "mesh/layout.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What to do when a call would move its operands between ranks without having been told to.
enum class ImplicitRedistribution : uint8_t { kAllow, kWarn, kForbid };

// Holds implicit redistributions to a mode, and their bytes to a budget, while it lives. The innermost
// guard's mode counts; every guard in force counts the bytes, and holds them to its own budget.
//
//                                                                                    implicit
//   dispatch moves an operand, so that an op's sharding rule holds                     yes
//   a slice, join, pad, roll or flip of a dim that is split sends rows to other ranks  yes, in backward too
//   a cast of integers that are Partial, or to f16, a selection, reduces first         yes
//   the gradient of an operand that was so moved goes back, in backward                yes
//   gradients of several uses of a result are added, and lie differently               yes
//   Redistribute, FullTensor, Item; a module's style; CallLocal's declared layouts     no: asked for
//   a parameter is gathered for its use, in forward or backward                        no: its plan says so
//   a leaf's gradient is summed and brought to rest                                    no: its plan says so
//   an op's decomposition combines its own statistics (a softmax over a split dim)    no: it is the op
//   what sends no bytes (a slice, a value that becomes one term of a sum)              no: it costs nothing
//
// kWarn says it once for each op and module path, to RankState's warning sink. kForbid and an exceeded budget
// throw FailedPrecondition before anything moves, alike on every rank: op, types, layouts, what would move,
// and the nearest legal layouts with their cost. In backward the guard in force is the one around Backward.
class ImplicitRedistributionGuard : ScopedValue<ImplicitRedistributionGuard*> {
 public:
  // Units: bytes are summed over all ranks of the mesh, as in the ledger.
  ImplicitRedistributionGuard(RankState& state, ImplicitRedistribution mode,
                              std::optional<int64_t> max_bytes = std::nullopt)
      : ScopedValue(state.implicit_guard_, this), outer_(before()), mode_(mode), max_bytes_(max_bytes) {}

  ImplicitRedistribution mode() const { return mode_; }
  // Moved implicitly since it began to live, inner guards included.
  int64_t num_bytes() const { return num_bytes_; }

 private:
  friend class ImplicitMoves;
  ImplicitRedistributionGuard* outer_;
  ImplicitRedistribution mode_;
  std::optional<int64_t> max_bytes_;
  int64_t num_bytes_ = 0;
};

// No guard applies while it lives: around moves that a plan has asked for.
class NoImplicitChecksGuard : ScopedValue<ImplicitRedistributionGuard*> {
 public:
  explicit NoImplicitChecksGuard(RankState& state) : ScopedValue(state.implicit_guard_, nullptr) {}
};

// What one call is about to move implicitly, for dispatch and the tape: add the moves, then Check.
class ImplicitMoves {
 public:
  explicit ImplicitMoves(MeshContext& context) : context_(context) {}

  // `what`: "operand 1", "the gradient of operand 0".
  void Add(std::string what, const TensorType& type, const Layout& from, const Layout& to);
  // A move that no plan describes: `text` says what would move, and how.
  void Add(std::string text, int64_t num_bytes);

  // Applies the guards in force, of which there must be one. `name` tells one warning from another; `call`
  // and `nearest` are asked for a message only.
  void Check(absl::string_view name, const std::function<std::string()>& call,
             const std::function<std::string()>& nearest) const;

 private:
  std::string Text() const;

  MeshContext& context_;
  int64_t num_bytes_ = 0;
  struct Move {
    std::string what;
    TensorType type;
    Layout from;
    Layout to;
  };
  std::vector<Move> moves_;
  std::vector<std::string> others_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_IMPLICIT_H_
