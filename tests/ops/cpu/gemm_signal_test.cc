// Handlers of signals find a stack below them, whatever product they interrupt.

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "ops/cpu/product/gemm.h"

namespace weft {
namespace {

// Of the thread that is interrupted.
uintptr_t stack_begin = 0;
uintptr_t stack_end = 0;
std::atomic<int> num_outside = 0;
std::atomic<int> num_calls = 0;

// Runs on a stack of its own, so that a wrong one below does no harm here.
void Look(int, siginfo_t*, void* context) {
  const auto pointer = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
  if (pointer < stack_begin || pointer > stack_end) ++num_outside;
  ++num_calls;
}

// SIGUSR2 to this thread, every 50 us of real time.
class Interruptions {
 public:
  Interruptions() {
    pthread_attr_t attributes;
    void* begin = nullptr;
    size_t bytes = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &begin, &bytes);
    pthread_attr_destroy(&attributes);
    stack_end = reinterpret_cast<uintptr_t>(begin) + bytes;
    stack_begin = stack_end - (uintptr_t{64} << 20);  // a main thread's stack grows
    const stack_t alternate = {.ss_sp = alternate_.data(), .ss_flags = 0, .ss_size = alternate_.size()};
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = Look;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigaction(SIGUSR2, &action, nullptr);
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR2;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    timer_create(CLOCK_MONOTONIC, &event, &timer_);
    const itimerspec period = {.it_interval = {0, 50'000}, .it_value = {0, 50'000}};
    timer_settime(timer_, 0, &period, nullptr);
  }
  ~Interruptions() {
    timer_delete(timer_);
    signal(SIGUSR2, SIG_IGN);
    const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigaltstack(&none, nullptr);
  }

 private:
  timer_t timer_ = {};
  std::vector<char> alternate_ = std::vector<char>(1 << 16);
};

// The same product until it has been interrupted a few times.
void Multiply(const GemmSize& size, bool a_transposed, bool b_transposed) {
  const std::vector<float> a(size.m * size.k, 1), b(size.k * size.n, 1);
  std::vector<float> c(size.m * size.n);
  const GemmMatrix<float> left = {
      .data = a.data(), .ld = a_transposed ? size.m : size.k, .transposed = a_transposed};
  const GemmMatrix<float> right = {
      .data = b.data(), .ld = b_transposed ? size.k : size.n, .transposed = b_transposed};
  const int enough = num_calls + 20;
  while (num_calls < enough) {
    Gemm<float>(size, 1.0f, left, right, /*accumulate=*/false, c.data(), size.n);
    ASSERT_EQ(c.back(), static_cast<float>(size.k));
  }
}

TEST(GemmSignalTest, HandlersAreCalledOnTheThreadsOwnStack) {
  const Interruptions interruptions;
  for (const int64_t k : {4, 32, 48, 60, 64, 65, 80, 95, 96, 100, 128, 200, 256, 1000, 4096}) {
    for (const int64_t m : {1, 8, 33, 128}) {
      for (const int64_t n : {1, 8, 64, 300}) {
        for (const bool a_transposed : {false, true}) {
          for (const bool b_transposed : {false, true}) Multiply({m, n, k}, a_transposed, b_transposed);
        }
        EXPECT_EQ(num_outside.exchange(0), 0) << "m " << m << ", n " << n << ", k " << k;
      }
    }
  }
}

TEST(GemmSignalTest, AlsoOfProductsInBF16) {
  if (!HasFastBF16()) GTEST_SKIP() << "oneDNN has no products in bf16 on this machine";
  const Interruptions interruptions;
  for (const int64_t k : {32, 100, 1000}) {
    for (const int64_t m : {8, 128}) {
      const std::vector<BFloat16> a(m * k, BFloat16(1.0f)), b(k * 64, BFloat16(1.0f));
      std::vector<BFloat16> c(m * 64);
      const int enough = num_calls + 20;
      while (num_calls < enough) {
        GemmBF16({m, 64, k}, {.data = a.data(), .ld = k}, {.data = b.data(), .ld = 64}, c.data(), 64);
      }
      EXPECT_EQ(num_outside.exchange(0), 0) << "m " << m << ", k " << k;
    }
  }
}

}  // namespace
}  // namespace weft
