#include "dtensor/redistribute_each.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor.h"
#include "dtensor/functions.h"
#include "dtensor/host_memory.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// Between any two layouts of a matrix on a mesh: what many moves in one call make of it is what each makes
// alone, on every lane.
class EveryPair : public testing::TestWithParam<Lane> {};

std::vector<Layout> SomeLayouts(const DeviceMesh& mesh) {
  std::vector<Layout> layouts;
  for (const char* text : {"[-, -]", "[a, -]", "[-, b]", "[a.b, -]", "[b.a, -]", "[a, b]", "[-, a.b]",
                           "[-, -] P{a}", "[b, -] P{a}", "[-, -] P{a,b}", "[-, a] P{b}"}) {
    layouts.push_back(Layout::Parse(text, mesh));
  }
  return layouts;
}

TEST_P(EveryPair, HasTheBitsOfTheMoveAlone) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=3");
  const Shape shape = {7, 5};  // uneven, with empty pieces
  RunRanks(6, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, mesh);
    const DTensor whole = RandomNormal(context, DType::kF64, shape);
    std::vector<DTensor> sources;
    sources.reserve(SomeLayouts(mesh).size());  // moves borrow them
    std::vector<EachMove> moves;
    std::vector<DTensor> alone;
    for (const Layout& from : SomeLayouts(mesh)) {
      sources.push_back(whole.Redistribute(from));
      for (const Layout& to : SomeLayouts(mesh)) {
        moves.push_back({.source = sources.back(), .to = to});
        alone.push_back(sources.back().Redistribute(to));
      }
    }
    const std::vector<DTensor> together = RedistributeEach(moves, GetParam());
    ASSERT_EQ(together.size(), moves.size());
    for (size_t i = 0; i < moves.size(); ++i) {
      EXPECT_EQ(together[i].layout(), moves[i].to);
      EXPECT_TRUE(SameBits(together[i].ToLocal(), alone[i].ToLocal()))
          << moves[i].source->layout.ToString(mesh) << " to " << moves[i].to.ToString(mesh) << " on rank "
          << world.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Lanes, EveryPair, testing::ValuesIn(kLanes),
                         [](const auto& info) { return std::string(LaneName(info.param)); });

TEST(RedistributeEachTest, MergesMovesOfOneKindIntoOneCallWithTheBytesOfAll) {
  RunRanks(3, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=3"));
    const DeviceMesh& mesh = context->mesh();
    const Layout partial1 = Layout::Parse("[-] P{dp}", mesh), whole1 = Layout::Parse("[-]", mesh);
    const Layout split1 = Layout::Parse("[dp]", mesh);
    std::vector<DTensor> sources;
    for (const int64_t n : {4, 9, 1})
      sources.push_back(Full(context, DType::kF32, {n}, 1, whole1).Redistribute(partial1));
    for (const int64_t n : {8, 5})
      sources.push_back(Full(context, DType::kF32, {n}, 1, whole1).Redistribute(partial1));
    world.ledger().Clear();
    std::vector<EachMove> moves;
    for (size_t i = 0; i < sources.size(); ++i) {
      moves.push_back({.source = sources[i], .to = i < 3 ? whole1 : split1});
    }
    const std::vector<DTensor> results = RedistributeEach(moves, Lane::kGrad);
    for (const DTensor& result : results)
      EXPECT_EQ(result.ToLocal().ToVector<float>(), std::vector<float>(result.ToLocal().num_elements(), 1));
    const std::vector<LedgerEntry> entries = world.ledger().entries();
    ASSERT_EQ(entries.size(), 2u);
    EXPECT_EQ(entries[0].calls, 1);
    EXPECT_EQ(entries[1].calls, 1);
    if (world.rank() == 0) {
      EXPECT_EQ(entries[0].num_bytes, 2 * 2 * 4 * (4 + 9 + 1));
      EXPECT_EQ(entries[1].num_bytes, 2 * 4 * (8 + 5));
    }
  });
}

TEST(RedistributeEachTest, WritesIntoTheGivenMemory) {
  RunRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    const DeviceMesh& mesh = context->mesh();
    const Layout split = Layout::Parse("[-, dp]", mesh), whole = Layout::Parse("[-, -]", mesh);
    const DTensor source = RandomNormal(context, DType::kF32, {3, 4}, split);
    for (const Layout& to : {whole, split, Layout::Parse("[dp, -]", mesh)}) {
      const DTensor alone = source.Redistribute(to);
      const Tensor into = Tensor::Empty(world.allocator(), DType::kF32, alone.ToLocal().shape());
      for (const Lane lane : {Lane::kInline, Lane::kParam}) {
        FillTensor(into, -1);
        const DTensor moved = RedistributeEach({{.source = source, .to = to, .into = into}}, lane)[0];
        EXPECT_EQ(moved.ToLocal().data(), into.data());
        EXPECT_TRUE(SameBits(into, alone.ToLocal())) << to.ToString(mesh);
      }
    }
  });
}

// A reduction in the memory of its own source.
TEST(RedistributeEachTest, ReducesInPlace) {
  RunRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    const Layout partial = Layout::Parse("[-] P{dp}", context->mesh());
    const Tensor mine = Tensor::FromValues<float>({2}, {1.0f + world.rank(), 10.0f}, world.allocator());
    const DTensor source = DTensor::FromLocal(context, mine, partial, {2});
    const DTensor sum = RedistributeEach(
        {{.source = source, .to = Layout::Parse("[-]", context->mesh()), .into = mine}}, Lane::kGrad)[0];
    EXPECT_EQ(sum.ToLocal().ToVector<float>(), (std::vector<float>{3, 20}));
    EXPECT_EQ(sum.ToLocal().data(), mine.data());
  });
}

