#include "runtime/base/reduce_op.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace weft {
namespace {

TEST(ReduceOp, Prints) {
  std::string all;
  for (ReduceOp op : kAllReduceOps) {
    std::ostringstream out;
    out << op << " ";
    all += out.str();
  }
  EXPECT_EQ(all, "sum avg min max product ");
}

}  // namespace
}  // namespace weft
