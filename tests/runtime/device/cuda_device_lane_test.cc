// Queues of a GPU beside the rank's own stream, emulated: a stream runs only when somebody waits for it, so a wait that is
// missing shows as elements that are not there, or as the NaN that memory turns to when it is given back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/queued_work.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/check.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/device/device_queue.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using cuda_emulator::LeftOut;

constexpr int64_t kCount = 1000;
constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(double));

__global__ void FillWith(double* to, double value, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = value;
}

__global__ void AddTo(const double* from, double* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] += from[i];
}

// Numbers on the device, whose memory goes back in the rank's order.
class Numbers {
 public:
  explicit Numbers(const std::shared_ptr<CudaAllocator>& allocator)
      : allocator_(allocator), data_(static_cast<double*>(allocator->Allocate(kBytes))) {}
  ~Numbers() { allocator_->Deallocate(data_, kBytes); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  // All three in the stream in which work goes now.
  void Fill(double value) const { Launch(FillWith, data_, value); }
  void Add(const Numbers& other) const { Launch(AddTo, static_cast<const double*>(other.data_), data_); }
  std::vector<double> Read() const {
    std::vector<double> values(kCount);
    CheckCuda(cudaMemcpyAsync(values.data(), data_, kBytes, cudaMemcpyDeviceToHost, stream().handle()),
              "cudaMemcpyAsync");
    stream().Synchronize();
    return values;
  }

 private:
  CudaStreamRef stream() const { return allocator_->stream(); }
  template <class Kernel, class... Arguments>
  void Launch(Kernel kernel, Arguments... arguments) const {
    LaunchCuda(stream(), {.blocks = 4, .threads = 256}, kernel, arguments..., kCount);
  }

  const std::shared_ptr<CudaAllocator> allocator_;
  double* const data_;
};

std::vector<double> All(double value) { return std::vector<double>(kCount, value); }

std::shared_ptr<CudaAllocator> MakeFilling() {
  return std::make_shared<CudaAllocator>(0, /*cap_bytes=*/0, /*fill_freed=*/true);
}

// The rank computes 1, one lane adds it to 10 in new memory, another adds that to 100, and the rank adds that to 1000,
// all in memory that the rank has just given back.
std::vector<double> Relay() {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  std::vector<double> values;
  {
    DeviceQueue& first = DeviceQueueOf(*allocator, kLaneQueue + 1);
    DeviceQueue& second = DeviceQueueOf(*allocator, kLaneQueue + 2);
    const auto give_back = [&] {
      const Numbers used(allocator);
      used.Fill(-1);
    };
    const Numbers one(allocator);
    one.Fill(1);
    give_back();
    auto ten = std::make_shared<const Numbers>(allocator);
    std::shared_ptr<QueuedBatch> first_batch;
    {
      QueueScope scope(first, /*follows_rank=*/true);
      ten->Fill(10);
      ten->Add(one);
      first_batch = scope.End({.on_device = ten});
    }
    give_back();
    const Numbers hundred(allocator);
    std::shared_ptr<QueuedBatch> second_batch;
    {
      QueueScope scope(second, /*follows_rank=*/true);
      hundred.Fill(100);
      first_batch->Join();
      hundred.Add(*ten);
      second_batch = scope.End({.on_device = ten});
    }
    ten = nullptr;
    first_batch = nullptr;
    const Numbers thousand(allocator);
    thousand.Fill(1000);
    second_batch->Join();
    // What `ten` had is used again: the lanes are done with it where the rank's stream comes to this.
    give_back();
    thousand.Add(hundred);
    values = thousand.Read();
    second_batch = nullptr;
  }
  FinishDeviceQueues(*allocator);
  return values;
}

class CudaDeviceLaneTest : public testing::Test {
 protected:
  ~CudaDeviceLaneTest() override {
    cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
    cuda_emulator::SetMachine({});
  }
};

TEST_F(CudaDeviceLaneTest, LanesHandOver) { EXPECT_EQ(Relay(), All(1111)); }

TEST_F(CudaDeviceLaneTest, EachWaitLeftOutIsSeen) {
  for (const LeftOut waits : {LeftOut::kWaitsOfFirst, LeftOut::kWaitsOfOthers}) {
    cuda_emulator::LeaveOutWaits(waits, /*only=*/1000);
    EXPECT_EQ(Relay(), All(1111));
    const int64_t num_pairs = cuda_emulator::NumWaitingPairs();
    // The rank for the second lane; either lane for the rank, and the second for the first.
    ASSERT_EQ(num_pairs, waits == LeftOut::kWaitsOfFirst ? 1 : 3);
    for (int64_t only = 0; only < num_pairs; ++only) {
      cuda_emulator::LeaveOutWaits(waits, only);
      EXPECT_NE(Relay(), All(1111)) << static_cast<int>(waits) << ", " << only;
      EXPECT_EQ(cuda_emulator::NumLeftOut(), 1);
    }
  }
}

TEST_F(CudaDeviceLaneTest, NobodyWaitsBeforeTheResultIsRead) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  const Numbers moved(allocator), computed(allocator);
  std::atomic<bool> has_arrived = false;
  std::shared_ptr<QueuedBatch> batch;
  {
    QueueScope scope(DeviceQueueOf(*allocator, kLaneQueue), /*follows_rank=*/true);
    CheckCuda(cuda_emulator::IssueWhenReady(allocator->stream().handle(), [&] { return has_arrived.load(); }),
              "IssueWhenReady");
    moved.Fill(3);
    batch = scope.End({});
  }
  computed.Fill(5);
  EXPECT_EQ(computed.Read(), All(5));  // would wait for ever behind the lane
  EXPECT_FALSE(batch->Test());
  // A second lane goes on, too.
  {
    QueueScope scope(DeviceQueueOf(*allocator, kLaneQueue + 1), /*follows_rank=*/false);
    computed.Fill(6);
    scope.End({})->Synchronize();
  }
  EXPECT_EQ(computed.Read(), All(6));
  has_arrived = true;
  batch->Join();
  EXPECT_EQ(moved.Read(), All(3));
  EXPECT_TRUE(batch->Test());
  FinishDeviceQueues(*allocator);
}

