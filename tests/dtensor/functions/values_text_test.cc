#include "dtensor/functions/values_text.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/redistribution/implicit.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

TEST(ValuesTextTest, ShowsAllOfASmallTensor) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const auto text = [&](const Tensor& x, const ValuesTextOptions& options = {}) {
      return ValuesText(Lay(context, x, Layout(x.ndim(), 0)), options);
    };
    EXPECT_EQ(text(Tensor::FromValues<float>({2, 3}, {1, -0.5, 0, 1e4, 2, 3})),
              "f32[2, 3] [-, -]\n[[    1,  -0.5,     0],\n [1e+04,     2,     3]]\n");
    EXPECT_EQ(text(Tensor::FromValues<double>({3}, {NAN, -INFINITY, 1.0 / 3})),
              "f64[3] [-]\n[   nan,   -inf, 0.3333]\n");
    EXPECT_EQ(text(Tensor::FromValues<double>({1}, {1.0 / 3}), {.precision = 8}),
              "f64[1] [-]\n[0.33333333]\n");
    EXPECT_EQ(text(Tensor::FromValues<int64_t>({2}, {(int64_t{1} << 62) + 1, -7})),
              "i64[2] [-]\n[4611686018427387905,                  -7]\n");
    EXPECT_EQ(text(Tensor::FromValues<bool>({1, 2}, {true, false})), "bool[1, 2] [-, -]\n[[ true, false]]\n");
    EXPECT_EQ(text(Tensor::FromValues<float>({}, {2.5})), "f32[] []\n2.5\n");
    EXPECT_EQ(text(Tensor::FromValues<float>({0, 3}, {})), "f32[0, 3] [-, -]\n[]\n");
    EXPECT_EQ(text(Tensor::FromValues<float>({2, 0}, {})), "f32[2, 0] [-, -]\n[[],\n []]\n");
    EXPECT_EQ(text(WholeNumbers(DType::kI32, {2, 1, 2})),
              "i32[2, 1, 2] [-, -, -]\n[[[ 1,  8]],\n [[15, 22]]]\n");
  });
}

// Elements i 100 + j: what is shown names itself.
TEST(ValuesTextTest, ShowsTheEdgesOfALargeOneOnAnyLayout) {
  std::vector<double> values;
  for (int i = 0; i < 40; ++i) {
    for (int j = 0; j < 50; ++j) values.push_back(100 * i + j);
  }
  const Tensor full = Tensor::FromValues<double>({40, 50}, values);
  const std::string expected =
      "[[   0,    1, ...,   48,   49],\n [ 100,  101, ...,  148,  149],\n ...,\n"
      " [3800, 3801, ..., 3848, 3849],\n [3900, 3901, ..., 3948, 3949]]\n";
  for (const char* mesh : {"a=2", "a=2,b=3"}) {
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      for (const Layout& layout : AllLayouts(context->mesh(), 2, {ReduceOp::kSum})) {
        const DTensor x = Lay(context, full, layout);
        // Nobody's budget of implicit moves counts what was asked for.
        const ImplicitRedistributionGuard guard(context->state(), ImplicitRedistribution::kForbid);
        context->world().ledger().Clear();
        EXPECT_EQ(ValuesText(x, {.edge = 2}), absl::StrCat(x.ToString(), "\n", expected));
        for (const LedgerEntry& entry : context->world().ledger().entries()) {
          EXPECT_EQ(static_cast<Purpose>(entry.tag.purpose), Purpose::kMetric);
          EXPECT_LT(entry.num_bytes, 40 * 50 * 8 / 2) << layout;  // the whole is not gathered
        }
      }
    });
  }
}

// All ranks together move no more than two all-reduces of 6 x 6 elements would, of 8 x 1000.
TEST(ValuesTextTest, MovesWhatItShowsAlone) {
  const Tensor full = WholeNumbers(DType::kF64, {8, 1000});
  std::string expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    expected = ValuesText(Lay(context, full, Layout(2, 0)));
  });
  expected = expected.substr(expected.find('\n'));
  for (const char* mesh : {"a=2", "a=2,b=2", "a=3,b=1"}) {
    std::map<std::string, std::vector<int64_t>> bytes;  // by layout, of each rank
    const int64_t num_ranks = DeviceMesh::Parse(mesh).num_ranks();
    for (const Layout& layout :
         AllLayouts(DeviceMesh::Parse(mesh), 2, {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProduct})) {
      bytes[layout.ToString()].resize(num_ranks);
    }
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      for (const Layout& layout :
           AllLayouts(context->mesh(), 2, {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProduct})) {
        const DTensor x = Lay(context, full, layout);
        context->world().ledger().Clear();
        EXPECT_EQ(ValuesText(x), absl::StrCat(x.ToString(), expected));
        bytes.at(layout.ToString())[context->world().rank()] = context->world().ledger().num_bytes();
      }
    });
    for (const auto& [layout, of_ranks] : bytes) {
      const int64_t total = std::accumulate(of_ranks.begin(), of_ranks.end(), int64_t{0});
      EXPECT_LE(total, num_ranks * 2 * 2 * 36 * 8) << layout << " on " << mesh;
    }
  }
}

TEST(ValuesTextTest, NegativeZerosStay) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, FromDoubles(DType::kF32, {5}, {-0.0, 0, 7, 0, -0.0}), "[a]");
    EXPECT_EQ(ValuesText(x, {.most = 4, .edge = 2}), "f32[5] [a]\n[-0,  0, ...,  0, -0]\n");
  });
}

TEST(ValuesTextTest, AnEdgeBeyondTheExtentShowsAll) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF32, {5}), "[a]");
    for (const int64_t edge : {int64_t{3}, (int64_t{1} << 62) + 1, std::numeric_limits<int64_t>::max()}) {
      EXPECT_EQ(ValuesText(x, {.most = 4, .edge = edge}), ValuesText(x)) << edge;
    }
    EXPECT_EQ(ValuesText(x, {.most = 4, .edge = 2}), "f32[5] [a]\n[ 1,  8, ..., 22, 29]\n");
  });
}

TEST(ValuesTextTest, Misuse) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF32, {2}, 1);
    EXPECT_EQ(ErrorOf([&] { ValuesText(x, {.edge = 0}); }),
              "ValuesText: expected options of at least 1, got most 1000, edge 0, precision 4");
  });
}

}  // namespace
}  // namespace weft
