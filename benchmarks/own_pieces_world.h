#ifndef WEFT_BENCHMARKS_OWN_PIECES_WORLD_H_
#define WEFT_BENCHMARKS_OWN_PIECES_WORLD_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/launch/world.h"

namespace weft {

// A rank of `inner` whose collectives fill their outputs from its own pieces and wait for nobody: what a step costs with
// every copy and every call, and without a peer. Values are wrong.
//
// Lifetime: `inner` outlives it.
// Errors:   its groups throw Unimplemented for what data parallelism does not ask for.
class OwnPiecesWorld final : public World {
 public:
  explicit OwnPiecesWorld(World& inner)
      : World(inner.rank(), inner.size(), inner.pool().num_threads(), inner.allocator(), inner.tracer()) {}
  ~OwnPiecesWorld() override { FinishWork(); }

 protected:
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override;
};

}  // namespace weft

#endif  // WEFT_BENCHMARKS_OWN_PIECES_WORLD_H_