// An event is let go of once, when all that holds it goes.
struct Held {
  explicit Held(bool* gone) : gone(gone) {}
  ~Held() { *gone = true; }
  bool* const gone;
};

TEST_F(CudaDeviceLaneTest, DeviceMemoryStaysUntilTheRankWaitsAndHostMemoryUntilItHasRun) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  const Numbers numbers(allocator);
  DeviceQueue& queue = DeviceQueueOf(*allocator, kFromHostQueue);
  std::atomic<bool> may_run = false;
  const auto issue = [&](QueueKept kept) {
    QueueScope scope(queue, /*follows_rank=*/true);
    CheckCuda(cuda_emulator::IssueWhenReady(allocator->stream().handle(), [&] { return may_run.load(); }),
              "IssueWhenReady");
    return scope.End(std::move(kept));
  };
  bool earlier_gone = false, device_gone = false, host_gone = false;
  issue({.on_device = std::make_shared<const Held>(&earlier_gone)});  // whose batch nobody keeps
  const std::shared_ptr<QueuedBatch> batch = issue({.on_device = std::make_shared<const Held>(&device_gone),
                                                    .on_host = std::make_shared<const Held>(&host_gone)});
  EXPECT_FALSE(earlier_gone || device_gone || host_gone);
  batch->Join();
  EXPECT_TRUE(earlier_gone && device_gone);
  EXPECT_FALSE(host_gone);
  may_run = true;
  batch->Synchronize();
  EXPECT_TRUE(host_gone);
  bool looked_after = false;
  const std::shared_ptr<QueuedBatch> next = issue({.on_host = std::make_shared<const Held>(&looked_after)});
  while (!next->Test()) continue;
  EXPECT_FALSE(looked_after);
  issue({});
  EXPECT_TRUE(looked_after);

  bool unread_gone = false;
  issue({.on_device = std::make_shared<const Held>(&unread_gone)});
  EXPECT_FALSE(unread_gone);
  FinishDeviceQueues(*allocator);
  EXPECT_TRUE(unread_gone);
}

