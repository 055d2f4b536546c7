// Gloo's times for the collectives that //benchmarks:collectives measures: forks as many processes as its
// argument says, which talk over TCP on the loopback device; see gloo_collectives.sh.

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peer_times.h"

namespace {

void Sum(void* sum, const void* a, const void* b, size_t count) {
  float* const to = static_cast<float*>(sum);
  const float* const x = static_cast<const float*>(a);
  const float* const y = static_cast<const float*>(b);
  for (size_t i = 0; i < count; ++i) to[i] = x[i] + y[i];
}

void Measure(const std::shared_ptr<gloo::rendezvous::Context>& context) {
  const int me = context->rank;
  const int n = context->size;
  uint32_t tag = 0;
  const auto barrier = [&] {
    gloo::BarrierOptions options(context);
    options.setTag(++tag);
    gloo::barrier(options);
  };
  const auto agree = [&](int64_t number) {
    gloo::BroadcastOptions options(context);
    options.setRoot(0);
    options.setTag(++tag);
    options.setOutput(&number, 1);
    gloo::broadcast(options);
    return number;
  };
  for (const int64_t size : peers::kSizes) {
    const size_t count = size / 4;
    std::vector<float> a(count), b(count);
    std::vector<size_t> counts(n);
    for (int rank = 0; rank < n; ++rank) counts[rank] = count * (rank + 1) / n - count * rank / n;
    const auto time = [&](const char* name, const std::function<void()>& call) {
      const double ns = peers::CallNanoseconds(call, barrier, agree);
      if (me == 0) peers::PrintTime("Gloo", name, n, size, ns);
    };
    time("all_reduce", [&] {
      gloo::AllreduceOptions options(context);
      options.setTag(++tag);
      options.setOutput(a.data(), count);
      options.setReduceFunction(Sum);
      gloo::allreduce(options);
    });
    time("all_gather", [&] {
      gloo::AllgathervOptions options(context);
      options.setTag(++tag);
      options.setInput(a.data(), counts[me]);
      options.setOutput(b.data(), counts);
      gloo::allgatherv(options);
    });
    time("broadcast", [&] {
      gloo::BroadcastOptions options(context);
      options.setTag(++tag);
      options.setRoot(0);
      options.setOutput(a.data(), count);
      gloo::broadcast(options);
    });
    if (count % n == 0) {
      time("all_to_all", [&] {
        gloo::AlltoallOptions options(context);
        options.setTag(++tag);
        options.setInput(a.data(), count);
        options.setOutput(b.data(), count);
        gloo::alltoall(options);
      });
    }
  }
  barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s RANKS DIR, a folder to meet in\n", argv[0]);
    return 1;
  }
  const int num_ranks = std::atoi(argv[1]);
  int me = 0;
  for (int rank = 1; rank < num_ranks && me == 0; ++rank) {
    if (fork() == 0) me = rank;
  }
  gloo::transport::tcp::attr address;
  address.hostname = "127.0.0.1";
  gloo::rendezvous::FileStore store(argv[2]);
  const auto context = std::make_shared<gloo::rendezvous::Context>(me, num_ranks);
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(address);
  context->connectFullMesh(store, device);
  Measure(context);
  if (me != 0) _exit(0);
  while (wait(nullptr) > 0) {
  }
}
