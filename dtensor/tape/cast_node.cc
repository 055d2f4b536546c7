#include "dtensor/tape/cast_node.h"

#include <utility>

#include "ops/elementwise/cast.h"

namespace weft {
namespace {

// The gradients of a cast copy, summed in the dtype of what was copied: in bf16 the sum of many would stop
// growing.
class CastNode final : public TapeNode {
 public:
  CastNode(RankState& state, Edge edge, DType dtype)
      : TapeNode(state, Edges{std::move(edge)}, /*num_outputs=*/1), dtype_(dtype) {}

  bool TakesAnyLayout() const override { return true; }
  bool TakesTermsIn(DType dtype) const override { return KeepsTerms(dtype, dtype_); }
  bool TakesEarly() const override { return edges()[0].node->TakesEarly(); }
  DType SumDType(DType /*arriving*/) const override { return dtype_; }
  std::string Name() const override { return "cast"; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients,
                    const NodeRun& /*run*/) override {
    return {gradients[0]};
  }

 private:
  DType dtype_;
};

}  // namespace

IntrusivePtr<TapeNode> MakeCastNode(RankState& state, IntrusivePtr<TapeNode> source, DType dtype) {
  return IntrusivePtr<TapeNode>(new CastNode(state, {std::move(source), 0}, dtype));
}

}  // namespace weft
