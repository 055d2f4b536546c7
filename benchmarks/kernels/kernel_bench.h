#ifndef WEFT_BENCHMARKS_KERNELS_KERNEL_BENCH_H_
#define WEFT_BENCHMARKS_KERNELS_KERNEL_BENCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "benchmarks/device_limits.h"
#include "ops/op/op.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// One call of an op's kernel on whole tensors, again and again, as dispatch makes it on one rank: each
// run takes its outputs from the pool and gives them back.
class BenchCall {
 public:
  using Outputs = absl::InlinedVector<Tensor, 4>;

  template <class A, class R>
  BenchCall(const Op<A, R>& op, KernelContext& context, std::vector<Tensor> inputs, const A& attributes = {},
            const R& scalars = {})
      : BenchCall(op, context, std::move(inputs), op.CloneAttributes(&attributes),
                  op.CloneScalars(&scalars)) {}

  Outputs Run() const;

  // The bytes that the kernel cannot do without: each operand read once, each output written once.
  int64_t num_bytes() const;
  // The bytes that the call touches at all: an operand updated in place counts once.
  int64_t footprint() const;

 private:
  BenchCall(const OpDef& op, KernelContext& context, std::vector<Tensor> inputs,
            std::shared_ptr<const void> attributes, std::shared_ptr<const void> scalars);

  const OpDef* op_;
  ErasedKernel kernel_;
  KernelContext* context_;
  std::vector<Tensor> inputs_;
  TensorTypes output_types_;
  std::vector<int> in_place_;  // the operand that output i overwrites; empty if none does
  std::vector<ShardBox> input_boxes_;
  std::vector<ShardBox> output_boxes_;
  std::shared_ptr<const void> attributes_;
  std::shared_ptr<const void> scalars_;
};

// What the device does at best, measured when first asked: a quarter of a second each.
class KnownLimits {
 public:
  explicit KnownLimits(DeviceType device) : device_(device) {}

  DeviceType device() const { return device_; }

  // In bytes per second: triad on the CPU, a GPU's copy within its memory. Footprints are rounded to three
  // bits, so that many figures share a limit.
  double Memory(int64_t footprint, int threads);
  // In flops per second; of bf16, or else of f32. A GPU's is its data sheet's, 0 for one that is not known.
  double Peak(DType dtype, int threads);

 private:
  DeviceType device_;
  std::map<std::pair<int64_t, int>, double> memory_;
  std::map<std::pair<DType, int>, double> peaks_;
};

// What a family of kernels is measured with: tensors of one size, one number of threads.
class KernelBench {
 public:
  // Tensors take `tensor_bytes` each. Borrows the limits.
  KernelBench(int64_t tensor_bytes, int threads, KnownLimits& limits);

  KernelContext& context() { return context_; }
  int64_t tensor_bytes() const { return tensor_bytes_; }
  int threads() const { return pool_.num_threads(); }

  // [rows, columns] of `dtype` in about the size of a tensor, at least one row.
  Shape Rows(DType dtype, int64_t columns) const;
  // Fixed pseudo-random numbers in [low, high), or whole ones for integer dtypes.
  Tensor Random(DType dtype, const Shape& shape, double low = -1, double high = 1);

  DeviceType device() const { return limits_.device(); }

  // Reports "kernels/NAME/SIZE/THREADSt", or "kernels/NAME/SIZE/cuda": bytes per second of `call`, over the
  // memory's limit at its footprint. The target of 0.85 is for tensors of at least 16 MiB.
  void MeasureBytes(absl::string_view name, const BenchCall& call);
  // The same of anything else, whose bytes the caller counts as BenchCall does.
  void MeasureBytes(absl::string_view name, int64_t num_bytes, int64_t footprint,
                    absl::FunctionRef<void()> call);

  // Reports flops per second of `call`, over the peak of `dtype` (f32 or bf16).
  void MeasureFlops(absl::string_view name, DType dtype, double num_flops, double target,
                    absl::FunctionRef<void()> call);

 private:
  std::string FullName(absl::string_view name) const;

  KnownLimits& limits_;
  int64_t tensor_bytes_;
  ThreadPool pool_;
  std::shared_ptr<Allocator> allocator_;
  KernelContext context_;
  DeviceWait wait_;
};

// Registers a family from its own file during static initialisation; `//benchmarks/kernels` then measures it
// under every size and number of threads. A new family edits no list:
//   const RegisterKernelBench kRegister("softmax", MeasureSoftmax);
class RegisterKernelBench {
 public:
  using Family = void (*)(KernelBench&);
  RegisterKernelBench(const char* name, Family family);
};

struct NamedKernelBench {
  absl::string_view name;
  RegisterKernelBench::Family family;
};
// All of them, sorted by name.
std::vector<NamedKernelBench> KernelBenches();

}  // namespace weft

#endif  // WEFT_BENCHMARKS_KERNELS_KERNEL_BENCH_H_
