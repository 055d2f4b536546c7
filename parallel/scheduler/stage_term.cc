#include "parallel/scheduler/stage_term.h"

#include <utility>

namespace weft {
namespace {

// Of one leaf.
class TermSink final : public GradientSink {
 public:
  explicit TermSink(IntrusivePtr<LeafNode> term) : term_(std::move(term)) {}

  void Deliver(int /*leaf*/, DTensor gradient) override {
    term_->AddGradient(gradient.Redistribute(term_->layout()));
  }
  void Forget(int /*leaf*/) noexcept override { term_->ClearGradient(); }
  void Drop(int /*leaf*/) noexcept override { term_->ClearGradient(); }
  void EndPass() override {}
  void AbandonPass() noexcept override { term_->ClearGradient(); }

 private:
  const IntrusivePtr<LeafNode> term_;
};

}  // namespace

StageTerm MakeStageTerm(Parameter& parameter) {
  const DTensor& value = parameter.at_rest();
  StageTerm term = {
      .parameter = &parameter,
      .leaf = MakeIntrusive<LeafNode>(value.context()->state(), parameter.path(),
                                      parameter.layouts().of_gradient(), value.dtype()),
  };
  term.leaf->set_on_host(parameter.leaf().on_host());
  return term;
}

std::shared_ptr<GradientSink> SinkInto(const StageTerm& term) {
  return std::make_shared<TermSink>(term.leaf);
}

}  // namespace weft
