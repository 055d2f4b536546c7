// Saved activations that are fetched ahead of backward, where an emulated GPU has no memory for them: a courtesy, without which
// the value that is wanted comes all the same.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/tape/saved_buffer.h"
#include "runtime/device/cuda/check.h"
#include "runtime/device/device_queue.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/parallel/memory/offload_ranks.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

constexpr int64_t kSide = 256;
constexpr int64_t kPiece = kSide * kSide * static_cast<int64_t>(sizeof(double));

DTensor Numbers(const IntrusivePtr<MeshContext>& context, uint64_t seed) {
  return DTensor::Distribute(context, RandomF64({kSide, kSide}, seed), Layout(2, 1));
}

// Three values that have left the device.
struct Saved {
  explicit Saved(World& world) : context(Bind(world, DeviceMesh::Parse("dp=1"))) {
    for (uint64_t i = 0; i < buffers.size(); ++i)
      values.push_back(SaveOnHost(Numbers(context, i), &buffers[i]));
    CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    QueueScope(DeviceQueueOf(*world.allocator(), kToHostQueue), /*follows_rank=*/false).End({});
    EXPECT_EQ(world.allocator()->stats().live_bytes, 0) << "what was copied has gone";
  }

  void ExpectTheyComeBack() {
    for (size_t i = buffers.size(); i-- > 0;) {
      const Tensor back = CloneTensor(FetchSaved(values[i], *buffers[i]).ToLocal(), MakeCpuAllocator());
      EXPECT_EQ(back.ToVector<double>(), RandomF64({kSide, kSide}, i).ToVector<double>());
      values.pop_back();
      buffers[i] = nullptr;
    }
  }

  IntrusivePtr<MeshContext> context;
  std::vector<DTensor> values;
  std::vector<IntrusivePtr<SavedBuffer>> buffers = std::vector<IntrusivePtr<SavedBuffer>>(3);
};

TEST(CudaFetchAheadTest, NeedsNoMemory) {
  constexpr size_t kPieces = 4;  // that the device can hold
  const auto body = [](World& world) {
    Saved saved(world);
    std::vector<DTensor> held;  // with them there is room for one more
    while (held.size() + 1 < kPieces) held.push_back(Numbers(saved.context, 7));
    saved.ExpectTheyComeBack();
  };
  RunNcclRanks(1, body, std::make_shared<FakeNccl>(), std::chrono::minutes(2),
               {.tell = [](const std::string&) {}}, {.cap_bytes = kPieces * kPiece, .fill_freed = true});
}

// Where the device is full, the pool's blocks of other sizes stay: each that went back would wait for all streams.
TEST(CudaFetchAheadTest, GivesNoBlocksBack) {
  RunFilling(1, [](World& world) {
    Saved saved(world);
    Allocator& memory = *world.allocator();
    // The pool has one block for a piece, and a larger one; the device has no more.
    std::vector<void*> held;
    int64_t num_mallocs = 0;
    do {
      num_mallocs = cuda_emulator::NumMallocs();
      held.push_back(memory.Allocate(kPiece));
    } while (cuda_emulator::NumMallocs() == num_mallocs);
    memory.Deallocate(memory.Allocate(3 * kPiece), 3 * kPiece);
    memory.Deallocate(held.back(), kPiece);
    held.pop_back();
    cuda_emulator::SetMachine({.num_devices = 8, .memory_bytes = cuda_emulator::LiveBytes()});
    num_mallocs = cuda_emulator::NumMallocs();
    const int64_t pooled_bytes = memory.stats().pooled_bytes;
    saved.ExpectTheyComeBack();
    EXPECT_EQ(cuda_emulator::NumMallocs(), num_mallocs);
    EXPECT_EQ(memory.stats().pooled_bytes, pooled_bytes);
    for (void* block : held) memory.Deallocate(block, kPiece);
    cuda_emulator::SetMachine({.num_devices = 8});
  });
}

}  // namespace
}  // namespace weft
