#include "parallel/scheduler/smaller_group.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/redistribute_each.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// Cut and gathered again, on every lane: uneven pieces, empty ones, and beside a split over another axis.
TEST(SmallerGroupTest, PartsMakeTheWholeAgain) {
  for (const char* mesh_text : {"dp=4", "dp=4,tp=2", "tp=2,dp=4"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      const auto context = Bind(world, mesh);
      const SmallerGroup group(context, mesh.AxisIndex("dp"), /*size=*/2, Lane::kParam);
      std::vector<Layout> layouts = {Layout::Parse("[-, -]", mesh)};
      if (mesh.FindAxis("tp") >= 0) layouts.push_back(Layout::Parse("[tp, -]", mesh));
      for (const Layout& layout : layouts) {
        for (const Shape& shape : {Shape{8, 6}, Shape{7, 3}, Shape{1, 1}}) {
          const DTensor whole = RandomNormal(context, DType::kF64, shape, layout);
          for (const int dim : {0, 1}) {
            const DTensor part = group.PartOf(whole, dim);
            EXPECT_LE(part.ToLocal().num_elements(),
                      (whole.ToLocal().shape()[dim] + 1) / 2 * whole.ToLocal().shape()[1 - dim]);
            for (const Lane lane : {Lane::kInline, Lane::kParam}) {
              const DTensor gathered =
                  RedistributeEach({{.source = part, .to = group.Inside(layout)}}, lane)[0];
              const DTensor again = group.Outside(gathered, layout);
              EXPECT_EQ(again.layout(), layout);
              EXPECT_EQ(again.context().get(), context.get());
              EXPECT_TRUE(SameBits(again.ToLocal(), whole.ToLocal()))
                  << shape.ToString() << " " << layout.ToString(mesh) << ", dim " << dim;
            }
          }
        }
      }
    });
  }
}

TEST(SmallerGroupTest, MovesWithinTheGroupAlone) {
  RunRanks(4, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=4"));
    const SmallerGroup group(context, /*axis=*/0, /*size=*/2, Lane::kParam);
    const DTensor whole = Full(context, DType::kF64, {8}, 1);
    world.ledger().Clear();
    const DTensor part = group.PartOf(whole, 0);
    EXPECT_EQ(world.ledger().entries().size(), 0u);
    RedistributeEach({{.source = part, .to = group.Inside(whole.layout())}})[0].ToLocal();
    EXPECT_EQ(world.ledger().num_bytes(),
              world.rank() % 2 == 0 ? 8 * 8 : 0);  // each group's first rank counts
  });
}

TEST(SmallerGroupTest, RefusesWhatIsNoPartOfTheAxis) {
  RunRanks(4, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=4"));
    for (const int64_t size : {1, 3, 4, 8}) {
      EXPECT_EQ(
          InvalidArgumentMessage([&] { SmallerGroup(context, /*axis=*/0, size, Lane::kParam); }),
          absl::StrCat("a group of ", size,
                       " along axis 'dp' of size 4: expected a divisor above 1 and below the axis's size"));
    }
    const SmallerGroup group(context, /*axis=*/0, /*size=*/2, Lane::kParam);
    EXPECT_EQ(InvalidArgumentMessage([&] { group.Inside(Layout::Parse("[dp]", context->mesh())); }),
              "layout [dp] is not whole along 'dp'");
  });
}

}  // namespace
}  // namespace weft
