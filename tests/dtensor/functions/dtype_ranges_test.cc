// What leaves the range of a dtype: counts and numbers beside halves, the least integers, terms of a Partial.

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
            Lay(context, FromDoubles(dtype, {count}, std::vector<double>(count, value)), layout)
                .RequiresGrad();
        const DTensor y =
            ScatterReduce(x, 0, index, src, {.reduction = ScatterReduction::kMean, .include_self = false});
        EXPECT_EQ(y.dtype(), dtype);
        EXPECT_EQ(Elements(y), std::vector<double>{value}) << dtype << " " << layout;
        Backward(Sum(y));
        const double share =
            FromDoubles(dtype, {1}, {1.0 / static_cast<double>(count)}).ToVector<double>()[0];
        EXPECT_EQ(Elements(src.grad()), std::vector<double>(count, share)) << dtype << " " << layout;
      };
      mean(DType::kF16, 1 << 16, 1);
      mean(DType::kBF16, 257, 3);
    }
  });
}

// As PyTorch's full, full_like and pad.
TEST(DTypeRangesTest, NoFiniteFillIsInfinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  OnMesh("a=2", [](const Context& context) {
    const DTensor half = Full(context, DType::kF16, {2}, 65519);
    EXPECT_EQ(Elements(half), std::vector<double>(2, 65504));  // rounded
    EXPECT_EQ(ErrorOf([&] { Full(context, DType::kF16, {2}, -1e9); }),
              "Full: f16 cannot hold the number -1e+09");
    EXPECT_EQ(ErrorOf([&] { FullLike(half, 65520); }), "Full: f16 cannot hold the number 65520");
    EXPECT_EQ(ErrorOf([&] { Full(context, DType::kF32, {}, 1e39); }),
              "Full: f32 cannot hold the number 1e+39");
    EXPECT_EQ(Full(context, DType::kBF16, {}, -kInf).Item(), -kInf);
    EXPECT_EQ(Full(context, DType::kI32, {}, 3e9).Item(), std::numeric_limits<int32_t>::max());
    for (const char* layout : {"[-]", "[a]"}) {
      const DTensor x = half.Redistribute(Layout::Parse(layout, context->mesh()));
      EXPECT_EQ(ErrorOf([&] { Pad(x, {{1, 1}}, 1e9); }), "Pad: f16 cannot hold the number 1e+09") << layout;
      EXPECT_EQ(Elements(Pad(x, {{1, 0}}, -kInf)), (std::vector<double>{-kInf, 65504, 65504})) << layout;
    }
  });
}

// 0.7 and 0.1 are no numbers of halves; what they round to lies within, though it is less and more than they are.
TEST(DTypeRangesTest, BoundsOfAClampAreRounded) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  OnMesh("", [](const Context& context) {
    for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
      for (const double number : {0.7, 0.1}) {
        const ClampOptions bounds[] = {{.min = number}, {.max = number}, {.min = number, .max = number}};
        for (const ClampOptions& bound : bounds) {
          const DTensor x = Full(context, dtype, {1}, number).RequiresGrad();
          Backward(Sum(Clamp(x, bound)));
          EXPECT_EQ(Elements(x.grad()), std::vector<double>{1}) << dtype << " " << number;
        }
      }
    }
    const DTensor half = Full(context, DType::kF16, {1}, 1);
    EXPECT_EQ(Elements(Clamp(half, {.min = 65519})), std::vector<double>{65504});
    EXPECT_EQ(ErrorOf([&] { Clamp(half, {.min = 70000}); }), "Clamp: f16 cannot hold the number 70000");
    EXPECT_EQ(ErrorOf([&] { Clamp(half, {.min = 0, .max = -1e9}); }),
              "Clamp: f16 cannot hold the number -1e+09");
    EXPECT_EQ(Elements(Clamp(half, {.min = -kInf, .max = kInf})), std::vector<double>{1});
    const DTensor narrow = Full(context, DType::kI32, {1}, 1);
    EXPECT_EQ(Elements(Clamp(narrow, {.min = -3e9, .max = 3e9})), std::vector<double>{1});
  });
}

// Integers wrap, and the least one has no negative.
TEST(DTypeRangesTest, TheLeastIntegerIsSubtracted) {
  OnMesh("", [](const Context& context) {
    const DTensor narrow = Lay(context, Tensor::FromValues<int32_t>({2}, {5, -5}), "[-]");
    EXPECT_EQ(Sub(narrow, -0x1p31).FullTensor().ToVector<int32_t>(),
              (std::vector<int32_t>{std::numeric_limits<int32_t>::min() + 5,
                                    std::numeric_limits<int32_t>::max() - 4}));
    const DTensor wide = Lay(context, Tensor::FromValues<int64_t>({2}, {5, -5}), "[-]");
    EXPECT_EQ(Sub(wide, -0x1p63).FullTensor().ToVector<int64_t>(),
              (std::vector<int64_t>{std::numeric_limits<int64_t>::min() + 5,
                                    std::numeric_limits<int64_t>::max() - 4}));
    EXPECT_THAT(ErrorOf([&] { Sub(narrow, -0x1p32); }),
                HasSubstr("shift: expected a whole number that fits i32"));
  });
}

