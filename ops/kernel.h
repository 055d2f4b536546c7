#ifndef WEFT_OPS_KERNEL_H_
#define WEFT_OPS_KERNEL_H_

#include <vector>

#include "ops/op.h"
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

// Every op that has a kernel, sorted by name: what the tests over all ops run on.
std::vector<const OpDef*> RegisteredOps();

}  // namespace weft

#endif  // WEFT_OPS_KERNEL_H_
