// Which gradients of linear layers cost no pass of their own, and how many products convolutions are: the emulated
// library counts. That they are right is large_kernels_test's.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ops/convolution/conv.h"
#include "ops/product/contract.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/gemm_count.h"
#include "tools/rules/local_kernel.h"

namespace weft {
namespace {

class FusedProductsTest : public testing::Test {
 protected:
  // How many of the products of one call, on contiguous operands, do more than multiply.
  template <class A>
  int64_t NumFused(const Op<A>& op, const std::vector<TensorType>& types, const A& attributes) {
    return NumOf(NumFusedGemms, op, types, attributes);
  }

  // How far one call counts on.
  template <class A>
  int64_t NumOf(int64_t (*count)(), const Op<A>& op, const std::vector<TensorType>& types,
                const A& attributes) {
    KernelContext context = {pool_, cuda_};
    std::vector<Piece> operands;
    for (const TensorType& type : types) {
      operands.push_back({Tensor::Empty(cuda_, type.dtype, type.shape), WholeBox(type.shape)});
      FillTensor(operands.back().tensor, 1);
    }
    std::vector<ShardBox> boxes;
    for (const TensorType& type : op.Infer(types, &attributes)) boxes.push_back(WholeBox(type.shape));
    const NoScalars scalars;
    const int64_t before = count();
    RunKernel(op, context, operands, boxes, &attributes, &scalars);
    return count() - before;
  }

  ThreadPool pool_{1};
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
};

TEST_F(FusedProductsTest, BiasGradientsAreSumsOfColumns) {
  const auto num_fused = [&](DType dtype, int64_t heads, const ContractAttributes& labels, int bias_ndim) {
    return NumFused(kLinearWeightGrad, {{dtype, {2, 9, 16}}, {dtype, {2, 9, heads, 5}}},
                    LinearWeightGradAttributes{labels, bias_ndim});
  };
  const ContractAttributes labels = {"bsd", "bshe", "dhe"};
  EXPECT_EQ(num_fused(DType::kBF16, 2, labels, 2), 1);
  EXPECT_EQ(num_fused(DType::kF32, 2, labels, 2), 1);
  EXPECT_EQ(num_fused(DType::kF64, 2, labels, 2), 0);
  EXPECT_EQ(num_fused(DType::kF32, 3, labels, 2), 0) << "the library lacks it";
  EXPECT_EQ(num_fused(DType::kF32, 2, labels, 1), 0) << "the bias has fewer elements than a row";
  EXPECT_EQ(num_fused(DType::kF32, 2, {"bsd", "bshe", "deh"}, 2), 0)
      << "the weight has them in another order";
}

TEST_F(FusedProductsTest, GeluGradientsAreFactorsOfTheResult) {
  const auto num_fused = [&](DType dtype, int64_t hidden) {
    return NumFused(kGeluLinearInputGrad,
                    {{dtype, {2, 9, 16}}, {dtype, {hidden, 16}}, {dtype, {2, 9, hidden}}},
                    ContractAttributes{"bsd", "fd", "bsf"});
  };
  EXPECT_EQ(num_fused(DType::kBF16, 24), 1);
  EXPECT_EQ(num_fused(DType::kF32, 24), 1);
  EXPECT_EQ(num_fused(DType::kF64, 24), 0);
  EXPECT_EQ(num_fused(DType::kF32, 27), 0) << "the library lacks it";
}

// Depthwise: the more of images and groups are one batch; the gradient of the weight adds image by image.
TEST_F(FusedProductsTest, GroupsOrImagesOfConvolutionsAreABatch) {
  struct Case {
    int64_t images, groups, products, of_weight;
  };
  for (const Case& c : std::vector<Case>{{2, 12, 2, 2}, {5, 3, 3, 5}, {4, 1, 1, 4}, {1, 7, 1, 1}}) {
    const ConvAttributes a = {.padding = {1, 1}, .groups = c.groups};
    const TensorType x = {DType::kF32, {c.images, c.groups, 6, 5}};
    const TensorType w = {DType::kF32, {c.groups, 1, 3, 3}};
    const TensorType b = {DType::kF32, {c.groups}};
    EXPECT_EQ(NumOf(NumGemms, kConv, {x, w, b}, a), c.products) << c.images << " " << c.groups;
    EXPECT_EQ(NumOf(NumGemms, kConvDataGrad, {x, w}, ConvGradAttributes{a, {6, 5}}), c.products)
        << c.images << " " << c.groups;
    EXPECT_EQ(NumOf(NumGemms, kConvWeightGrad, {x, x}, ConvGradAttributes{a, {3, 3}}), c.of_weight)
        << c.images << " " << c.groups;
  }
}

}  // namespace
}  // namespace weft
