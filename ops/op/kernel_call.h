#ifndef WEFT_OPS_OP_KERNEL_CALL_H_
#define WEFT_OPS_OP_KERNEL_CALL_H_

#include <memory>

#include "absl/types/span.h"
#include "mesh/shard_math.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// What a kernel may use of its rank.
struct KernelContext {
  ThreadPool& pool;
  const std::shared_ptr<Allocator>& allocator;  // for workspace
};

// One call of a kernel on local tensors, attribute types erased. Kernels know no mesh and no layout; where
// the place of the piece in the whole matters (causal masks, rotary angles, dropout bits, vocabulary ranges)
// they read the boxes.
//
// Local extents may be 0. Outputs are row-major and uninitialised, but for views (the kernel sets them) and
// in-place ops (outputs[i] is the operand). Inputs may have any strides. An op may say otherwise of both.
//
// Kernels are deterministic: the bits of the result depend neither on the thread count nor on the run.
struct KernelCallBase {
  KernelContext& context;
  absl::Span<const Tensor> inputs;
  absl::Span<Tensor> outputs;
  absl::Span<const ShardBox> input_boxes;   // one per operand
  absl::Span<const ShardBox> output_boxes;  // one per output
  const void* erased_attributes;
  const void* erased_scalars;
};

// The same with the op's attribute types: the argument of a kernel.
template <class A, class R>
class KernelCall : public KernelCallBase {
 public:
  explicit KernelCall(const KernelCallBase& base) : KernelCallBase(base) {}
  const A& attributes() const { return *static_cast<const A*>(erased_attributes); }
  const R& scalars() const { return *static_cast<const R*>(erased_scalars); }
};

// A kernel, its type erased; OpDef::Invoke restores it.
using ErasedKernel = void (*)();

}  // namespace weft

#endif  // WEFT_OPS_OP_KERNEL_CALL_H_
