#ifndef WEFT_DTENSOR_TAPE_GRADIENT_SINK_H_
#define WEFT_DTENSOR_TAPE_GRADIENT_SINK_H_

#include <cstdint>

#include "dtensor/dtensor.h"

namespace weft {

// Takes the gradients of leaves, and brings them to rest: alone or together, at once or later, as they are or
// changed. Whatever stands between a leaf's last use and its grad() is a sink: buckets, accumulation over
// microbatches, compression, offload. A leaf without one brings its gradient to rest at once, by itself.
//
// Threads: the rank's thread, in the order of the tape, which is the same on every rank.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // `leaf`, by the number that it was given with the sink, has had its last use in this pass: `gradient` is
  // the sum of what arrived, in whatever layout that has. The sink leaves what becomes of it in the leaf
  // (LeafNode::AddGradient), before EndPass returns unless it holds gradients back. The node of that use may still read the
  // leaf's value (TapeNode::TakesEarly): a sink does not change it.
  virtual void Deliver(int leaf, DTensor gradient) = 0;

  // The leaf is gone: nothing more comes of it, in this pass or later, and nothing is to be left in it.
  virtual void Forget(int leaf) noexcept = 0;

  // The leaf's gradient is cleared, or replaced: what is held back of it is void.
  virtual void Drop(int /*leaf*/) noexcept {}

  // From the next pass on the leaf delivers gradients, or delivers none: a sink that waits for several waits for it, or
  // does not. What is held back of one that delivers none is void. Leaves deliver unless this says otherwise.
  virtual void Expect(int /*leaf*/, bool /*expects*/) {}

  // The outermost backward pass that reached a leaf of this sink has ended: no more comes of this pass.
  virtual void EndPass() = 0;

  // The same, but the pass has failed: what it delivered is void, and so is what is held back of passes before it, since it may
  // have been added there. Also behind an EndPass that has failed.
  virtual void AbandonPass() noexcept = 0;

  // Passes end by it: of several sinks, first for the one that has the least. Sinks that communicate there take theirs from
  // RankState::NextSequence when they are made, which is in the same order on every rank.
  virtual uint64_t sequence() const { return 0; }
};

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_GRADIENT_SINK_H_
