#include "dtensor/checkpoint/tensor_source.h"

#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {

const TensorType& TensorSource::Check(absl::string_view name, const ShardBox& box) const {
  const TensorType* const type = Find(name);
  if (type == nullptr) Throw(absl::StatusCode::kNotFound, "'", path(), "' has no tensor '", name, "'");
  WEFT_REQUIRE(type->shape == box.global_shape, "'", path(), "': tensor '", name, "' is ", type->ToString(),
               ", expected shape ", box.global_shape.ToString());
  return *type;
}

Tensor TensorSource::Read(absl::string_view name, const ShardBox& box,
                          const std::shared_ptr<Allocator>& allocator) {
  const DType dtype = Check(name, box).dtype;
  const bool on_host = allocator->device().type == DeviceType::kCpu;
  const Tensor result = Tensor::Empty(on_host ? allocator : MakeCpuAllocator(), dtype, box.shape);
  DoRead(std::string(name), box, static_cast<char*>(result.data()));
  return on_host ? result : CloneTensor(result, allocator);
}

void TensorSource::ReadInto(absl::string_view name, const ShardBox& box, const Tensor& piece) {
  const TensorType& type = Check(name, box);
  WEFT_REQUIRE(piece.dtype() == type.dtype && piece.shape() == box.shape && piece.IsContiguous() &&
                   piece.device().type == DeviceType::kCpu,
               "'", path(), "': tensor '", name, "' is ", type.ToString(), ", and cannot be read into ",
               piece.TypeString());
  DoRead(std::string(name), box, static_cast<char*>(piece.data()));
}

}  // namespace weft
