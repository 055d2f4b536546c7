// What leaves a dtype's range: counts and numbers beside halves, the least integers, terms of a Partial, extents.

#include <cstdint>
#include <limits>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Context = IntrusivePtr<MeshContext>;

std::vector<double> Elements(const DTensor& x) { return x.FullTensor().ToVector<double>(); }

// Their sum and their number are more than f16 has.
TEST(DTypeRangesTest, AMeanOfManyHalves) {
  OnMesh("a=2", [](const Context& context) {
    for (const char* layout : {"[-]", "[a]"}) {
      const auto mean = [&](DType dtype, int64_t count, double value) {
        const DTensor x = Lay(context, FromDoubles(dtype, {1}, {value}), "[-]");
        const DTensor index =
            Lay(context, Tensor::FromValues<int64_t>({count}, std::vector<int64_t>(count, 0)), layout);
        const DTensor src =
            Lay(context, FromDoubles(dtype, {count}, std::vector<double>(count, value)), layout).RequiresGrad();
        const DTensor y = ScatterReduce(x, 0, index, src,
                                        {.reduction = ScatterReduction::kMean, .include_self = false});
        EXPECT_EQ(y.dtype(), dtype);
        EXPECT_EQ(Elements(y), std::vector<double>{value}) << dtype << " " << layout;
        Backward(Sum(y));
        const double share = FromDoubles(dtype, {1}, {1.0 / static_cast<double>(count)}).ToVector<double>()[0];
        EXPECT_EQ(Elements(src.grad()), std::vector<double>(count, share)) << dtype << " " << layout;
      };
      mean(DType::kF16, 1 << 16, 1);
      mean(DType::kBF16, 257, 3);
    }
  });
}

}  // namespace
}  // namespace weft
