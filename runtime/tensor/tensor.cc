#include "runtime/tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "runtime/tensor/convert.h"
#include "runtime/tensor/tensor_functions.h"

namespace weft {
namespace {

// Bytes of a row-major tensor.
// Errors: InvalidArgument for negative extents, and where int64 cannot hold them.
int64_t CheckedNumBytes(DType dtype, const Shape& shape) {
  int64_t num_bytes = ItemSize(dtype);
  bool overflows = false;
  bool is_empty = false;
  for (const int64_t extent : shape) {
    WEFT_REQUIRE(extent >= 0, "Tensor::Empty: negative extent in ", TypeString(dtype, shape));
    overflows |= __builtin_mul_overflow(num_bytes, extent, &num_bytes);
    is_empty |= extent == 0;
  }
  WEFT_REQUIRE(!overflows || is_empty, "Tensor::Empty: ", TypeString(dtype, shape),
               " is larger than 2^63 bytes");
  return is_empty ? 0 : num_bytes;
}

// The strides under which the elements of (shape, strides) read row-major as `target`, or nothing if there
// are none. Dims of the source group into runs that are contiguous in themselves; target dims must fill the
// runs.
std::optional<Shape> ReshapedStrides(const Shape& shape, const Shape& strides, const Shape& target) {
  if (target.num_elements() != shape.num_elements()) return std::nullopt;
  if (shape.num_elements() == 0) return ContiguousStrides(target);
  Shape result = target;
  int out = target.ndim() - 1;
  int64_t run_elements = 1;
  int64_t run_stride = 1;
  bool in_run = false;
  for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
    if (shape[dim] == 1) continue;
    if (!in_run) {
      run_elements = 1;
      run_stride = strides[dim];
      in_run = true;
    }
    run_elements *= shape[dim];
    int outer = dim - 1;
    while (outer >= 0 && shape[outer] == 1) --outer;
    if (outer >= 0 && strides[outer] == run_stride * run_elements) continue;  // the run goes on
    // The run is complete: target dims must multiply to exactly its elements.
    int64_t filled = 1;
    for (; out >= 0 && (filled < run_elements || target[out] == 1); --out) {
      result[out] = run_stride * filled;
      filled *= target[out];
    }
    if (filled != run_elements) return std::nullopt;
    in_run = false;
  }
  for (; out >= 0; --out) result[out] = 1;  // extents of 1
  return result;
}

}  // namespace

std::string TypeString(DType dtype, const Shape& shape) {
  return absl::StrCat(DTypeName(dtype), shape.ToString());
}

std::string Tensor::TypeString() const { return weft::TypeString(dtype_, shape_); }

Tensor Tensor::BytesOf(const IntrusivePtr<Buffer>& buffer) {
  const Shape shape = {buffer->num_bytes()};
  return Tensor(buffer, DType::kU8, shape, {1}, 0);
}

Tensor Tensor::Empty(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape) {
  const int64_t num_bytes = CheckedNumBytes(dtype, shape);
  return Tensor(MakeIntrusive<Buffer>(allocator, num_bytes), dtype, shape, ContiguousStrides(shape), 0);
}

template <class T>
Tensor Tensor::FromValues(const Shape& shape, absl::Span<const T> values,
                          std::shared_ptr<Allocator> allocator) {
  if (allocator == nullptr) allocator = MakeCpuAllocator();
  WEFT_REQUIRE(allocator->device().type != DeviceType::kMeta,
               "Tensor::FromValues: a meta tensor holds no values");
  Tensor tensor = Empty(allocator, kDTypeOf<T>, shape);
  WEFT_REQUIRE(tensor.num_elements() == static_cast<int64_t>(values.size()),
               "Tensor::FromValues: ", tensor.TypeString(), " has ", tensor.num_elements(), " elements, got ",
               values.size(), " values");
  if (values.empty()) return tensor;
  if (tensor.device().type == DeviceType::kCpu) {
    std::memcpy(tensor.data(), values.data(), tensor.num_bytes());
  } else {
    TensorFunctionsOf(tensor.device().type).from_host(values.data(), tensor);
  }
  return tensor;
}

bool Tensor::IsContiguous() const {
  if (num_elements() == 0) return true;
  int64_t expected = 1;
  for (int dim = ndim() - 1; dim >= 0; --dim) {
    if (shape_[dim] == 1) continue;
    if (strides_[dim] != expected) return false;
    expected *= shape_[dim];
  }
  return true;
}

Tensor Tensor::Slice(int dim, int64_t start, int64_t length) const {
  dim = NormalizeDim(dim, ndim(), "Slice");
  // Written so that no sum can overflow.
  WEFT_REQUIRE(start >= 0 && length >= 0 && start <= shape_[dim] && length <= shape_[dim] - start,
               "Slice: ", length, " elements from ", start, " do not lie within dim ", dim, " of ",
               TypeString());
  Tensor view = *this;
  view.shape_[dim] = length;
  view.offset_ += start * strides_[dim];
  return view;
}

Tensor Tensor::Select(int dim, int64_t index) const {
  dim = NormalizeDim(dim, ndim(), "Select");
  WEFT_REQUIRE(index >= 0 && index < shape_[dim], "Select: index ", index, " is out of range for dim ", dim,
               " of ", TypeString());
  Tensor view = *this;
  view.offset_ += index * strides_[dim];
  view.shape_.Remove(dim);
  view.strides_.Remove(dim);
  return view;
}

