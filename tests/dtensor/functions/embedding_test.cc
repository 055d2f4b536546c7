// Looking up rows of a table whose vocabulary is split.

#include "dtensor/functions/embedding.h"

#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// Ranks that do not own a row give what changes nothing that it is added to, a negative zero included.
TEST(EmbeddingTest, ASplitVocabularyKeepsNegativeZeros) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
      const Tensor table = FromDoubles(dtype, {5, 2}, {-0.0, 1, 2, -0.0, -0.0, -0.0, 0.0, -3, 4, -0.0});
      const Tensor tokens = Tensor::FromValues<int64_t>({6}, {0, 1, 2, 3, 4, 2});
      const DTensor whole = EmbeddingLookup(Lay(context, tokens, "[-]"), Lay(context, table, "[-, -]"));
      for (const char* layout : {"[a, -]", "[a.b, -]", "[b, a]"}) {
        const DTensor split = EmbeddingLookup(Lay(context, tokens, "[-]"), Lay(context, table, layout));
        EXPECT_TRUE(SameBits(split.FullTensor(), whole.FullTensor())) << DTypeName(dtype) << " " << layout;
      }
    });
  }
}

}  // namespace
}  // namespace weft