TEST(RedistributeEachTest, PendingResultsAreReadByOpsAndMayBeDropped) {
  RunRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    const DeviceMesh& mesh = context->mesh();
    const DTensor source = RandomNormal(context, DType::kF32, {64, 64}, Layout::Parse("[dp, -]", mesh));
    const Layout whole = Layout::Parse("[-, -]", mesh);
    std::vector<DTensor> results;
    for (int i = 0; i < 20; ++i) {
      DTensor moved = RedistributeEach({{.source = source, .to = whole}}, Lane::kParam)[0];
      if (i % 3 == 0) continue;  // nobody reads it
      results.push_back(i % 3 == 1 ? Add(moved, moved) : moved.Detach());
    }
    const DTensor alone = source.Redistribute(whole);
    const DTensor doubled = Add(alone, alone);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(SameBits(results[i].ToLocal(), (i % 2 == 0 ? doubled : alone).ToLocal())) << i;
    }
  });
}

// What one lane brings is moved on by another, in order, with no reader in between.
TEST(RedistributeEachTest, APendingSourceIsMovedOnByTheLaterLane) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  RunRanks(4, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, mesh);
    const Layout from = Layout::Parse("[-, -] P{a,b}", mesh), between = Layout::Parse("[a, -] P{b}", mesh);
    const Layout to = Layout::Parse("[a, -]", mesh);
    const DTensor whole = RandomNormal(context, DType::kF64, {31, 17});
    for (int i = 0; i < 20; ++i) {
      const DTensor source = whole.Redistribute(from);
      const DTensor alone = source.Redistribute(between).Redistribute(to);
      const DTensor first = RedistributeEach({{.source = source, .to = between}}, Lane::kGrad)[0];
      // In the place of what it sums; and where nothing moves, still behind the first.
      const DTensor second =
          RedistributeEach({{.source = first, .to = to, .into = first.impl()->piece()}}, Lane::kReplica)[0];
      const DTensor third = RedistributeEach({{.source = second, .to = to}}, Lane::kParam)[0];
      EXPECT_TRUE(SameBits(third.ToLocal(), alone.ToLocal())) << i;
      EXPECT_EQ(third.ToLocal().data(), first.impl()->piece().data());
    }
  });
}

// A peer that has gone is told to the reader of the pending result, and to no destructor.
TEST(RedistributeEachTest, TheReaderIsToldOfAFailure) {
  const auto run = [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    const DTensor source = Full(context, DType::kF32, {8}, 1, Layout::Parse("[dp]", context->mesh()));
    context->Group({0}, Lane::kParam);
    if (world.rank() == 1) {
      context->Group({0}).Barrier();  // the other has issued it
      context->Group({0}, Lane::kParam).Abort("the test says so");
      return;
    }
    const DTensor moved =
        RedistributeEach({{.source = source, .to = Layout::Parse("[-]", context->mesh())}}, Lane::kParam)[0];
    context->Group({0}).Barrier();
    for (int i = 0; i < 2; ++i) {
      try {
        moved.ToLocal();
        ADD_FAILURE() << "read what never came";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.message()).find("the test says so"), std::string::npos)
            << error.message();
      }
    }
  };
  RunRanks(2, run);
}

// One call may move values of both memories, in any order: what is made of each lies beside it.
TEST(RedistributeEachTest, EachStaysInItsMemory) {
  RunRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    const Layout split = Layout::Parse("[dp]", context->mesh()),
                 whole = Layout::Parse("[-]", context->mesh());
    const DTensor here = RandomNormal(context, DType::kF32, {7}, split);
    const DTensor there = ToHost(RandomNormal(context, DType::kF32, {5}, split));
    const std::vector<std::vector<DTensor>> cases = {{here, there}, {there, here}, {there, here, there}};
    for (const std::vector<DTensor>& sources : cases) {
      std::vector<EachMove> moves;
      for (const DTensor& source : sources) moves.push_back({.source = source, .to = whole});
      for (const Lane lane : {Lane::kInline, Lane::kParam}) {
        const std::vector<DTensor> moved = RedistributeEach(moves, lane);
        ASSERT_EQ(moved.size(), sources.size());
        for (size_t i = 0; i < moved.size(); ++i) {
          EXPECT_EQ(moved[i].context(), sources[i].context());
          EXPECT_EQ(moved[i].ToLocal().buffer()->allocator(), sources[i].context()->allocator()) << i;
          EXPECT_TRUE(SameBits(moved[i].ToLocal(), sources[i].FullTensor()));
        }
      }
    }
  });
}

TEST(RedistributeEachTest, RefusesWhatDoesNotFit) {
  RunRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    const DeviceMesh& mesh = context->mesh();
    const DTensor source = Full(context, DType::kF32, {8}, 1, Layout::Parse("[dp]", mesh));
    const auto message_of = [](const EachMove& move) -> std::string {
      try {
        RedistributeEach({move});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
        return std::string(error.message());
      }
      return "nothing was thrown";
    };
    EXPECT_NE(message_of({.source = DTensorRef(), .to = Layout::Parse("[-]", mesh)}).find("undefined"),
              std::string::npos);
    EXPECT_NE(message_of({.source = source, .to = Layout(2, 1)}).find("has 2 dims"), std::string::npos);
    const Tensor small = Tensor::Empty(world.allocator(), DType::kF32, {4});
    EXPECT_NE(message_of({.source = source, .to = Layout::Parse("[-]", mesh), .into = small})
                  .find("the result's piece is f32[8], contiguous; it cannot go into f32[4]"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace weft
