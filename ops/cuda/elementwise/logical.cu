#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/elementwise/logical.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

enum class Connective { kAnd, kOr, kXor };

// Bools are 0 or 1 as integers, so bitwise functions are logical ones.
struct Connects {
  Connective connective;

  __device__ int32_t operator()(int32_t a, int32_t b) const {
    if (connective == Connective::kAnd) return a & b;
    return connective == Connective::kOr ? a | b : a ^ b;
  }
};
struct Negates {
  __device__ int32_t operator()(int32_t x) const { return 1 - x; }
};

template <Connective kConnective>
void Logic(const Call& call) {
  MapElements<bool, bool, bool>(call, Connects{kConnective});
}

void Not(const Call& call) { MapElements<bool, bool>(call, Negates()); }

const RegisterKernel kRegister[] = {
    {kLogicalAnd, DeviceType::kCuda, Logic<Connective::kAnd>},
    {kLogicalOr, DeviceType::kCuda, Logic<Connective::kOr>},
    {kLogicalXor, DeviceType::kCuda, Logic<Connective::kXor>},
    {kLogicalNot, DeviceType::kCuda, Not},
};

}  // namespace
}  // namespace weft