// The host may be far ahead: then the rank's stream waits for the oldest copies, and their memory may be used behind that.
TEST_F(CudaDeviceLaneTest, AQueueKeepsSoMuchMemory) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  DeviceQueue& queue = DeviceQueueOf(*allocator, kToHostQueue);
  std::atomic<bool> may_run = false;
  std::array<bool, 4> gone = {};
  for (size_t i = 0; i < gone.size(); ++i) {
    QueueScope scope(queue, /*follows_rank=*/true);
    CheckCuda(cuda_emulator::IssueWhenReady(allocator->stream().handle(), [&] { return may_run.load(); }),
              "IssueWhenReady");
    scope.End({.on_device = std::make_shared<const Held>(&gone[i]), .device_bytes = kMostKeptBytes / 2});
    EXPECT_EQ(gone, (std::array<bool, 4>{i >= 2, i >= 3, false, false})) << i;
  }
  CudaEvent behind;
  behind.Record(allocator->rank_stream());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(behind.Test());
  may_run = true;
  behind.Synchronize();
  FinishDeviceQueues(*allocator);
  EXPECT_TRUE(gone[2] && gone[3]);
}

// One that is larger than that alone stays, since it has just begun, but none before it.
TEST_F(CudaDeviceLaneTest, ALargeCopyIsKeptAlone) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  std::atomic<bool> may_run = false;
  std::array<bool, 3> gone = {};
  for (size_t i = 0; i < gone.size(); ++i) {
    QueueScope scope(DeviceQueueOf(*allocator, kToHostQueue), /*follows_rank=*/true);
    CheckCuda(cuda_emulator::IssueWhenReady(allocator->stream().handle(), [&] { return may_run.load(); }),
              "IssueWhenReady");
    scope.End({.on_device = std::make_shared<const Held>(&gone[i]), .device_bytes = 2 * kMostKeptBytes});
    EXPECT_EQ(gone, (std::array<bool, 3>{i >= 1, i >= 2, false})) << i;
  }
  may_run = true;
  FinishDeviceQueues(*allocator);
}

TEST_F(CudaDeviceLaneTest, AQueueThatCannotBeMadeIsNone) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  for (const char* call : {"cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority"}) {
    cuda_emulator::FailNext(call, cudaErrorIllegalAddress);
  }
  for (const int number : {kToHostQueue, kLaneQueue}) {
    EXPECT_THAT(MessageOf([&] { DeviceQueueOf(*allocator, number); }),
                testing::HasSubstr("a kernel that ran before"));
  }
  FinishDeviceQueues(*allocator);
}

TEST_F(CudaDeviceLaneTest, AScopeIsItsThreadsAlone) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  const QueueScope scope(DeviceQueueOf(*allocator, kLaneQueue), /*follows_rank=*/false);
  EXPECT_NE(allocator->stream().handle(), allocator->rank_stream().handle());
  std::thread worker([&] {
    EXPECT_EQ(allocator->stream().handle(), allocator->rank_stream().handle());
    EXPECT_EQ(allocator->open_queue(), nullptr);
  });
  worker.join();
}

// So that a collective goes on beside a large product.
TEST_F(CudaDeviceLaneTest, LanesGoBeforeTheRanksKernels) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  const auto priority_of = [&](CudaStreamRef stream) {
    int priority = 0;
    CheckCuda(cudaStreamGetPriority(stream.handle(), &priority), "cudaStreamGetPriority");
    return priority;
  };
  for (const int number : {kToHostQueue, kFromHostQueue, kLaneQueue, kLaneQueue + 1}) {
    const QueueScope scope(DeviceQueueOf(*allocator, number), /*follows_rank=*/false);
    EXPECT_EQ(priority_of(allocator->stream()) < priority_of(allocator->rank_stream()), number >= kLaneQueue);
  }
}

TEST_F(CudaDeviceLaneTest, WhatAScopeLeavesBehindIsWaitedFor) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  const auto fail = [&] {
    const Numbers numbers(allocator);  // goes when the error does
    QueueScope scope(DeviceQueueOf(*allocator, kLaneQueue), /*follows_rank=*/true);
    numbers.Fill(-1);
    throw std::runtime_error("no");
  };
  EXPECT_THROW(fail(), std::runtime_error);
  EXPECT_EQ(allocator->open_queue(), nullptr);
  const Numbers next(allocator);
  next.Fill(2);
  EXPECT_EQ(next.Read(), All(2));
  cudaDeviceSynchronize();
  EXPECT_EQ(next.Read(), All(2));
}

