#include "runtime/base/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <type_traits>

#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DType, NamesParseBackAndPrint) {
  for (DType dtype : kAllDTypes) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
    std::ostringstream out;
    out << dtype;
    EXPECT_EQ(out.str(), std::string(DTypeName(dtype)));
  }
  EXPECT_EQ(DTypeName(DType::kBF16), "bf16");
  EXPECT_EQ(std::size(kAllDTypes), 8);
}

TEST(DType, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(MessageOf([] { ParseDType("float32"); }),
              AllOf(HasSubstr("'float32'"), HasSubstr("f32, f64, bf16, f16, i32, i64, u8, bool")));
}

TEST(DType, VisitGivesTheTypeWithItsSizeAndKind) {
  for (DType dtype : kAllDTypes) {
    VisitDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      EXPECT_EQ(kDTypeOf<T>, dtype);
      EXPECT_EQ(static_cast<int64_t>(sizeof(T)), ItemSize(dtype));
      const bool is_half = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
      EXPECT_EQ(IsFloating(dtype), is_half || std::is_floating_point_v<T>);
    });
  }
}

TEST(DType, VisitFloatingRefusesTheOthersByName) {
  for (DType dtype : kAllDTypes) {
    DType seen = DType::kBool;
    const std::string message = MessageOf([&] {
      VisitFloating(dtype, "softmax", [&](auto tag) { seen = kDTypeOf<typename decltype(tag)::type>; });
    });
    if (IsFloating(dtype)) {
      EXPECT_EQ(seen, dtype);
    } else {
      EXPECT_THAT(message, AllOf(HasSubstr("softmax"), HasSubstr(std::string(DTypeName(dtype)))));
    }
  }
}

}  // namespace
}  // namespace weft
