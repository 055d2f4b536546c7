#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/loader/loader.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"

namespace weft {
namespace {

// Sample i is i, i + 0.5.
class Numbers final : public Dataset {
 public:
  int64_t num_samples() const override { return 1000; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void Read(int64_t index, absl::Span<const FieldBytes> fields) const override {
    ElementsOf<float>(fields[0])[0] = static_cast<float>(index);
    ElementsOf<float>(fields[0])[1] = static_cast<float>(index) + 0.5f;
    ElementsOf<int32_t>(fields[1])[0] = static_cast<int32_t>(-index);
  }
  std::string NameOf(int64_t index) const override { return std::to_string(index); }

 private:
  const std::vector<SampleField> fields_ = {{.name = "pair", .dtype = DType::kF32, .shape = {2}},
                                            {.name = "minus", .dtype = DType::kI32, .shape = {}}};
};

std::vector<double> ExpectedPairs(const Sampler& sampler, int64_t position, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto sample = static_cast<double>(sampler.AtPosition(position + i));
    values.insert(values.end(), {sample, sample + 0.5});
  }
  return values;
}

// What a step computes of its batch, on the device, without waiting for it; the batches' memory comes round.
std::vector<std::vector<double>> Steps(int num_threads, int64_t ahead, int num_steps) {
  const std::shared_ptr<Allocator> cuda = MakeAllocator({DeviceType::kCuda});
  const auto sampler = std::make_shared<ShuffledSampler>(1000, 3);
  const Tensor used = Tensor::FromValues<float>({16, 2}, std::vector<float>(32, -1), cuda);
  std::vector<Tensor> results;
  {
    Loader loader(std::make_shared<Numbers>(), sampler,
                  {.batch = 16, .num_threads = num_threads, .ahead = ahead}, cuda);
    for (int step = 0; step < num_steps; ++step) {
      const LoaderBatch batch = loader.Get();
      EXPECT_EQ(batch.fields[0].device().type, DeviceType::kCuda);
      EXPECT_EQ(batch.fields[1].shape(), Shape({16}));
      results.push_back(CloneTensor(batch.fields[0], cuda));
      CopyTensor(used, batch.fields[0]);  // the batch is its user's, and its memory is used again
    }
  }
  std::vector<std::vector<double>> values;
  for (const Tensor& result : results) values.push_back(result.ToVector<double>());
  return values;
}

TEST(CudaLoaderTest, BatchesAreOnTheDeviceWhenTheStepReadsThem) {
  const ShuffledSampler sampler(1000, 3);
  for (const int num_threads : {0, 2}) {
    for (const int64_t ahead : {1, 2, 4}) {
      const std::vector<std::vector<double>> steps = Steps(num_threads, ahead, 30);
      for (int64_t step = 0; step < 30; ++step) {
        ASSERT_EQ(steps[static_cast<size_t>(step)], ExpectedPairs(sampler, 16 * step, 16)) << step;
      }
    }
  }
}

// The test can fail: a step that does not wait for the copy reads something else, and so does one whose memory a copy
// takes before the step that had it is done.
TEST(CudaLoaderTest, ACopyThatNobodyWaitsForIsSeen) {
  const ShuffledSampler sampler(1000, 3);
  for (const cuda_emulator::LeftOut left_out :
       {cuda_emulator::LeftOut::kWaitsOfFirst, cuda_emulator::LeftOut::kWaitsOfOthers}) {
    cuda_emulator::LeaveOutWaits(left_out);
    const std::vector<std::vector<double>> steps = Steps(/*num_threads=*/0, /*ahead=*/2, 30);
    EXPECT_GT(cuda_emulator::NumLeftOut(), 0);
    cuda_emulator::LeaveOutWaits(cuda_emulator::LeftOut::kNothing);
    int num_wrong = 0;
    for (int64_t step = 0; step < 30; ++step) {
      if (steps[static_cast<size_t>(step)] != ExpectedPairs(sampler, 16 * step, 16)) ++num_wrong;
    }
    EXPECT_GT(num_wrong, 0) << static_cast<int>(left_out);
  }
}

TEST(CudaLoaderTest, TheNextBatchIsOnItsWayBesideTheStep) {
  const std::shared_ptr<Allocator> cuda = MakeAllocator({DeviceType::kCuda});
  const auto sampler = std::make_shared<SequentialSampler>(1000);
  Loader loader(std::make_shared<Numbers>(), sampler, {.batch = 8, .num_threads = 1, .ahead = 3}, cuda);
  loader.Get();
  int64_t before = cuda->stats().live_bytes;
  // At the latest after a few steps the thread has read ahead, and two batches of the device are live: none of the user's.
  for (int step = 0; step < 1000 && before == 0; ++step) {
    loader.Get();
    before = cuda->stats().live_bytes;
  }
  EXPECT_EQ(before, RoundUpToGranule(8 * 8) + RoundUpToGranule(8 * 4));
}

TEST(CudaLoaderTest, SeekAndDestructionDropWhatIsOnItsWay) {
  const std::shared_ptr<Allocator> cuda = MakeAllocator({DeviceType::kCuda});
  const auto sampler = std::make_shared<SequentialSampler>(1000);
  {
    Loader loader(std::make_shared<Numbers>(), sampler, {.batch = 4, .num_threads = 2, .ahead = 2}, cuda);
    for (const int64_t position : {100, 8, 500}) {
      loader.Get();
      loader.Seek(position);
      EXPECT_EQ(loader.Get().fields[1].ToVector<double>()[0], static_cast<double>(-position));
    }
  }
  EXPECT_EQ(cuda->stats().live_bytes, 0);
}

}  // namespace
}  // namespace weft
