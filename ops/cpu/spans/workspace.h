#ifndef WEFT_OPS_CPU_SPANS_WORKSPACE_H_
#define WEFT_OPS_CPU_SPANS_WORKSPACE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Runs `task(i, workspace)` for every i below num_tasks. Each workspace holds `elements` of T, and serves one
// task at a time. Which one serves which task is not defined: tasks must not read what they have not written.
template <class T>
void RunWithWorkspace(KernelContext& context, int64_t num_tasks, int64_t elements,
                      absl::FunctionRef<void(int64_t task, T* workspace)> task) {
  const int64_t lanes = std::min<int64_t>(context.pool.num_threads(), num_tasks);
  const Tensor workspace = Tensor::Empty(context.allocator, kDTypeOf<T>, {lanes, elements});
  std::atomic<int64_t> next = 0;
  context.pool.Run(lanes, [&](int64_t lane) {
    T* const own = workspace.data<T>() + lane * elements;
    for (int64_t i = next++; i < num_tasks; i = next++) task(i, own);
  });
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_WORKSPACE_H_