Tensor Tensor::Permute(absl::Span<const int> order) const {
  WEFT_REQUIRE(static_cast<int>(order.size()) == ndim(), "Permute: expected ", ndim(), " dims for ",
               TypeString(), ", got ", order.size());
  Tensor view = *this;
  uint32_t seen = 0;
  for (int i = 0; i < ndim(); ++i) {
    const int dim = NormalizeDim(order[i], ndim(), "Permute");
    WEFT_REQUIRE((seen & (1u << dim)) == 0, "Permute: dim ", dim, " of ", TypeString(), " is named twice");
    seen |= 1u << dim;
    view.shape_[i] = shape_[dim];
    view.strides_[i] = strides_[dim];
  }
  return view;
}

Tensor Tensor::Transpose(int dim_a, int dim_b) const {
  dim_a = NormalizeDim(dim_a, ndim(), "Transpose");
  dim_b = NormalizeDim(dim_b, ndim(), "Transpose");
  Tensor view = *this;
  std::swap(view.shape_[dim_a], view.shape_[dim_b]);
  std::swap(view.strides_[dim_a], view.strides_[dim_b]);
  return view;
}

Tensor Tensor::Expand(const Shape& shape) const {
  const int leading = shape.ndim() - ndim();
  WEFT_REQUIRE(leading >= 0, "Expand: ", TypeString(), " has more dims than ", shape.ToString());
  Tensor view = *this;
  view.shape_ = shape;
  view.strides_ = shape;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    WEFT_REQUIRE(shape[dim] >= 0, "Expand: negative extent in ", shape.ToString());
    const int own = dim - leading;
    const bool repeats = own < 0 || (shape_[own] == 1 && shape[dim] != 1);
    WEFT_REQUIRE(repeats || shape_[own] == shape[dim], "Expand: dim ", own, " of ", TypeString(),
                 " is not 1 and cannot become ", shape[dim], " in ", shape.ToString());
    view.strides_[dim] = repeats ? 0 : strides_[own];
  }
  return view;
}

Tensor Tensor::Reshape(const Shape& shape) const {
  for (const int64_t extent : shape) {
    WEFT_REQUIRE(extent >= 0, "Reshape: negative extent in ", shape.ToString());
  }
  WEFT_REQUIRE(shape.num_elements() == num_elements(), "Reshape: ", TypeString(), " has ", num_elements(),
               " elements, ", shape.ToString(), " has ", shape.num_elements());
  const std::optional<Shape> strides =
      IsContiguous() ? ContiguousStrides(shape) : ReshapedStrides(shape_, strides_, shape);
  WEFT_REQUIRE(strides.has_value(), "Reshape: ", TypeString(), " with strides ", strides_.ToString(),
               " cannot be read as ", shape.ToString(), " without a copy; use CloneTensor first");
  return Tensor(buffer_, dtype_, shape, *strides, offset_);
}

bool Tensor::CanReshape(const Shape& shape) const {
  const bool is_shape = std::all_of(shape.begin(), shape.end(), [](int64_t extent) { return extent >= 0; });
  return is_shape && ReshapedStrides(shape_, strides_, shape).has_value();
}

template <class T>
std::vector<T> Tensor::ToVector() const {
  WEFT_REQUIRE(device().type != DeviceType::kMeta, "ToVector: ", TypeString(), " on ",
               DeviceTypeName(device().type), " has no elements to read");
  if (device().type != DeviceType::kCpu) {
    const Tensor on_host = Empty(MakeCpuAllocator(), dtype_, shape_);
    if (num_elements() > 0) TensorFunctionsOf(device().type).to_host(*this, on_host.data());
    return on_host.ToVector<T>();
  }
  std::vector<T> values;
  values.reserve(num_elements());
  VisitDType(dtype_, [&](auto tag) {
    using From = typename decltype(tag)::type;
    const From* const base = data<From>();
    Shape index = shape_;
    for (int dim = 0; dim < ndim(); ++dim) index[dim] = 0;
    for (int64_t i = 0; i < num_elements(); ++i) {
      int64_t offset = 0;
      for (int dim = 0; dim < ndim(); ++dim) offset += index[dim] * strides_[dim];
      values.push_back(ConvertElement<T>(base[offset]));
      for (int dim = ndim() - 1; dim >= 0 && ++index[dim] == shape_[dim]; --dim) index[dim] = 0;
    }
  });
  return values;
}

#define WEFT_INSTANTIATE(T)                                                                          \
  template Tensor Tensor::FromValues(const Shape&, absl::Span<const T>, std::shared_ptr<Allocator>); \
  template std::vector<T> Tensor::ToVector() const;
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
WEFT_INSTANTIATE(BFloat16)
WEFT_INSTANTIATE(Float16)
WEFT_INSTANTIATE(int32_t)
WEFT_INSTANTIATE(int64_t)
WEFT_INSTANTIATE(uint8_t)
WEFT_INSTANTIATE(bool)
#undef WEFT_INSTANTIATE

}  // namespace weft
