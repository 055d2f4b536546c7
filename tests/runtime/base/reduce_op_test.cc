#include "runtime/base/reduce_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "runtime/base/error.h"

namespace weft {
namespace {

TEST(ReduceOp, NamesParseBackAndPrint) {
  std::string all;
  for (ReduceOp op : kAllReduceOps) {
    EXPECT_EQ(ParseReduceOp(ReduceOpName(op)), op);
    std::ostringstream out;
    out << op << " ";
    all += out.str();
  }
  EXPECT_EQ(all, "sum avg min max product ");
}

TEST(ReduceOp, UnknownNameListsTheKnownOnes) {
  try {
    ParseReduceOp("mean");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "unknown reduction 'mean': expected one of sum, avg, min, max, product");
  }
}

}  // namespace
}  // namespace weft
