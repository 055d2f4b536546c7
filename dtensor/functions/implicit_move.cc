#include "dtensor/functions/implicit_move.h"

#include <string>

#include "dtensor/redistribution/implicit.h"
#include "mesh/redistribution/mesh_transfer.h"

namespace weft {

DTensor MoveImplicitly(absl::string_view name, absl::string_view what, const DTensor& x,
                       const Layout& layout) {
  if (layout == x.layout()) return x;
  MeshContext& context = *x.context();
  if (context.state().implicit_guard() != nullptr) {
    ImplicitMoves moves(context);
    moves.Add(std::string(what), x.type(), x.layout(), layout);
    const auto call = [&] { return std::string(name); };
    moves.Check(name, call, [] { return std::string(); });
  }
  return x.Redistribute(layout);
}

DTensor Reduced(absl::string_view name, const DTensor& x) {
  return MoveImplicitly(name, "operand 0", x, WithoutPartial(x.layout()));
}

}  // namespace weft
