#ifndef WEFT_BENCHMARKS_DEVICE_LIMITS_H_
#define WEFT_BENCHMARKS_DEVICE_LIMITS_H_

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "runtime/base/dtype.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Waits until a device has done all that the rank has given it: calls return before that on a GPU, and what
// is timed without a wait is the time to ask for it.
class DeviceWait {
 public:
  explicit DeviceWait(const std::shared_ptr<Allocator>& allocator);
  void operator()() const;

 private:
  Tensor on_device_;
  Tensor on_host_;
};

// Bytes a second that the device copies within its memory, measured here in a quarter of a second:
// `num_bytes` are read and as many written, and both count.
double CopyBytesPerSecond(const std::shared_ptr<Allocator>& allocator, int64_t num_bytes);

// Flops a second of a GPU's dense products by its maker's data sheet, given DeviceName: of bf16 and f16 on
// tensor cores, of f32 without (no tf32). 0 for a GPU that is not in the table, and for other dtypes.
double GpuPeakFlops(absl::string_view device_name, DType dtype);

}  // namespace weft

#endif  // WEFT_BENCHMARKS_DEVICE_LIMITS_H_
