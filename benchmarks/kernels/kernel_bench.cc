#include "benchmarks/kernels/kernel_bench.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/figure.h"
#include "benchmarks/machine_limits.h"
#include "ops/op/kernel.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr double kSeconds = 0.2;  // a figure

std::map<std::string, RegisterKernelBench::Family>& Families() {
  static auto& families = *new std::map<std::string, RegisterKernelBench::Family>();
  return families;
}

}  // namespace

BenchCall::BenchCall(const OpDef& op, KernelContext& context, std::vector<Tensor> inputs,
                     std::shared_ptr<const void> attributes, std::shared_ptr<const void> scalars)
    : op_(&op),
      kernel_(KernelFor(op, context.allocator->device())),
      context_(&context),
      inputs_(std::move(inputs)),
      attributes_(std::move(attributes)),
      scalars_(std::move(scalars)) {
  TensorTypes types;
  for (const Tensor& input : inputs_) {
    types.push_back({input.dtype(), input.shape()});
    input_boxes_.push_back(WholeBox(input.shape()));
  }
  output_types_ = op.Infer(types, attributes_.get());
  for (const TensorType& type : output_types_) output_boxes_.push_back(WholeBox(type.shape));
  for (absl::string_view name : absl::StrSplit(op.in_place(), ' ', absl::SkipEmpty())) {
    in_place_.push_back(op.FindValue(name));
  }
}

BenchCall::Outputs BenchCall::Run() const {
  Outputs outputs(output_types_.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!in_place_.empty()) {
      outputs[i] = inputs_[in_place_[i]];
    } else if (!op_->is_view()) {
      outputs[i] = Tensor::Empty(context_->allocator, output_types_[i].dtype, output_types_[i].shape);
    }
  }
  op_->Invoke(kernel_, {*context_, inputs_, absl::MakeSpan(outputs), input_boxes_, output_boxes_,
                        attributes_.get(), scalars_.get()});
  return outputs;
}

int64_t BenchCall::footprint() const {
  int64_t bytes = 0;
  for (const Tensor& input : inputs_) bytes += input.num_elements() * ItemSize(input.dtype());
  if (!in_place_.empty()) return bytes;
  for (const TensorType& type : output_types_) bytes += type.shape.num_elements() * ItemSize(type.dtype);
  return bytes;
}

int64_t BenchCall::num_bytes() const {
  int64_t bytes = footprint();
  for (int operand : in_place_) {
    bytes += inputs_[operand].num_elements() * ItemSize(inputs_[operand].dtype());
  }
  return bytes;
}

double KnownLimits::Memory(int64_t footprint, int threads) {
  int64_t step = 1;
  while (footprint / step >= 16) step *= 2;
  const int64_t rounded = (footprint + step / 2) / step * step;
  double& limit = memory_[{rounded, threads}];
  if (limit != 0) return limit;
  if (device_ == DeviceType::kCpu) return limit = TriadBytesPerSecond(rounded, threads);
  return limit = CopyBytesPerSecond(MakeAllocator({device_}), rounded / 2);
}

double KnownLimits::Peak(DType dtype, int threads) {
  double& limit = peaks_[{dtype, threads}];
  if (limit != 0) return limit;
  if (device_ != DeviceType::kCpu) return limit = GpuPeakFlops(DeviceName({device_}), dtype);
  return limit = dtype == DType::kBF16 ? PeakFlopsBF16(threads) : PeakFlopsF32(threads);
}

KernelBench::KernelBench(int64_t tensor_bytes, int threads, KnownLimits& limits)
    : limits_(limits),
      tensor_bytes_(tensor_bytes),
      pool_(threads),
      allocator_(MakeAllocator({limits.device()})),
      context_{pool_, allocator_},
      wait_(allocator_) {}

Shape KernelBench::Rows(DType dtype, int64_t columns) const {
  return {std::max<int64_t>(1, tensor_bytes_ / (columns * ItemSize(dtype))), columns};
}

Tensor KernelBench::Random(DType dtype, const Shape& shape, double low, double high) {
  // They repeat: large tensors are soon made, and no kernel can tell.
  constexpr int64_t kPeriod = (1 << 20) - 3;
  std::vector<float> numbers(std::min(shape.num_elements(), kPeriod));
  uint32_t state = 12345;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(low + (high - low) * static_cast<double>(state >> 8) * 0x1p-24);
  }
  const Tensor tensor = Tensor::Empty(allocator_, dtype, {shape.num_elements()});
  const Tensor period =
      CastTensor(Tensor::FromValues<float>({static_cast<int64_t>(numbers.size())}, numbers, allocator_),
                 dtype, allocator_);
  for (int64_t begin = 0; begin < shape.num_elements(); begin += period.num_elements()) {
    const int64_t count = std::min(period.num_elements(), shape.num_elements() - begin);
    CopyTensor(period.Slice(0, 0, count), tensor.Slice(0, begin, count));
  }
  return tensor.Reshape(shape);
}

std::string KernelBench::FullName(absl::string_view name) const {
  const std::string size = tensor_bytes_ >= kMiB ? absl::StrCat(tensor_bytes_ / kMiB, "MiB")
                                                 : absl::StrCat(tensor_bytes_ / 1024, "KiB");
  if (device() != DeviceType::kCpu) {
    return absl::StrCat("kernels/", name, "/", size, "/", DeviceTypeName(device()));
  }
  return absl::StrCat("kernels/", name, "/", size, "/", threads(), "t");
}

void KernelBench::MeasureBytes(absl::string_view name, const BenchCall& call) {
  MeasureBytes(name, call.num_bytes(), call.footprint(), [&] { call.Run(); });
}

void KernelBench::MeasureBytes(absl::string_view name, int64_t num_bytes, int64_t footprint,
                               absl::FunctionRef<void()> call) {
  const double ns = MedianNanoseconds([&] { call(); }, kSeconds, wait_);
  Report({.name = FullName(name),
          .value = static_cast<double>(num_bytes) / ns,
          .unit = "GB/s",
          .limit = limits_.Memory(footprint, threads()) * 1e-9,
          .limit_is = device() == DeviceType::kCpu ? "triad" : "copy",
          .target = tensor_bytes_ >= 16 * kMiB ? 0.85 : 0});
}

void KernelBench::MeasureFlops(absl::string_view name, DType dtype, double num_flops, double target,
                               absl::FunctionRef<void()> call) {
  const double ns = MedianNanoseconds([&] { call(); }, kSeconds, wait_);
  Report({.name = FullName(name),
          .value = num_flops / ns,
          .unit = "GFLOP/s",
          .limit = limits_.Peak(dtype, threads()) * 1e-9,
          .limit_is = "peak",
          .target = target});
}

RegisterKernelBench::RegisterKernelBench(const char* name, Family family) { Families()[name] = family; }

std::vector<NamedKernelBench> KernelBenches() {
  std::vector<NamedKernelBench> benches;
  for (const auto& [name, family] : Families()) benches.push_back({name, family});
  return benches;
}

}  // namespace weft
