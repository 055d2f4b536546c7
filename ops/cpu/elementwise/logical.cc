#include "ops/elementwise/logical.h"

#include <functional>

#include "ops/cpu/spans/map_elements.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// Bools are 0 or 1 as integers, so bitwise functions are logical ones, without branches.
template <class Function>
void Logic(const KernelCall<NoAttributes, NoScalars>& call) {
  MapElements<int32_t, 2>(call, Function());
}

// 1 - x, since the bitwise complement of 1 is not 0.
void Not(const KernelCall<NoAttributes, NoScalars>& call) {
  MapElements<int32_t>(call, [](int32_t x) { return 1 - x; });
}

const RegisterKernel kRegister[] = {
    {kLogicalAnd, DeviceType::kCpu, Logic<std::bit_and<int32_t>>},
    {kLogicalOr, DeviceType::kCpu, Logic<std::bit_or<int32_t>>},
    {kLogicalXor, DeviceType::kCpu, Logic<std::bit_xor<int32_t>>},
    {kLogicalNot, DeviceType::kCpu, Not},
};

}  // namespace
}  // namespace weft
