#include "runtime/launch/clock_offset.h"

#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/device/allocator.h"
#include "runtime/tensor/tensor.h"

namespace weft {
namespace {

constexpr int kRoundTrips = 8;

}  // namespace

ClockOffset MeasureClockOffset(Communicator& group, const Tracer& tracer) {
  const std::shared_ptr<Allocator> host = MakeCpuAllocator();
  const Tensor time = Tensor::Empty(host, DType::kI64, {1});
  if (group.rank() == 0) {
    for (int peer = 1; peer < group.size(); ++peer) {
      for (int i = 0; i < kRoundTrips; ++i) {
        group.Recv(time, peer).Wait();
        time.data<int64_t>()[0] = tracer.Now();
        group.Send(time, peer).Wait();
      }
    }
    return {};
  }
  ClockOffset offset = {.ns = 0, .error_ns = std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const int64_t begun = tracer.Now();
    time.data<int64_t>()[0] = begun;
    group.Send(time, 0).Wait();
    group.Recv(time, 0).Wait();
    const int64_t ended = tracer.Now();
    const int64_t half = (ended - begun + 1) / 2;
    if (half < offset.error_ns) offset = {.ns = time.data<int64_t>()[0] - begun - half, .error_ns = half};
  }
  return offset;
}

void NoteClockOffset(World& world, int num_ranks, Tracer& tracer) {
  std::vector<int> all(static_cast<size_t>(num_ranks));
  std::iota(all.begin(), all.end(), 0);
  tracer.SetClockOffset(MeasureClockOffset(*world.NewGroup("clock", all), tracer).ns);
  world.ledger().Clear();
}

}  // namespace weft
