// Batch kernels beside the kernels of the same ops: bit for bit the same, however the tensors lie.

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "ops/optimizer/optimizer_update.h"
#include "ops/reduce/reduce.h"
#include "tests/ops/cuda/both_devices.h"

namespace weft {
namespace {

enum class Lies { kAligned, kUnaligned, kTransposed };

// Elements that follow from their index and `low`.
Tensor MakeTensor(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape, Lies lies,
                  double low, double high) {
  if (lies == Lies::kAligned || shape.ndim() == 0) return PatternTensor(allocator, dtype, shape, low, high);
  const int last = shape.ndim() - 1;
  Shape stored = shape;
  if (lies == Lies::kTransposed) {
    std::swap(stored[0], stored[last]);
    return PatternTensor(allocator, dtype, stored, low, high).Transpose(0, last);
  }
  const Tensor flat = PatternTensor(allocator, dtype, {shape.num_elements() + 1}, low, high);
  return flat.Slice(0, 1, shape.num_elements()).Reshape(shape);
}

// One call of several, without its elements.
struct Given {
  Shape shape;
  Lies lies = Lies::kAligned;
  DType p = DType::kF32;
  DType g = DType::kF32;
  double clip = 0.25;
  double decay = 0;
};

// Uneven, empty, a chunk of ManyTensors and its neighbours, several; more small ones than one launch takes.
std::vector<Given> ManyGiven() {
  std::vector<Given> all = {{.shape = {16383}},
                            {.shape = {16384}},
                            {.shape = {16385}, .decay = 0.1},
                            {.shape = {3, 11003}, .lies = Lies::kUnaligned},
                            {.shape = {1003}, .clip = NAN},
                            {.shape = {1003}, .p = DType::kBF16, .g = DType::kF32, .clip = INFINITY}};
  for (const Shape& shape : {Shape{0}, Shape{1}, Shape{5, 7}, Shape{}, Shape{4, 0, 3}, Shape{130}}) {
    for (const Lies lies : {Lies::kAligned, Lies::kUnaligned, Lies::kTransposed}) {
      all.push_back({.shape = shape, .lies = lies, .decay = 0.01 * static_cast<double>(all.size() % 3)});
    }
  }
  for (const DType p : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const DType g : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      all.push_back({.shape = {29}, .lies = Lies::kUnaligned, .p = p, .g = g, .decay = 0.1});
      all.push_back({.shape = {16, 16}, .p = p, .g = g});
    }
  }
  for (int64_t n = 0; n < 50; ++n) all.push_back({.shape = {n % 17}, .decay = n % 2 == 0 ? 0.0 : 0.3});
  return all;
}

// A call with its tensors on the device.
struct Made {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::vector<ShardBox> input_boxes;
  std::vector<ShardBox> output_boxes;
};

class ManyTensorsTest : public testing::Test {
 protected:
  // p, `num_state` tensors of state, g and the clip factor.
  Made MakeUpdate(const Given& given, int num_state) {
    Made made;
    made.inputs.push_back(MakeTensor(cuda_, given.p, given.shape, given.lies, -1, 1));
    for (int i = 0; i < num_state; ++i) {
      made.inputs.push_back(MakeTensor(cuda_, given.p, given.shape, given.lies, 0, 1 + i));
    }
    made.outputs = made.inputs;
    made.inputs.push_back(MakeTensor(cuda_, given.g, given.shape, given.lies, -2, 3));
    made.inputs.push_back(PatternTensor(cuda_, DType::kF32, {}, given.clip, given.clip));
    // Rates, if they are AdamW's two: far apart in memory, too.
    if (num_state == 2 && given.lies == Lies::kAligned) {
      made.inputs.push_back(PatternTensor(cuda_, DType::kF64, {2}, 0.1, 0.9));
    } else if (num_state == 2) {
      made.inputs.push_back(PatternTensor(cuda_, DType::kF64, {2, 3}, 0.1, 0.9).Select(1, 1));
    }
    return made;
  }

  // A tensor of dtype g.
  Made MakeSquares(const Given& given) {
    Made made;
    made.inputs = {MakeTensor(cuda_, given.g, given.shape, given.lies, -2, 3)};
    made.outputs = {PatternTensor(cuda_, given.g == DType::kF64 ? DType::kF64 : DType::kF32, {}, 77, 77)};
    return made;
  }
  static double Squares(const Tensor& tensor) {
    double sum = 0;
    for (const double x : OnHost(tensor).ToVector<double>()) sum += x * x;
    return sum;
  }

  KernelCallBase CallOf(Made& made, const void* attributes, const void* scalars) {
    for (const Tensor& input : made.inputs) made.input_boxes.push_back(WholeBox(input.shape()));
    for (const Tensor& output : made.outputs) made.output_boxes.push_back(WholeBox(output.shape()));
    return {context_,   made.inputs, absl::MakeSpan(made.outputs), made.input_boxes, made.output_boxes,
            attributes, scalars};
  }

  // The op's kernel on each of `alone`, its batch kernel on all of `together`, which are equal.
  template <class Scalars>
  void RunBoth(const OpDef& op, std::vector<Made>& alone, std::vector<Made>& together,
               const std::vector<Scalars>& scalars) {
    const NoAttributes attributes;
    std::vector<KernelCallBase> calls;
    for (size_t i = 0; i < alone.size(); ++i) {
      op.Invoke(FindKernel(op, DeviceType::kCuda), CallOf(alone[i], &attributes, &scalars[i]));
      calls.push_back(CallOf(together[i], &attributes, &scalars[i]));
    }
    const BatchKernel batch = FindBatchKernel(op, DeviceType::kCuda);
    ASSERT_NE(batch, nullptr) << op.name();
    batch(calls);
  }

