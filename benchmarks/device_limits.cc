#include "benchmarks/device_limits.h"

#include "absl/strings/match.h"
#include "benchmarks/figure.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

struct DataSheet {
  absl::string_view name;  // part of DeviceName; the first that fits
  double half;             // TFLOP/s of bf16 and f16, summed in f32
  double f32;
};

// NVIDIA's data sheets, without sparsity.
constexpr DataSheet kDataSheets[] = {
    {"H100 PCIe", 756.5, 51.2}, {"H100 NVL", 835.5, 60}, {"H100", 989.4, 66.9}, {"H200", 989.4, 66.9},
    {"A100", 312, 19.5},        {"L40S", 362, 91.6},     {"L4", 121, 30.3},
};

}  // namespace

DeviceWait::DeviceWait(const std::shared_ptr<Allocator>& allocator)
    : on_device_(Tensor::FromValues<uint8_t>({1}, {0}, allocator)),
      on_host_(Tensor::FromValues<uint8_t>({1}, {0})) {}

// A copy to the host is there when the call returns, and comes after all that was asked for before.
void DeviceWait::operator()() const { CopyTensor(on_device_, on_host_); }

double CopyBytesPerSecond(const std::shared_ptr<Allocator>& allocator, int64_t num_bytes) {
  const Tensor from = Tensor::Empty(allocator, DType::kF32, {num_bytes / ItemSize(DType::kF32)});
  const Tensor to = Tensor::Empty(allocator, DType::kF32, from.shape());
  FillTensor(from, 1);
  const double ns = MedianNanoseconds([&] { CopyTensor(from, to); }, /*seconds=*/0.25, DeviceWait(allocator));
  return 2 * static_cast<double>(from.num_bytes()) / ns * 1e9;
}

double GpuPeakFlops(absl::string_view device_name, DType dtype) {
  for (const DataSheet& sheet : kDataSheets) {
    if (!absl::StrContains(device_name, sheet.name)) continue;
    if (dtype == DType::kBF16 || dtype == DType::kF16) return sheet.half * 1e12;
    return dtype == DType::kF32 ? sheet.f32 * 1e12 : 0;
  }
  return 0;
}

}  // namespace weft
