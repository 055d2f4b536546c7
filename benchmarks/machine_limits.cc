#include "benchmarks/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "benchmarks/machine_limits.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Enough independent sums that latency (4 or 5 cycles, two a cycle) is hidden.
constexpr int kNumSums = 12;

// `rounds` multiply-adds to each of twelve sums; returns the flops done.
double MultiplyAdds(int64_t rounds, float* sink) {
  const HWY_FULL(float) d;
  auto a = hn::Set(d, 0.999f), b = hn::Set(d, 1e-3f);
  // Each starts elsewhere: equal sums would be one to the compiler.
  const auto start = [&](int k) { return hn::Set(d, static_cast<float>(k)); };
  auto s0 = start(0), s1 = start(1), s2 = start(2), s3 = start(3), s4 = start(4), s5 = start(5);
  auto s6 = start(6), s7 = start(7), s8 = start(8), s9 = start(9), s10 = start(10), s11 = start(11);
  for (int64_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(s0, a, b), s1 = hn::MulAdd(s1, a, b), s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b), s4 = hn::MulAdd(s4, a, b), s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b), s7 = hn::MulAdd(s7, a, b), s8 = hn::MulAdd(s8, a, b);
    s9 = hn::MulAdd(s9, a, b), s10 = hn::MulAdd(s10, a, b), s11 = hn::MulAdd(s11, a, b);
  }
  const auto left = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(s4, s5));
  const auto right = hn::Add(hn::Add(s6, s7), s8);
  const auto rest = hn::Add(hn::Add(s9, s10), s11);
  *sink = hn::GetLane(hn::Add(hn::Add(left, right), rest));
  return 2.0 * kNumSums * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

// a = b + s * c over n elements.
void Triad(const float* b, const float* c, float* a, int64_t n) {
  const HWY_FULL(float) d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto s = hn::Set(d, 3.0f);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::MulAdd(s, hn::LoadU(d, c + i), hn::LoadU(d, b + i)), d, a + i);
  }
  for (; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(Triad);

using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.25;

// Runs `round(thread)` on every thread at once, again and again for a quarter of a second, and returns the
// best rate: what all threads' rounds report together, over the time of the slowest. The best and not the
// median: a limit is what the machine can do when it is let.
double BestRate(int threads, absl::FunctionRef<double(int)> round) {
  std::vector<double> work(threads);
  std::barrier<> together(threads);
  double best = 0;
  bool done = false;
  const auto body = [&](int thread) {
    const Clock::time_point begin = Clock::now();
    while (!done) {
      together.arrive_and_wait();
      const Clock::time_point start = Clock::now();
      work[thread] = round(thread);
      together.arrive_and_wait();
      if (thread == 0) {
        const std::chrono::duration<double> took = Clock::now() - start;
        double sum = 0;
        for (double w : work) sum += w;
        best = std::max(best, sum / took.count());
        done = std::chrono::duration<double>(Clock::now() - begin).count() > kSeconds;
      }
      together.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(body, thread);
  body(0);
  for (std::thread& other : others) other.join();
  return best;
}

#if defined(__x86_64__)
// As MultiplyAdds, of pairs of bf16. Highway 1.0 has no name for the instruction.
__attribute__((target("avx512f,avx512bf16"))) double PairDots(int64_t rounds, float* sink) {
  constexpr int kNumSums = 12;
  __m512 sums[kNumSums];
  for (int s = 0; s < kNumSums; ++s) sums[s] = _mm512_set1_ps(static_cast<float>(s));
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-3f), _mm512_set1_ps(1e-3f));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(-1e-3f), _mm512_set1_ps(1e-3f));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int s = 0; s < kNumSums; ++s) sums[s] = _mm512_dpbf16_ps(sums[s], a, b);
  }
  __m512 total = sums[0];
  for (int s = 1; s < kNumSums; ++s) total = _mm512_add_ps(total, sums[s]);
  *sink = _mm512_cvtss_f32(total);
  return 4.0 * 16 * kNumSums * static_cast<double>(rounds);
}

bool HasPairDots() { return __builtin_cpu_supports("avx512bf16"); }

// Whether the processor has tiles and the kernel lets this process use them.
bool HasTileDots() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTileBF16 = 1u << 22, kTiles = 1u << 24;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kTileBF16) == 0 || (edx & kTiles) == 0) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// As PairDots, of tiles of 16 rows of 32 bf16: four sums, of a tile and another.
__attribute__((target("amx-tile,amx-bf16"))) double TileDots(int64_t rounds, float* sink) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  alignas(64) float sums[16 * 16];
  _tile_stored(0, sums, 64);
  _tile_release();
  *sink = sums[0];
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(rounds);
}
#else
double PairDots(int64_t /*rounds*/, float* /*sink*/) { return 0; }
bool HasPairDots() { return false; }
double TileDots(int64_t /*rounds*/, float* /*sink*/) { return 0; }
bool HasTileDots() { return false; }
#endif

// A result that the compiler must believe is read.
struct alignas(64) Sink {
  volatile float value = 0;
};

constexpr int64_t kRounds = 200'000;

double PeakOf(int threads, double (*round)(int64_t, float*)) {
  std::vector<Sink> sinks(threads);
  return BestRate(threads, [&](int thread) {
    float result = 0;
    const double flops = round(kRounds, &result);
    sinks[thread].value = result;
    return flops;
  });
}

}  // namespace

double PeakFlopsF32(int threads) {
  return PeakOf(threads,
                [](int64_t rounds, float* sink) { return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(rounds, sink); });
}

double PeakFlopsBF16(int threads) {
  if (HasTileDots()) return PeakOf(threads, TileDots);
  return HasPairDots() ? PeakOf(threads, PairDots) : 0;
}

double TriadBytesPerSecond(int64_t num_bytes, int threads) {
  const int64_t n = std::max<int64_t>(num_bytes / 12 / threads, 64);
  // Not a whole number of pages from one array to the next: equal offsets into pages stall loads behind
  // stores.
  const int64_t stride = n + 336;
  std::vector<std::vector<float>> arrays(threads);
  for (std::vector<float>& array : arrays) array.assign(3 * stride, 1.0f);
  // Small arrays are gone through several times, so that the barriers do not count.
  const int64_t times = std::max<int64_t>(1, (int64_t{1} << 22) / n);
  return BestRate(threads, [&](int thread) {
    float* a = arrays[thread].data();
    for (int64_t i = 0; i < times; ++i) HWY_DYNAMIC_DISPATCH(Triad)(a + stride, a + 2 * stride, a, n);
    return 12.0 * static_cast<double>(n * times);
  });
}

double CopiedBytesPerSecond(int64_t num_bytes) {
  constexpr int kCopies = 21;
  std::vector<char> from(num_bytes), to(num_bytes);
  std::vector<double> rates;
  Sink sink;
  for (int i = 0; i < kCopies; ++i) {
    // The writer goes on running until the copy is done, or the copying thread might have been moved to its core.
    std::atomic<bool> is_written = false, may_end = false;
    std::thread writer([&] {
      std::memset(from.data(), i, num_bytes);
      is_written = true;
      while (!may_end) {
      }
    });
    while (!is_written) {
    }
    const auto begun = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), num_bytes);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
    sink.value = to[num_bytes / 2];
    rates.push_back(static_cast<double>(num_bytes) / seconds.count());
    may_end = true;
    writer.join();
  }
  std::sort(rates.begin(), rates.end());
  return rates[kCopies / 2];
}

}  // namespace weft
#endif  // HWY_ONCE
