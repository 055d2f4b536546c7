#include "parallel/style.h"

#include <sstream>

#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

TEST(StyleTest, PrintsAsItIsWritten) {
  EXPECT_EQ(ColumnParallel("tp").ToString(), "ColumnParallel(tp)");
  EXPECT_EQ(RowParallel("tp", {.output = Shard(1)}).ToString(), "RowParallel(tp, output=Shard(1))");
  EXPECT_EQ(VocabParallel("x", {.input = Replicate(), .output = Shard(1)}).ToString(),
            "VocabParallel(x, input=Replicate, output=Shard(1))");
  EXPECT_EQ(SequenceParallel("tp").ToString(), "SequenceParallel(tp)");
  EXPECT_EQ(DataParallel("dp").ToString(), "DataParallel(dp)");
  EXPECT_EQ(FullyShard("dp", {.output = Shard(0), .dim = -1}).ToString(),
            "FullyShard(dp, output=Shard(0), dim=-1)");
  std::ostringstream out;
  out << FullyShard("dp");
  EXPECT_EQ(out.str(), "FullyShard(dp)");
}

TEST(StyleTest, ComparesAllItsFields) {
  EXPECT_EQ(ColumnParallel("tp"), ColumnParallel("tp"));
  EXPECT_NE(ColumnParallel("tp"), RowParallel("tp"));
  EXPECT_NE(ColumnParallel("tp"), ColumnParallel("dp"));
  EXPECT_NE(RowParallel("tp"), RowParallel("tp", {.output = Replicate()}));
  EXPECT_NE(FullyShard("dp"), FullyShard("dp", {.dim = 0}));
  EXPECT_NE(RowParallel("tp", {.input = Shard(1)}), RowParallel("tp", {.output = Shard(1)}));
}

TEST(StyleTest, KindNamesParse) {
  for (const Style& style : {ColumnParallel("a"), RowParallel("a"), VocabParallel("a"), SequenceParallel("a"),
                             DataParallel("a"), FullyShard("a")}) {
    EXPECT_EQ(ParseStyleKind(StyleKindName(style.kind)), style.kind) << style;
  }
  try {
    ParseStyleKind("ColumnWise");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(error.message(),
              "unknown style 'ColumnWise': expected one of ColumnParallel, RowParallel, VocabParallel, "
              "SequenceParallel, DataParallel, FullyShard");
  }
}

}  // namespace
}  // namespace weft
