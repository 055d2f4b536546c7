#ifndef WEFT_DTENSOR_TAPE_LEAF_NODE_H_
#define WEFT_DTENSOR_TAPE_LEAF_NODE_H_

#include <string>
#include <utility>

#include "dtensor/tape/tape_node.h"
#include "mesh/layout.h"

namespace weft {

// The end of a gradient's way: a parameter, or a tensor of a user's own. When every use in a backward pass
// has delivered, the sum is brought to `layout` (the at-rest layout of the gradient) once, and added to
// `gradient`.
class LeafNode : public TapeNode {
 public:
  LeafNode(RankState& state, std::string name, const Layout& layout)
      : TapeNode(state, {}, /*num_outputs=*/1), name_(std::move(name)), layout_(layout) {}

  bool TakesAnyLayout() const override { return true; }
  std::string Name() const override { return name_; }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients) override;

  const DTensor& gradient() const { return gradient_; }
  void ClearGradient() { gradient_ = DTensor(); }
  void set_gradient(DTensor gradient) { gradient_ = std::move(gradient); }

 private:
  std::string name_;
  Layout layout_;
  DTensor gradient_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_LEAF_NODE_H_
