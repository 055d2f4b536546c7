#include "runtime/tensor/buffer.h"

#include <gtest/gtest.h>

#include <thread>

namespace weft {
namespace {

TEST(Buffer, ReturnsItsMemoryWithTheLastOwner) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  IntrusivePtr<Buffer> a = MakeIntrusive<Buffer>(allocator, 100);
  IntrusivePtr<Buffer> b = a;
  EXPECT_EQ(a->num_bytes(), 100);
  EXPECT_EQ(a->device(), Device{DeviceType::kCpu});
  EXPECT_EQ(allocator->stats().live_bytes, 128);
  a = nullptr;
  EXPECT_EQ(allocator->stats().live_bytes, 128);
  std::thread([moved = std::move(b)]() mutable { moved = nullptr; }).join();
  EXPECT_EQ(allocator->stats().live_bytes, 0);
}

TEST(Buffer, KeepsItsAllocatorAlive) {
  std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  const std::weak_ptr<Allocator> watch = allocator;
  IntrusivePtr<Buffer> buffer = MakeIntrusive<Buffer>(std::move(allocator), 8);
  EXPECT_FALSE(watch.expired());
  buffer = nullptr;
  EXPECT_TRUE(watch.expired());
}

TEST(Buffer, OfMetaHasNoData) {
  const Buffer buffer(MakeMetaAllocator(), 100);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.num_bytes(), 100);
}

}  // namespace
}  // namespace weft
