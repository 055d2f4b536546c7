#include "ops/indexing/embedding.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/check_gradients.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

Tensor Make(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor Random(DType dtype, const Shape& shape, int seed, double low = -1, double high = 1) {
  std::mt19937_64 random(seed);
  return RandomTensor({{dtype, shape}, low, high}, random);
}

std::vector<double> NaiveGather(const Tensor& tokens, const Tensor& table) {
  const std::vector<double> rows = table.ToVector<double>();
  const int64_t d = table.shape()[1];
  std::vector<double> y;
  for (int64_t token : tokens.ToVector<int64_t>()) {
    for (int64_t i = 0; i < d; ++i) y.push_back(rows[token * d + i]);
  }
  return y;
}

std::vector<double> NaiveScatter(const Tensor& tokens, const Tensor& dy, int64_t vocabulary, int64_t d) {
  const std::vector<double> from = dy.ToVector<double>();
  std::vector<double> table(vocabulary * d, 0);
  size_t next = 0;
  for (int64_t token : tokens.ToVector<int64_t>()) {
    for (int64_t i = 0; i < d; ++i) table[token * d + i] += from[next++];
  }
  return table;
}

Shape With(Shape shape, int64_t d) {
  shape.push_back(d);
  return shape;
}

struct Case {
  DType tokens;
  Shape shape;
  int64_t v;
  int64_t d;
};

TEST(EmbeddingTest, MatchesNaiveLoops) {
  const std::vector<Case> cases = {{DType::kI64, {}, 3, 5},      {DType::kI32, {4}, 1, 1},
                                   {DType::kI64, {0, 3}, 7, 4},  {DType::kI64, {2, 3}, 11, 0},
                                   {DType::kI32, {3, 5}, 7, 65}, {DType::kI64, {2, 700}, 300, 130}};
  for (const Case& c : cases) {
    const Tensor tokens = Random(c.tokens, c.shape, 1, 0, static_cast<double>(c.v));
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      const Tensor table = Random(dtype, {c.v, c.d}, 2);
      const Shape shape = With(c.shape, c.d);
      EXPECT_TRUE(
          SameBits(RunOp(kEmbedding, {tokens, table}), Make(dtype, shape, NaiveGather(tokens, table))));
      const Tensor dy = Random(dtype, shape, 3);
      const Tensor gradient = Backward(kEmbedding, {tokens, table}, {dy})[1];
      const double tolerance = dtype == DType::kF64 ? 1e-13 : dtype == DType::kF32 ? 1e-5 : 8e-3;
      EXPECT_TRUE(AllClose(gradient, Make(dtype, {c.v, c.d}, NaiveScatter(tokens, dy, c.v, c.d)), tolerance));
    }
  }
}

TEST(EmbeddingTest, Bf16GradientsRoundOnce) {
  // 1000 times 1: bf16 additions would stop at 256.
  const Tensor tokens = Make(DType::kI64, {1000}, std::vector<double>(1000, 1));
  const Tensor dy = Make(DType::kBF16, {1000, 1}, std::vector<double>(1000, 1));
  EXPECT_EQ(RunOp(kEmbeddingGrad, {tokens, dy}, {.vocabulary = 3}).ToVector<double>(),
            (std::vector<double>{0, 1000, 0}));
}

// One token takes most positions: its row is the work of several tasks, by columns. Some rows have no token.
TEST(EmbeddingTest, AFrequentTokenIsCutByColumns) {
  std::vector<double> values(4000, 5);
  for (size_t i = 0; i < values.size(); i += 7) values[i] = static_cast<double>(i % 11);
  const Tensor tokens = Make(DType::kI64, {4000}, values);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor dy = Random(dtype, {4000, 131}, 2);
    const Tensor one = RunOp(kEmbeddingGrad, {tokens, dy}, {.vocabulary = 20});
    EXPECT_TRUE(AllClose(one, Make(dtype, {20, 131}, NaiveScatter(tokens, dy, 20, 131)),
                         dtype == DType::kF32 ? 1e-4 : 8e-3));
    EXPECT_TRUE(
        SameBits(RunOp(kEmbeddingGrad, {tokens, dy}, {.vocabulary = 20}, {}, /*num_threads=*/3), one));
  }
}

