#include "runtime/tensor/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "runtime/tensor/combine.h"
#include "runtime/tensor/convert_spans.h"
#include "runtime/tensor/loop_nest.h"
#include "runtime/tensor/tensor_functions.h"
#include "runtime/tensor/transpose.h"

namespace weft {
namespace {

void CheckPair(absl::string_view what, const Tensor& from, const Tensor& to) {
  WEFT_REQUIRE(from.shape() == to.shape(), what, ": shapes differ: from ", from.TypeString(), " to ",
               to.TypeString());
  const bool is_empty = to.num_elements() == 0;  // whose strides mean nothing
  for (int dim = 0; dim < to.ndim(); ++dim) {
    WEFT_REQUIRE(is_empty || to.strides()[dim] != 0 || to.shape()[dim] == 1, what, ": cannot write to ",
                 to.TypeString(), ", which repeats its elements along dim ", dim);
  }
}

void CheckDevices(absl::string_view what, const Tensor& from, const Tensor& to) {
  const auto name = [](const Tensor& tensor) {
    return absl::StrCat(tensor.TypeString(), " on ", DeviceTypeName(tensor.device().type), ":",
                        tensor.device().index);
  };
  WEFT_REQUIRE(from.device() == to.device(), what, ": devices differ: from ", name(from), " to ", name(to));
}

bool IsCpu(const Tensor& tensor) { return tensor.device().type == DeviceType::kCpu; }
bool IsMeta(const Tensor& tensor) { return tensor.device().type == DeviceType::kMeta; }

// The loop of `nest` in which `from` has stride 1, or -1.
int UnitFromLoop(const LoopNest& nest) {
  for (int loop = nest.inner(); loop >= 0; --loop) {
    if (nest.from_strides[loop] == 1) return loop;
  }
  return -1;
}

constexpr int64_t kShortRun = 1024;  // bytes
constexpr int64_t kRunsAhead = 8;

void PrefetchRun(const char* from, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(from + i);
}

// Runs contiguous on both sides. `item` is the size of an element; the two innermost loops go without an
// odometer.
void CopyRuns(const LoopNest& nest, int64_t item, const char* from, char* to) {
  const int inner = nest.inner();
  const int64_t run = nest.extents[inner] * item;
  const bool has_rows = inner > 0;
  const int64_t rows = has_rows ? nest.extents[inner - 1] : 1;
  const int64_t from_step = has_rows ? nest.from_strides[inner - 1] * item : 0;
  const int64_t to_step = has_rows ? nest.to_strides[inner - 1] * item : 0;
  ForEachOuter(nest, has_rows ? 2 : 1, [&](int64_t from_offset, int64_t to_offset) {
    const char* source = from + from_offset * item;
    char* target = to + to_offset * item;
    for (int64_t row = 0; row < rows; ++row) {
      // Short runs far apart: no hardware prefetcher follows.
      if (run <= kShortRun && row + kRunsAhead < rows) PrefetchRun(source + kRunsAhead * from_step, run);
      std::memcpy(target, source, run);
      source += from_step;
      target += to_step;
    }
  });
}

// The unsigned word of an element's size: a copy does not look into it.
template <class T>
using WordOf = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;

// `to` is contiguous along the innermost loop, `from` along the next one: a transpose.
template <class T>
void CopyTransposed(const LoopNest& nest, const T* from, T* to) {
  using Word = WordOf<T>;
  const int inner = nest.inner();
  ForEachOuter(nest, 2, [&](int64_t from_offset, int64_t to_offset) {
    TransposeWords(reinterpret_cast<const Word*>(from + from_offset), nest.from_strides[inner],
                   reinterpret_cast<Word*>(to + to_offset), nest.to_strides[inner - 1],
                   nest.extents[inner - 1], nest.extents[inner]);
  });
}

// Applies `element(from, to&)` along the innermost loop, strides of 1 apart so that they vectorise.
template <class From, class To, class Element>
void ForEachElement(const LoopNest& nest, const From* from, To* to, const Element& element) {
  const int inner = nest.inner();
  const int64_t count = nest.extents[inner];
  const int64_t from_stride = nest.from_strides[inner];
  const int64_t to_stride = nest.to_strides[inner];
  ForEachOuter(nest, 1, [&](int64_t from_offset, int64_t to_offset) {
    const From* const source = from + from_offset;
    To* const target = to + to_offset;
    if (from_stride == 1 && to_stride == 1) {
      for (int64_t i = 0; i < count; ++i) element(source[i], target[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) element(source[i * from_stride], target[i * to_stride]);
    }
  });
}

// Converts along the innermost loop, strides of 1 by vectors.
template <class From, class To>
void CopyConverted(const LoopNest& nest, const From* from, To* to) {
  const int inner = nest.inner();
  const int64_t count = nest.extents[inner];
  if (nest.from_strides[inner] == 1 && nest.to_strides[inner] == 1) {
    ForEachOuter(nest, 1, [&](int64_t from_offset, int64_t to_offset) {
      ConvertSpan(from + from_offset, to + to_offset, count);
    });
  } else {
    ForEachElement(nest, from, to, [](From value, To& out) { out = ConvertElement<To>(value); });
  }
}

template <class T>
void CopySameType(LoopNest nest, const T* from, T* to) {
  const int inner = nest.inner();
  const bool to_is_unit = nest.to_strides[inner] == 1;
  if (to_is_unit && nest.from_strides[inner] == 1) {
    CopyRuns(nest, sizeof(T), reinterpret_cast<const char*>(from), reinterpret_cast<char*>(to));
    return;
  }
  const int unit = UnitFromLoop(nest);
  if (to_is_unit && unit >= 0) {
    for (Shape* values : {&nest.extents, &nest.from_strides, &nest.to_strides}) {
      const int64_t value = (*values)[unit];
      values->Remove(unit);
      values->Insert(inner - 1, value);
    }
    CopyTransposed(nest, from, to);
    return;
  }
  ForEachElement(nest, from, to, [](const T& value, T& out) { out = value; });
}

}  // namespace

namespace {

// The elements change dtype on the CPU, where they differ.
void CopyToHost(const Tensor& from, const Tensor& to) {
  const TensorFunctions& functions = TensorFunctionsOf(from.device().type);
  if (to.IsContiguous() && to.dtype() == from.dtype()) return functions.to_host(from, to.data());
  const Tensor staged = Tensor::Empty(to.buffer()->allocator(), from.dtype(), from.shape());
  functions.to_host(from, staged.data());
  CopyTensor(staged, to);
}

void CopyFromHost(const Tensor& from, const Tensor& to) {
  const TensorFunctions& functions = TensorFunctionsOf(to.device().type);
  if (from.IsContiguous() && to.dtype() == from.dtype()) return functions.from_host(from.data(), to);
  const Tensor staged = CastTensor(from, to.dtype(), from.buffer()->allocator());
  functions.from_host(staged.data(), to);
}

}  // namespace

void CopyTensor(const Tensor& from, const Tensor& to) {
  CheckPair("CopyTensor", from, to);
  if (IsMeta(to)) return;
  if (from.device().type != to.device().type && !IsMeta(from)) {
    if (to.num_elements() == 0) return;
    return IsCpu(to) ? CopyToHost(from, to) : CopyFromHost(from, to);
  }
  CheckDevices("CopyTensor", from, to);
  if (to.num_elements() == 0) return;
  if (!IsCpu(to)) return TensorFunctionsOf(to.device().type).copy(from, to);
  if (from.data() == to.data() && from.strides() == to.strides() && from.dtype() == to.dtype()) return;
  const LoopNest nest = MakeLoopNest(to.shape(), from.strides(), to.strides());
  VisitDType(from.dtype(), [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    VisitDType(to.dtype(), [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      if constexpr (std::is_same_v<From, To>) {
        CopySameType(nest, from.data<From>(), to.data<To>());
      } else {
        CopyConverted(nest, from.data<From>(), to.data<To>());
      }
    });
  });
}

void FillTensor(const Tensor& tensor, double value) {
  if (IsMeta(tensor) || tensor.num_elements() == 0) return;
  if (!IsCpu(tensor)) return TensorFunctionsOf(tensor.device().type).fill(tensor, value);
  const LoopNest nest = MakeLoopNest(tensor.shape(), tensor.strides(), tensor.strides());
  VisitDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const data = tensor.data<T>();
    const int64_t count = nest.extents[nest.inner()];
    const int64_t stride = nest.to_strides[nest.inner()];
    ForEachOuter(nest, 1, [&](int64_t, int64_t offset) {
      const T element = ConvertElement<T>(value);  // a local: nothing written through `data` can be it
      T* const row = data + offset;
      if (stride == 1) {
        for (int64_t i = 0; i < count; ++i)
          std::memcpy(row + i, &element, sizeof(T));  // a half vectorises so only
      } else {
        for (int64_t i = 0; i < count; ++i) row[i * stride] = element;
      }
    });
  });
}

