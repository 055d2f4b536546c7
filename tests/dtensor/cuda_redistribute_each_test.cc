// RedistributeEach on emulated GPUs over a fake NCCL: a stream runs only when somebody waits for it, so a wait
// that is missing shows as elements that are not there.

#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/functions.h"
#include "dtensor/redistribute_each.h"
#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

class CudaLanes : public testing::TestWithParam<Lane> {};

TEST_P(CudaLanes, MovesHaveTheBitsOfTheMoveAlone) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  std::vector<Layout> layouts;
  for (const char* text : {"[-, -]", "[a, -]", "[-, b]", "[a.b, -]", "[a, b]", "[-, -] P{a}", "[b, -] P{a}",
                           "[-, -] P{a,b}", "[-, a] P{b}"}) {
    layouts.push_back(Layout::Parse(text, mesh));
  }
  RunNcclRanks(4, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, mesh);
    const DTensor whole = DTensor::Distribute(context, RandomF64({7, 5}, 1), layouts[0]);
    std::vector<DTensor> sources, alone;
    sources.reserve(layouts.size());  // moves borrow them
    std::vector<EachMove> moves;
    for (const Layout& from : layouts) {
      sources.push_back(whole.Redistribute(from));
      for (const Layout& to : layouts) {
        moves.push_back({.source = sources.back(), .to = to});
        alone.push_back(sources.back().Redistribute(to));
      }
    }
    const std::vector<DTensor> together = RedistributeEach(moves, GetParam());
    for (size_t i = 0; i < moves.size(); ++i) {
      EXPECT_TRUE(SameBits(OnHost(together[i].ToLocal()), OnHost(alone[i].ToLocal())))
          << moves[i].source->layout.ToString(mesh) << " to " << moves[i].to.ToString(mesh) << " on rank "
          << world.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Lanes, CudaLanes, testing::ValuesIn(kLanes),
                         [](const auto& info) { return std::string(LaneName(info.param)); });

// The collective is on its way when the call returns; the rank's own stream goes on beside it.
TEST(CudaRedistributeEachTest, TheRanksStreamDoesNotWaitAtIssue) {
  RunNcclRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("a=2"));
    const DTensor x =
        DTensor::Distribute(context, RandomF64({6, 4}, 1), Layout::Parse("[a, -]", context->mesh()));
    const DTensor moved =
        RedistributeEach({{.source = x, .to = Layout::Parse("[-, -]", context->mesh())}}, Lane::kParam)[0];
    EXPECT_TRUE(moved.impl()->is_pending());
    // Rank 1 issues its part only when rank 0 has computed: were rank 0's stream to wait, this would hang.
    const DTensor doubled = Add(x, x);
    EXPECT_TRUE(AllClose(OnHost(doubled.ToLocal()), OnHost((2.0 * x).ToLocal()), 1e-15));
    EXPECT_TRUE(SameBits(OnHost(moved.ToLocal()), RandomF64({6, 4}, 1)));
    EXPECT_FALSE(moved.impl()->is_pending());
  });
}

TEST(CudaRedistributeEachTest, PendingResultsMayBeDropped) {
  RunNcclRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("a=2"));
    const DeviceMesh& mesh = context->mesh();
    const DTensor source = DTensor::Distribute(context, RandomF64({8, 8}, 1), Layout::Parse("[-, a]", mesh));
    std::vector<DTensor> results;
    for (int i = 0; i < 12; ++i) {
      DTensor moved =
          RedistributeEach({{.source = source, .to = Layout::Parse("[-, -]", mesh)}}, Lane::kGrad)[0];
      if (i % 3 == 0) continue;  // nobody reads it
      results.push_back(i % 3 == 1 ? Add(moved, moved) : moved.Detach());
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const Tensor whole = RandomF64({8, 8}, 1);
      const Tensor mine = OnHost(results[i].ToLocal());
      for (int64_t j = 0; j < 64; ++j) {
        ASSERT_EQ(mine.data<double>()[j], whole.data<double>()[j] * (i % 2 == 0 ? 2 : 1));
      }
    }
  });
}

}  // namespace
}  // namespace weft
