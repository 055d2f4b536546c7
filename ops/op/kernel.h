#ifndef WEFT_OPS_OP_KERNEL_H_
#define WEFT_OPS_OP_KERNEL_H_

#include <vector>

#include "ops/op/op.h"
#include "runtime/device/device.h"

namespace weft {

// Registers a kernel of an op for one device, from the kernel's own file, during static initialisation:
//   const RegisterKernel kRegister(kContract, DeviceType::kCpu, Contract);
// The table is complete before main and never changes after. Registering the same pair twice ends the program
// with a message: it is a defect of the build.
class RegisterKernel {
 public:
  template <class A, class R>
  RegisterKernel(const Op<A, R>& op, DeviceType device, void (*kernel)(const KernelCall<A, R>&)) {
    Add(op, device, reinterpret_cast<ErasedKernel>(kernel));
  }

 private:
  static void Add(const OpDef& op, DeviceType device, ErasedKernel kernel);
};

// The kernel of `op` on `device`, or null.
ErasedKernel FindKernel(const OpDef& op, DeviceType device);

// The kernel that a call of `op` runs where its tensors lie on `device`: null on meta but for views, which
// compute shapes.
// Errors: Unimplemented where there is none.
ErasedKernel KernelFor(const OpDef& op, const Device& device);

// Several calls of one op at once, on a device where that costs less than each by itself (fewer launches).
// The calls are of one rank and independent: none writes what another touches. Results have the bits of the
// op's kernel. Calls differ in all but the op and its attributes; KernelCall<A, R>(call) has the types.
using BatchKernel = void (*)(absl::Span<const KernelCallBase> calls);

// Registers one as RegisterKernel does, beside the op's kernel. Not for views.
class RegisterBatchKernel {
 public:
  RegisterBatchKernel(const OpDef& op, DeviceType device, BatchKernel kernel);
};

// That of `op` on `device`, or null.
BatchKernel FindBatchKernel(const OpDef& op, DeviceType device);

// Every op that has a kernel, sorted by name: what the tests over all ops run on.
std::vector<const OpDef*> RegisteredOps();

}  // namespace weft

#endif  // WEFT_OPS_OP_KERNEL_H_
