#ifndef WEFT_TESTS_OPS_CUDA_BOTH_DEVICES_H_
#define WEFT_TESTS_OPS_CUDA_BOTH_DEVICES_H_

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/op/op.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tools/rules/local_kernel.h"

namespace weft {

// Runs one op's kernel on the CPU and on (emulated) CUDA.
class BothDevices {
 public:
  // The operands of a call, in memory of the allocator: called once a device.
  using MakeOperands = std::function<std::vector<Piece>(const std::shared_ptr<Allocator>& allocator)>;

  struct Results {
    std::vector<Tensor> cpu, cuda;  // on the CPU, row-major
  };
  Results Run(const OpDef& op, const MakeOperands& make_operands, const std::vector<ShardBox>& boxes,
              const void* attributes, const void* scalars) {
    return {RunOn(cpu_, op, make_operands, boxes, attributes, scalars),
            RunOn(cuda_, op, make_operands, boxes, attributes, scalars)};
  }
  // The same with an op without attributes and scalars, and operands and an output that are whole.
  Results Run(const OpDef& op, const std::function<std::vector<Tensor>(std::shared_ptr<Allocator>)>& make,
              const Shape& output) {
    const auto pieces = [&make](const std::shared_ptr<Allocator>& allocator) {
      std::vector<Piece> operands;
      for (const Tensor& tensor : make(allocator)) operands.push_back({tensor, WholeBox(tensor.shape())});
      return operands;
    };
    const NoAttributes no_attributes;
    const NoScalars no_scalars;
    return Run(op, pieces, {WholeBox(output)}, &no_attributes, &no_scalars);
  }

 private:
  std::vector<Tensor> RunOn(const std::shared_ptr<Allocator>& allocator, const OpDef& op,
                            const MakeOperands& make_operands, const std::vector<ShardBox>& boxes,
                            const void* attributes, const void* scalars) {
    KernelContext context = {pool_, allocator};
    std::vector<Tensor> outputs;
    for (const Tensor& output :
         RunKernel(op, context, make_operands(allocator), boxes, attributes, scalars)) {
      outputs.push_back(OnHost(output));
    }
    return outputs;
  }

  ThreadPool pool_{1};
  const std::shared_ptr<Allocator> cpu_ = MakeCpuAllocator();
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
};

// The first element, of two row-major tensors on the CPU, whose bytes differ; empty if there is none.
inline std::string ByteDifference(const Tensor& actual, const Tensor& expected) {
  if (actual.TypeString() != expected.TypeString()) {
    return absl::StrCat(actual.TypeString(), " instead of ", expected.TypeString());
  }
  const int64_t item = ItemSize(actual.dtype());
  const char* const a = static_cast<const char*>(actual.data());
  const char* const b = static_cast<const char*>(expected.data());
  for (int64_t i = 0; i < actual.num_elements(); ++i) {
    if (std::memcmp(a + i * item, b + i * item, static_cast<size_t>(item)) != 0) {
      return absl::StrCat("element ", i, " of ", expected.TypeString(), ": ", actual.ToVector<double>()[i],
                          " instead of ", expected.ToVector<double>()[i]);
    }
  }
  return "";
}

// A row-major tensor of the dtype with elements that follow from their index: numbers in [low, high), whole
// ones for integers.
inline Tensor PatternTensor(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape,
                            double low, double high) {
  std::vector<double> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    const double fraction = static_cast<double>(i * 7919 % 4096) / 4096;
    values[i] = low + (high - low) * fraction;
  }
  // Cast on the host: the emulated device takes long.
  return CloneTensor(CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator()),
                     allocator);
}

}  // namespace weft

#endif  // WEFT_TESTS_OPS_CUDA_BOTH_DEVICES_H_
