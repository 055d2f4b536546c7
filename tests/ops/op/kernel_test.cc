#include "ops/op/kernel.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using ::testing::Contains;
using ::testing::Not;

TensorTypes Same(absl::Span<const TensorType> types, const NoAttributes&) { return {types[0]}; }
std::string Rule(absl::Span<const TensorType>, const NoAttributes&) { return "a -> a"; }
void Kernel(const KernelCall<NoAttributes, NoScalars>&) {}

constinit const Op<> kHere = {{.name = "here", .operands = "x", .infer = Same, .rule = Rule}};
constinit const Op<> kNowhere = {{.name = "nowhere", .operands = "x", .infer = Same, .rule = Rule}};
constinit const Op<> kEverywhere = {{.name = "everywhere", .operands = "x", .infer = Same, .rule = Rule}};
const RegisterKernel kHereCpu(kHere, DeviceType::kCpu, Kernel);
const RegisterKernel kEverywhereCpu(kEverywhere, DeviceType::kCpu, Kernel);
const RegisterKernel kEverywhereMeta(kEverywhere, DeviceType::kMeta, Kernel);

void InBatch(absl::Span<const KernelCallBase>) {}
const RegisterBatchKernel kHereBatch(kHere, DeviceType::kCpu, InBatch);

TEST(KernelTest, BatchKernelsStandBesideKernels) {
  EXPECT_EQ(FindBatchKernel(kHere, DeviceType::kCpu), InBatch);
  EXPECT_EQ(FindBatchKernel(kHere, DeviceType::kMeta), nullptr);
  EXPECT_EQ(FindBatchKernel(kEverywhere, DeviceType::kCpu), nullptr);
}

TEST(KernelTest, IsFoundByOpAndDevice) {
  EXPECT_EQ(FindKernel(kHere, DeviceType::kCpu), reinterpret_cast<ErasedKernel>(Kernel));
  EXPECT_EQ(FindKernel(kHere, DeviceType::kMeta), nullptr);
  EXPECT_EQ(FindKernel(kNowhere, DeviceType::kCpu), nullptr);
  EXPECT_NE(FindKernel(kToyMatmul, DeviceType::kCpu), nullptr) << "registered in another file";
}

TEST(KernelTest, RegisteredOpsAreSortedAndListedOnce) {
  std::vector<std::string> names;
  for (const OpDef* op : RegisteredOps()) names.push_back(op->name());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::count(names.begin(), names.end(), "everywhere"), 1);
  EXPECT_THAT(names, Contains("here"));
  EXPECT_THAT(names, Contains("toy_sgd"));
  EXPECT_THAT(names, Not(Contains("nowhere")));
}

TEST(KernelDeathTest, TwoKernelsForOneOpAndDeviceEndTheProgram) {
  EXPECT_DEATH(RegisterKernel(kHere, DeviceType::kCpu, Kernel), "two kernels of op 'here' for one device");
  EXPECT_DEATH(RegisterBatchKernel(kHere, DeviceType::kCpu, InBatch),
               "two batch kernels of op 'here' for one device");
}

}  // namespace
}  // namespace weft
