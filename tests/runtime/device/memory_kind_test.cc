// Bytes by what they are for, of allocators and of the buffers that they make.

#include "runtime/device/memory_kind.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/buffer.h"

namespace weft {
namespace {

using testing::HasSubstr;

TEST(MemoryKindTest, Names) {
  std::string names;
  for (const MemoryKind kind : kMemoryKinds) {
    names.append(names.empty() ? "" : " ").append(std::string(MemoryKindName(kind)));
  }
  EXPECT_EQ(names, "other param whole_param grad bucket state saved");
}

class MemoryOfAllocators : public testing::TestWithParam<std::shared_ptr<Allocator> (*)()> {};

TEST_P(MemoryOfAllocators, AKindIsFixedWhenMemoryIsAllocated) {
  const std::shared_ptr<Allocator> allocator = GetParam()();
  const auto live = [&](MemoryKind kind) { return allocator->by_kind()[kind].live; };
  const auto peak = [&](MemoryKind kind) { return allocator->by_kind()[kind].peak; };
  EXPECT_EQ(allocator->kind(), MemoryKind::kOther);
  auto param = std::make_unique<Buffer>(allocator, 1);
  {
    const MemoryKindGuard outer(*allocator, MemoryKind::kParam);
    param = std::make_unique<Buffer>(allocator, 100);  // 128 by the granule
    {
      const MemoryKindGuard inner(*allocator, MemoryKind::kGrad);
      const Buffer grad(allocator, 1000);
      EXPECT_EQ(grad.kind(), MemoryKind::kGrad);
      EXPECT_EQ(live(MemoryKind::kGrad), 1024);
      EXPECT_EQ(allocator->stats().live_bytes, 1024 + 128);
    }
    EXPECT_EQ(allocator->kind(), MemoryKind::kParam);
  }
  EXPECT_EQ(allocator->kind(), MemoryKind::kOther);
  EXPECT_EQ(live(MemoryKind::kGrad), 0);
  EXPECT_EQ(peak(MemoryKind::kGrad), 1024);
  EXPECT_EQ(live(MemoryKind::kOther), 0);
  EXPECT_EQ(peak(MemoryKind::kOther), 64);
  EXPECT_EQ(live(MemoryKind::kParam), 128);
  allocator->ResetPeak();
  EXPECT_EQ(peak(MemoryKind::kGrad), 0);
  EXPECT_EQ(peak(MemoryKind::kParam), 128);
  // The guard that stands when it is freed is not asked.
  const MemoryKindGuard guard(*allocator, MemoryKind::kState);
  param = nullptr;
  EXPECT_EQ(allocator->by_kind()[MemoryKind::kParam], (KindBytes{.live = 0, .peak = 128}));
  EXPECT_EQ(live(MemoryKind::kState), 0);
}

INSTANTIATE_TEST_SUITE_P(All, MemoryOfAllocators,
                         testing::Values([] { return MakeCpuAllocator(); },
                                         [] { return MakeMetaAllocator(); }));

TEST(MemoryKindTest, TheErrorForLackOfMemorySaysWhatIsInUse) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator(/*cap_bytes=*/4096);
  const auto buffer_of = [&](MemoryKind kind, int64_t num_bytes) {
    const MemoryKindGuard guard(*allocator, kind);
    return std::make_unique<Buffer>(allocator, num_bytes);
  };
  const auto param = buffer_of(MemoryKind::kParam, 512);
  const auto saved = buffer_of(MemoryKind::kSaved, 2048);
  try {
    buffer_of(MemoryKind::kGrad, 2048);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("; in use: saved 2 KiB, param 512 bytes"));
  }
}

}  // namespace
}  // namespace weft
