#ifndef WEFT_DTENSOR_TAPE_LEAF_NODE_H_
#define WEFT_DTENSOR_TAPE_LEAF_NODE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dtensor/context/hook_list.h"
#include "dtensor/tape/gradient_sink.h"
#include "dtensor/tape/tape_node.h"
#include "mesh/layout.h"
#include "runtime/base/dtype.h"

namespace weft {

// The end of a gradient's way: a parameter, or a tensor of a user's own. When every use in a backward pass
// has delivered, the sum is brought to `layout` (the at-rest layout of the gradient) once, and added to
// `gradient`; by the leaf itself, or by its sink.
class LeafNode : public TapeNode {
 public:
  // `dtype`: what terms that come in another are cast to, once they have been brought to rest; as they come if not given.
  LeafNode(RankState& state, std::string name, const Layout& layout,
           std::optional<DType> dtype = std::nullopt)
      : TapeNode(state, {}, /*num_outputs=*/1), name_(std::move(name)), layout_(layout), dtype_(dtype) {}
  ~LeafNode() override;

  bool TakesAnyLayout() const override { return true; }
  // Not of a gradient that rests Partial: its terms would be cast as they lie.
  bool TakesTermsIn(DType dtype) const override {
    return dtype_ && IsFloating(dtype) && WiderOf(*dtype_, dtype) != *dtype_ && !layout_.HasPartial();
  }
  // A sink may have it on its way to other ranks while backward computes. A hook may change the parameter.
  bool TakesEarly() const override {
    return sink_ != nullptr && expects_ && (ready_hooks_ == nullptr || ready_hooks_->empty());
  }
  std::string Name() const override { return name_; }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients,
                    const NodeRun& /*run*/) override {
    TakeGradient(context, gradients[0]);
    return {};
  }
  void TakeGradient(MeshContext& context, DTensor gradient) override;
  GradientSink* sink() const override { return sink_.get(); }
  const Layout& layout() const { return layout_; }

  // From now on gradients go to `sink`, as those of leaf `index`; null: to rest by themselves.
  void set_sink(std::shared_ptr<GradientSink> sink, int index) {
    sink_ = std::move(sink);
    sink_index_ = index;
    if (sink_ != nullptr && !expects_) sink_->Expect(sink_index_, false);
  }
  // Whether the leaf takes gradients: what a pass brings to one that does not is dropped. Its sink is told.
  bool expects() const { return expects_; }
  void set_expects(bool expects) {
    if (sink_ != nullptr && expects != expects_) sink_->Expect(sink_index_, expects);
    expects_ = expects;
  }

  // Whether what comes to rest lies in the ranks' second memory (ToHost): each term is brought there, and added there.
  bool on_host() const { return on_host_; }
  void set_on_host(bool on_host) { on_host_ = on_host; }

  // What has come to rest, or undefined. May be pending.
  const DTensor& gradient() const;
  void ClearGradient() { set_gradient(DTensor()); }
  // In place of all that has come, what the sink holds back too.
  void set_gradient(DTensor gradient) {
    if (sink_ != nullptr) sink_->Drop(sink_index_);
    gradient_ = std::move(gradient);
    arriving_.clear();
  }
  // `hooks` are called when a gradient has come to rest, or is on its way and the first to read it waits; null: none.
  void set_ready_hooks(std::shared_ptr<const HookList<void()>> hooks) { ready_hooks_ = std::move(hooks); }
  // One more term, in the gradient's layout. It may be pending, or in the dtype in which it was reduced: it is cast and
  // added when the sum is asked for, or when the next comes; at once, where a CPU's is brought to its second memory. A
  // GPU's copy to the host begins at once.
  void AddGradient(DTensor term);

 private:
  void AddTerm(DTensor term);
  void AddOnHost(const DTensor& term);
  bool IsCast(const DTensor& term) const { return dtype_ && term.dtype() != *dtype_; }
  void AddArriving() const;

  std::string name_;
  Layout layout_;
  std::optional<DType> dtype_;
  std::shared_ptr<GradientSink> sink_;
  int sink_index_ = 0;
  bool expects_ = true;
  bool on_host_ = false;
  std::shared_ptr<const HookList<void()>> ready_hooks_;
  mutable DTensor gradient_;
  mutable absl::InlinedVector<DTensor, 1> arriving_;  // in the order they came
};

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_LEAF_NODE_H_
