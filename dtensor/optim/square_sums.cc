#include "dtensor/optim/square_sums.h"

#include "dtensor/functions.h"
#include "dtensor/redistribute_each.h"
#include "ops/reduce/reduce.h"

namespace weft {

DTensor SquareSums(const std::vector<DTensor>& tensors) {
  WEFT_REQUIRE(!tensors.empty(), "SquareSums: expected at least one tensor");
  MeshContext& context = *tensors[0].context();
  const PurposeGuard purpose(context.state(), Purpose::kNorm);
  std::vector<EachCall<>> calls;
  calls.reserve(tensors.size());
  for (const DTensor& tensor : tensors) calls.push_back({.operands = {tensor}});
  const std::vector<DTensors> sums = CallEach(kSumSquares, calls);  // of split tensors Partial ones
  std::vector<EachMove> moves;
  moves.reserve(sums.size());
  const Layout replicated(/*ndim=*/0, context.mesh().num_axes());
  for (const DTensors& sum : sums) moves.push_back({.source = sum[0], .to = replicated});
  std::vector<DTensor> scalars = RedistributeEach(moves);
  const DType dtype = tensors[0].dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  for (DTensor& scalar : scalars) {
    if (scalar.dtype() != dtype) scalar = Cast(scalar, dtype);
  }
  return Stack(scalars, 0);
}

}  // namespace weft