Tensor OnHost(const Tensor& tensor) {
  return IsCpu(tensor) && tensor.IsContiguous() ? tensor : CloneTensor(tensor, MakeCpuAllocator());
}

Tensor CloneTensor(const Tensor& tensor, const std::shared_ptr<Allocator>& allocator) {
  return CastTensor(tensor, tensor.dtype(), allocator);
}

Tensor CastTensor(const Tensor& tensor, DType dtype, const std::shared_ptr<Allocator>& allocator) {
  Tensor result = Tensor::Empty(allocator, dtype, tensor.shape());
  CopyTensor(tensor, result);
  return result;
}

void AccumulateTensor(const Tensor& from, const Tensor& to, ReduceOp op) {
  CheckPair("AccumulateTensor", from, to);
  WEFT_REQUIRE(from.dtype() == to.dtype(), "AccumulateTensor: dtypes differ: from ", from.TypeString(),
               " to ", to.TypeString());
  CheckDevices("AccumulateTensor", from, to);
  if (IsMeta(to) || to.num_elements() == 0) return;
  if (!IsCpu(to)) return TensorFunctionsOf(to.device().type).accumulate(from, to, op);
  const LoopNest nest = MakeLoopNest(to.shape(), from.strides(), to.strides());
  VisitDType(to.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    VisitReduceOp(op, [&](auto kind) {
      constexpr ReduceOp kOp = decltype(kind)::value;
      ForEachElement(nest, from.data<T>(), to.data<T>(),
                     [](T value, T& out) { out = Combine<kOp>(out, value); });
    });
  });
}

}  // namespace weft