  template <class Scalars>
  void CheckUpdate(const OpDef& op, int num_state, const Scalars& common) {
    const std::vector<Given> given = ManyGiven();
    std::vector<Made> alone, together;
    std::vector<Scalars> scalars;
    for (const Given& one : given) {
      alone.push_back(MakeUpdate(one, num_state));
      together.push_back(MakeUpdate(one, num_state));
      scalars.push_back(common);
      if constexpr (requires { common.weight_decay; }) scalars.back().weight_decay = one.decay;
    }
    RunBoth(op, alone, together, scalars);
    for (size_t i = 0; i < given.size(); ++i) {
      const Made before = MakeUpdate(given[i], num_state);
      for (int j = 0; j <= num_state; ++j) {
        const std::string what = absl::StrCat(op.name(), ", call ", i, ", output ", j);
        const Tensor result = OnHost(together[i].outputs[j]);
        EXPECT_EQ(ByteDifference(result, OnHost(alone[i].outputs[j])), "") << what;
        const bool skips = !std::isfinite(given[i].clip) || given[i].shape.num_elements() == 0;
        EXPECT_EQ(ByteDifference(result, OnHost(before.outputs[j])) == "", skips) << what;
      }
    }
  }

  ThreadPool pool_{1};
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
  KernelContext context_ = {pool_, cuda_};
};

TEST_F(ManyTensorsTest, UpdatesHaveTheBitsOfSingleOnes) {
  CheckUpdate(kAdamWUpdate, 2, AdamWScalars{.lr = 0.1});
  CheckUpdate(kSgdUpdate, 0, SgdScalars{.lr = 0.1});
  CheckUpdate(kMomentumUpdate, 1, MomentumScalars{.lr = 0.1});
  CheckUpdate(kNesterovUpdate, 1, MomentumScalars{.lr = 0.1});
  CheckUpdate(kLionUpdate, 1, LionScalars{.lr = 0.1});
  CheckUpdate(kLerpUpdate, 0, NoScalars());
}

TEST_F(ManyTensorsTest, SumsOfSquaresHaveTheBitsOfSingleOnes) {
  std::vector<Given> given = ManyGiven();
  given.push_back({.shape = {100003}});  // more chunks than one tensor has elsewhere
  const auto make = [&] {
    std::vector<Made> all;
    for (const Given& one : given) all.push_back(MakeSquares(one));
    return all;
  };
  std::vector<Made> alone = make(), together = make();
  RunBoth(kSumSquares, alone, together, std::vector<NoScalars>(given.size()));
  for (size_t i = 0; i < given.size(); ++i) {
    const Tensor sum = OnHost(together[i].outputs[0]);
    EXPECT_EQ(ByteDifference(sum, OnHost(alone[i].outputs[0])), "") << "call " << i;
    EXPECT_NEAR(sum.ToVector<double>()[0], Squares(together[i].inputs[0]),
                (given[i].g == DType::kF64 ? 1e-13 : 3e-7) * Squares(together[i].inputs[0]))
        << "call " << i << " of " << given[i].shape.ToString() << " " << DTypeName(given[i].g);
  }
}

// More than the tables of either kernel hold.
TEST_F(ManyTensorsTest, SumsOfSquaresOfHundreds) {
  std::vector<Made> made;
  for (int64_t n = 0; n < 600; ++n) made.push_back(MakeSquares({.shape = {n % 3}}));
  const NoAttributes attributes;
  const NoScalars scalars;
  std::vector<KernelCallBase> calls;
  for (Made& one : made) calls.push_back(CallOf(one, &attributes, &scalars));
  FindBatchKernel(kSumSquares, DeviceType::kCuda)(calls);
  for (const Made& one : made) {
    EXPECT_FLOAT_EQ(OnHost(one.outputs[0]).ToVector<float>()[0], static_cast<float>(Squares(one.inputs[0])));
  }
}

// In order, each sum rounded: as the CPU's, and as many operands as several launches take.
TEST_F(ManyTensorsTest, AddAllHasTheBitsOfTheCpu) {
  BothDevices both;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const int count : {1, 2, 480, 481, 970}) {
      for (const Shape& shape : count < 480 ? std::vector<Shape>{{}, {3, 5}, {0}} : std::vector<Shape>{{}}) {
        const auto operands = [&](const std::shared_ptr<Allocator>& allocator) {
          std::vector<Tensor> tensors;
          for (int i = 0; i < count; ++i) {
            const Lies lies = i == 1 ? Lies::kTransposed : Lies::kUnaligned;
            tensors.push_back(MakeTensor(allocator, dtype, shape, lies, 0.1 + i, 0.3 + 1.7 * i));
          }
          return tensors;
        };
        const BothDevices::Results results = both.Run(kAddAll, operands, shape);
        EXPECT_EQ(ByteDifference(results.cuda[0], results.cpu[0]), "")
            << count << " of " << DTypeName(dtype) << shape.ToString();
      }
    }
  }
}

}  // namespace
}  // namespace weft
