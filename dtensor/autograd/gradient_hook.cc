#include "dtensor/autograd/gradient_hook.h"

#include <string>
#include <utility>

#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"

namespace weft {
namespace {

// The identity, but for what its hooks do.
class GradientHookNode final : public TapeNode {
 public:
  GradientHookNode(RankState& state, Edge edge)
      : TapeNode(state, Edges{std::move(edge)}, /*num_outputs=*/1) {}

  std::string Name() const override { return "gradient hook"; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients,
                    const NodeRun& /*run*/) override {
    DTensor gradient = gradients[0];
    for (const GradientHook& hook : hooks_.hooks()) {
      DTensor changed = hook(gradient);
      if (!changed.defined()) continue;
      WEFT_REQUIRE(changed.type() == gradient.type(), "gradient hook: expected ", gradient.type().ToString(),
                   ", got ", changed.type().ToString());
      const DeviceMesh &mesh = gradient.context()->mesh(), &given = changed.context()->mesh();
      WEFT_REQUIRE(given == mesh, "gradient hook: expected a tensor on mesh (", mesh.ToString(), "), got ",
                   changed.ToString(), " on mesh (", given.ToString(), ")");
      gradient = std::move(changed);
    }
    return {gradient};
  }

  HookHandle Add(GradientHook hook) { return hooks_.Add(std::move(hook)); }

 private:
  HookList<DTensor(const DTensor&)> hooks_;
};

}  // namespace

HookedTensor OnGradient(const DTensor& x, GradientHook hook) {
  WEFT_REQUIRE(hook != nullptr, "OnGradient: expected a function, got an empty one");
  WEFT_REQUIRE(x.defined() && x.requires_grad(), "OnGradient: expected a tensor that wants a gradient, got ",
               x.defined() ? x.ToString() : "an undefined one");
  auto* const node = new GradientHookNode(x.context()->state(), EdgeTo(x));
  HookedTensor hooked = {.value = WithoutHistory(x), .handle = {}};
  hooked.value.impl()->node = IntrusivePtr<TapeNode>(node);
  hooked.value.impl()->ShareOrigin(*x.impl());
  hooked.handle = node->Add(std::move(hook));
  return hooked;
}

}  // namespace weft
