#include "dtensor/tape/redistribute_node.h"

#include <string>
#include <utility>

#include "dtensor/tape/gradient_layout.h"

namespace weft {
namespace {

class RedistributeNode final : public TapeNode {
 public:
  RedistributeNode(RankState& state, Edge edge, const Layout& source, const RedistributeOptions& options)
      : TapeNode(state, Edges{std::move(edge)}, /*num_outputs=*/1), source_(source), options_(options) {}

  std::string Name() const override { return "redistribute"; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients,
                    const NodeRun& /*run*/) override {
    Layout target = GradientLayout(source_, gradients[0].layout());
    for (const auto& [axis, placement] : options_.gradient) target = target.PlacedAlong(axis, placement);
    return {gradients[0].Redistribute(target)};
  }

 private:
  Layout source_;
  RedistributeOptions options_;
};

}  // namespace

IntrusivePtr<TapeNode> MakeRedistributeNode(RankState& state, TapeNode::Edge source, const Layout& layout,
                                            const RedistributeOptions& options) {
  return IntrusivePtr<TapeNode>(new RedistributeNode(state, std::move(source), layout, options));
}

}  // namespace weft