TEST_F(CudaDeviceLaneTest, OneScopeAtATime) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  const QueueScope scope(DeviceQueueOf(*allocator, kLaneQueue), /*follows_rank=*/false);
  EXPECT_THAT(
      MessageOf([&] { QueueScope(DeviceQueueOf(*allocator, kLaneQueue + 1), /*follows_rank=*/false); }),
      testing::HasSubstr("two scopes of queues are open"));
}

TEST(DeviceQueueTest, ACpuHasNone) {
  const std::shared_ptr<Allocator> cpu = MakeCpuAllocator();
  EXPECT_FALSE(HasDeviceQueues(*cpu));
  EXPECT_EQ(MessageOf([&] { DeviceQueueOf(*cpu, kLaneQueue); }), "device cpu has no queues");
  FinishDeviceQueues(*cpu);
}

// What the rank's stream waits for lanes is told; what it waits for copies is not.
TEST_F(CudaDeviceLaneTest, WaitsForLanesAreMeasured) {
  for (const int number : {kLaneQueue, kToHostQueue}) {
    const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
    const Numbers numbers(allocator);
    std::shared_ptr<QueuedBatch> batch;
    int num_asked = 0;
    {
      QueueScope scope(DeviceQueueOf(*allocator, number), /*follows_rank=*/true);
      CheckCuda(cuda_emulator::IssueWhenReady(allocator->stream().handle(), [&] { return ++num_asked > 3; }),
                "IssueWhenReady");
      batch = scope.End({});
    }
    batch->Join();
    allocator->rank_stream().Synchronize();
    std::vector<std::shared_ptr<CudaEvent>> events;
    const int64_t stalled_ns = allocator->queue_stalls().TakeEnded(&events);
    EXPECT_EQ(stalled_ns > 0, number == kLaneQueue) << stalled_ns;
    EXPECT_EQ(allocator->queue_stalls().TakeEnded(&events), 0);
    FinishDeviceQueues(*allocator);
  }
}

// A batch of `queue` that stands still for a while, behind `before`.
std::shared_ptr<QueuedBatch> SlowBatch(CudaAllocator& allocator, int queue,
                                       const std::shared_ptr<QueuedBatch>& before = nullptr) {
  QueueScope scope(DeviceQueueOf(allocator, queue), /*follows_rank=*/true);
  if (before != nullptr) before->Join();
  const auto num_asked = std::make_shared<int>(0);
  CheckCuda(
      cuda_emulator::IssueWhenReady(allocator.stream().handle(), [num_asked] { return ++*num_asked > 3; }),
      "IssueWhenReady");
  return scope.End({});
}

// Whoever waits for a copy of what a lane brings waits for the lane: on the host, or in the rank's stream.
TEST_F(CudaDeviceLaneTest, WaitsForLanesBehindCopiesAreMeasured) {
  for (const bool on_host : {false, true}) {
    const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
    const std::shared_ptr<QueuedBatch> lane = SlowBatch(*allocator, kLaneQueue);
    const std::shared_ptr<QueuedBatch> copy = SlowBatch(*allocator, kToHostQueue, lane);
    on_host ? MakeArrivalWork(copy, {MakeQueuedWork(lane)}).Wait() : copy->Join();
    if (!on_host) allocator->rank_stream().Synchronize();
    std::vector<std::shared_ptr<CudaEvent>> events;
    EXPECT_GT(allocator->queue_stalls().TakeEnded(&events), 0) << on_host;
    FinishDeviceQueues(*allocator);
  }
}

// Where nobody takes what was measured, as without NCCL, it is a number.
TEST_F(CudaDeviceLaneTest, MeasurementsDoNotPileUp) {
  const std::shared_ptr<CudaAllocator> allocator = MakeFilling();
  int64_t num_events = 0;
  for (int i = 0; i < 30; ++i) {
    SlowBatch(*allocator, kLaneQueue)->Join();
    allocator->rank_stream().Synchronize();
    if (i == 10) num_events = cuda_emulator::NumEvents();
  }
  EXPECT_LE(cuda_emulator::NumEvents(), num_events);
  std::vector<std::shared_ptr<CudaEvent>> events;
  EXPECT_GT(allocator->queue_stalls().TakeEnded(&events), 0);
  EXPECT_EQ(allocator->queue_stalls().TakeEnded(&events), 0);
  FinishDeviceQueues(*allocator);
}

}  // namespace
}  // namespace weft