// Doubles do not hold all numbers of i64.
TEST(DTypeRangesTest, TargetsCountBesideAnyIgnoreIndex) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  OnMesh("a=2", [](const Context& context) {
    for (const int64_t index : {int64_t{-100}, (int64_t{1} << 53) + 1, -(int64_t{1} << 53) - 1, kMost - 1,
                                kMost, kLeast, kLeast + 1}) {
      // Its neighbours and what differs from it by 2^32 count.
      const int64_t near = index == kMost ? index - 1 : index + 1;
      const int64_t far = index > 0 ? index - (int64_t{1} << 32) : index + (int64_t{1} << 32);
      const DTensor targets = Lay(context, Tensor::FromValues<int64_t>({4}, {index, near, far, 7}), "[a]");
      EXPECT_EQ(CountTargets(targets, index).Item(), 3) << index;
    }
    const DTensor narrow = Lay(context, Tensor::FromValues<int32_t>({2}, {1, 2}), "[a]");
    EXPECT_THAT(ErrorOf([&] { CountTargets(narrow, (int64_t{1} << 53) + 1); }),
                HasSubstr("i32 cannot hold the number"));
  });
}

// 0 / 0 and 0 * inf of one term would outdo the others.
TEST(DTypeRangesTest, TermsAreReducedBeforeTheyAreInfinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  OnMesh("a=2", [](const Context& context) {
    for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      const double term = context->coordinate()[0] == 0 ? 3 : 0;
      const DTensor x =
          DTensor::FromLocal(context, FromDoubles(dtype, {1}, {term}), Layout(1, 1).WithPartial(0), {1});
      EXPECT_EQ(LayoutText(Scale(x, 2)), "[-] P{a}");
      EXPECT_EQ(LayoutText(Div(x, 2)), "[-] P{a}");
      EXPECT_EQ(Elements(Div(x, 0.0)), std::vector<double>{kInf}) << dtype;
      EXPECT_EQ(Elements(Scale(x, -kInf)), std::vector<double>{-kInf}) << dtype;
      if (dtype == DType::kF64) continue;
      // Numbers that f32 rounds to 0 and inf.
      EXPECT_EQ(Elements(Div(x, 1e-60)), std::vector<double>{kInf}) << dtype;
      EXPECT_EQ(Elements(Scale(x, 1e60)), std::vector<double>{kInf}) << dtype;
    }
  });
}

// Terms that f16, or f32, takes for infinities, of a sum that is an ordinary number: in casts, of products' operands too, and
// in the gradient of a cast.
TEST(DTypeRangesTest, TermsAreReducedBeforeACastThatMayNotHoldThem) {
  OnMesh("a=2", [](const Context& context) {
    const auto terms = [&](DType dtype, const Shape& shape, double first, double second) {
      const double term = context->coordinate()[0] == 0 ? first : second;
      return DTensor::FromLocal(context, FromDoubles(dtype, shape, {term}),
                                Layout(shape.ndim(), 1).WithPartial(0), shape);
    };
    EXPECT_EQ(Elements(Cast(terms(DType::kF32, {1}, 70000, -69999), DType::kF16)), std::vector<double>{1});
    EXPECT_EQ(Elements(Cast(terms(DType::kBF16, {1}, 66048, -65536), DType::kF16)), std::vector<double>{512});
    EXPECT_EQ(Elements(Cast(terms(DType::kF64, {1}, 0x1p130, 0x1p100 - 0x1p130), DType::kF32)),
              std::vector<double>{0x1p100});
    EXPECT_EQ(LayoutText(Cast(terms(DType::kF32, {1}, 1, 2), DType::kBF16)), "[-] P{a}");
    EXPECT_EQ(LayoutText(Cast(terms(DType::kF16, {1}, 1, 2), DType::kF32)), "[-] P{a}");
    {
      const AutocastGuard autocast(context->state(), DType::kF16);
      const DTensor two = Full(context, DType::kF32, {1, 1}, 2);
      EXPECT_EQ(Elements(MatMul(terms(DType::kF32, {1, 1}, 70000, -69999), two)), std::vector<double>{2});
    }
    const DTensor half = Full(context, DType::kF16, {1}, 3).RequiresGrad();
    Backward(Cast(half, DType::kF32), terms(DType::kF32, {1}, 70000, -69999));
    EXPECT_EQ(Elements(half.grad()), std::vector<double>{1});
  });
}

}  // namespace
}  // namespace weft