TEST(EmbeddingTest, AnyStrides) {
  const Tensor tokens = Random(DType::kI64, {4, 6}, 1, 0, 9).Transpose(0, 1);
  const Tensor wide = Random(DType::kF32, {9, 12}, 2);
  for (const Tensor& table : {wide.Slice(1, 3, 5), Random(DType::kF32, {5, 9}, 3).Transpose(0, 1)}) {
    EXPECT_TRUE(SameBits(RunOp(kEmbedding, {tokens, table}),
                         Make(DType::kF32, {6, 4, 5}, NaiveGather(tokens, table))));
  }
  const Tensor ones = Make(DType::kF32, {}, {1}).Expand({6, 4, 5});
  EXPECT_TRUE(SameBits(RunOp(kEmbeddingGrad, {tokens, ones}, {.vocabulary = 9}),
                       Make(DType::kF32, {9, 5}, NaiveScatter(tokens, ones, 9, 5))));
}

TEST(EmbeddingTest, ThreadsDoNotChangeBits) {
  const Tensor tokens = Random(DType::kI64, {5000}, 1, 0, 90);
  const Tensor dy = Random(DType::kF32, {5000, 100}, 2);
  const Tensor one = RunOp(kEmbeddingGrad, {tokens, dy}, {.vocabulary = 90});
  for (int threads : {2, 5}) {
    EXPECT_TRUE(SameBits(RunOp(kEmbeddingGrad, {tokens, dy}, {.vocabulary = 90}, {}, threads), one));
  }
}

TEST(EmbeddingTest, ASplitVocabularyAddsUp) {
  const Tensor tokens = Random(DType::kI64, {3, 4}, 1, 0, 7), table = Random(DType::kF64, {7, 5}, 2);
  const Tensor whole = RunOp(kEmbedding, {tokens, table});
  const Tensor sum = CloneTensor(whole, MakeCpuAllocator());
  FillTensor(sum, 0);
  const Tensor dy = Random(DType::kF64, {3, 4, 5}, 3);
  const Tensor gradient = RunOp(kEmbeddingGrad, {tokens, dy}, {.vocabulary = 7});
  for (Range range : {Range{0, 3}, Range{3, 3}, Range{6, 1}, Range{7, 0}}) {
    const Tensor piece =
        RunSharded(kEmbedding, {WholePiece(tokens), SplitPiece(table, 0, range)}, {WholeBox({3, 4, 5})})[0];
    AccumulateTensor(piece, sum, ReduceOp::kSum);
    EXPECT_TRUE(SameBits(RunSharded(kEmbeddingGrad, {WholePiece(tokens), WholePiece(dy)},
                                    {SplitBox({7, 5}, 0, range)}, {.vocabulary = 7})[0],
                         SplitPiece(gradient, 0, range).tensor));
  }
  EXPECT_TRUE(AllClose(sum, whole, 0));
}

TEST(EmbeddingTest, GradientsMatchDifferences) {
  EXPECT_TRUE(CheckGradients(kEmbedding,
                             Sample<>{.operands = {{{DType::kI64, {3, 4}}, 0, 5}, {{DType::kF64, {5, 3}}}}}));
}

TEST(EmbeddingTest, MisuseIsNamed) {
  const auto message = [](auto function) -> std::string {
    try {
      function();
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  const Tensor table = Random(DType::kF32, {16, 2}, 1);
  const Tensor tokens = Make(DType::kI64, {2, 4}, {0, 1, 15, 3, 2, 16, -1, 0});
  EXPECT_EQ(message([&] {
              RunOp(kEmbedding, {tokens, table});
            }),
            "embedding: token 16 at [1, 1] is outside [0, 16)");
  // On a piece: the global position, and the global vocabulary.
  EXPECT_EQ(message([&] {
              RunSharded(kEmbedding, {SplitPiece(tokens, 1, {2, 2}), SplitPiece(table, 0, {0, 8})},
                         {SplitBox({2, 4, 2}, 1, {2, 2})});
            }),
            "embedding: token -1 at [1, 2] is outside [0, 16)");
  EXPECT_EQ(message([&] {
              RunOp(kEmbedding, {table, table});
            }),
            "embedding: tokens must be i32 or i64, got f32[16, 2]");
  EXPECT_EQ(message([&] {
              RunOp(kEmbedding, {tokens, Random(DType::kF32, {16}, 1)});
            }),
            "embedding: table must be floating and [v, d], got f32[16]");
}

}  // namespace
}  // namespace weft
