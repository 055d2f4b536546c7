#include "tests/runtime/comm/nccl/ring_reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "runtime/base/float16.h"

namespace weft {
namespace {

template <class T>
T Step(NcclOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (op == NcclOp::kMin) return std::min(a, b);
    if (op == NcclOp::kMax) return std::max(a, b);
    const uint64_t x = static_cast<U>(a);
    const uint64_t y = static_cast<U>(b);
    return static_cast<T>(static_cast<U>(op == NcclOp::kProduct ? x * y : x + y));
  } else {
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const A x = static_cast<A>(a);
    const A y = static_cast<A>(b);
    switch (op) {
      case NcclOp::kMin:
        return static_cast<T>(std::fmin(x, y));
      case NcclOp::kMax:
        return static_cast<T>(std::fmax(x, y));
      case NcclOp::kProduct:
        return static_cast<T>(x * y);
      default:
        return static_cast<T>(x + y);
    }
  }
}

template <class T>
std::vector<char> Reduce(NcclOp op, const std::vector<const void*>& inputs, int64_t count) {
  const int64_t n = static_cast<int64_t>(inputs.size());
  const int64_t chunk = (count + n - 1) / n;
  std::vector<char> result(static_cast<size_t>(count) * sizeof(T));
  const auto at = [&](int64_t rank, int64_t i) {
    T value = static_cast<const T*>(inputs[rank])[i];
    if constexpr (!std::is_integral_v<T>) {
      using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
      if (op == NcclOp::kAvg) value = static_cast<T>(static_cast<A>(value) * (A{1} / static_cast<A>(n)));
    }
    return value;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = i / chunk + 1;
    T value = at(start % n, i);
    for (int64_t step = 1; step < n; ++step) value = Step(op, value, at((start + step) % n, i));
    if constexpr (std::is_integral_v<T>) {
      if (op == NcclOp::kAvg) value = static_cast<T>(value / static_cast<T>(n));
    }
    std::memcpy(&result[static_cast<size_t>(i) * sizeof(T)], &value, sizeof(T));
  }
  return result;
}

}  // namespace

int64_t NcclTypeSize(NcclType type) {
  switch (type) {
    case NcclType::kUint8:
      return 1;
    case NcclType::kFloat16:
    case NcclType::kBfloat16:
      return 2;
    case NcclType::kInt32:
    case NcclType::kFloat32:
      return 4;
    case NcclType::kInt64:
    case NcclType::kFloat64:
      return 8;
  }
  return 0;
}

std::vector<char> ReduceAroundRing(NcclType type, NcclOp op, const std::vector<const void*>& inputs,
                                   int64_t count) {
  switch (type) {
    case NcclType::kUint8:
      return Reduce<uint8_t>(op, inputs, count);
    case NcclType::kInt32:
      return Reduce<int32_t>(op, inputs, count);
    case NcclType::kInt64:
      return Reduce<int64_t>(op, inputs, count);
    case NcclType::kFloat16:
      return Reduce<Float16>(op, inputs, count);
    case NcclType::kBfloat16:
      return Reduce<BFloat16>(op, inputs, count);
    case NcclType::kFloat32:
      return Reduce<float>(op, inputs, count);
    case NcclType::kFloat64:
      return Reduce<double>(op, inputs, count);
  }
  return {};
}

}  // namespace weft
