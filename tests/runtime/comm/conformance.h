#ifndef WEFT_TESTS_RUNTIME_COMM_CONFORMANCE_H_
#define WEFT_TESTS_RUNTIME_COMM_CONFORMANCE_H_

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/comm/communicator.h"
#include "runtime/launch/world.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// A backend under test. A backend's own test program instantiates CommConformance with it:
//   INSTANTIATE_TEST_SUITE_P(Local, CommConformance, testing::Values(CommBackend{"local", run}));
struct CommBackend {
  std::string name;
  // Runs the body on that many ranks and rethrows the first error.
  std::function<void(int num_ranks, const std::function<void(World&)>& body)> run;
  // With how many ranks the cases run that try every dtype and size: fewer for a backend that is slow.
  std::vector<int> sweep_ranks = {1, 2, 3, 4, 5, 6, 7, 8};
  // How often the cases run that repeat themselves, of 1.
  double repeats = 1;
  // Reductions go in the order of ranks, are rounded once, and nan wins. Else floating-point results are
  // within the bound of any order with a rounding at every step.
  bool exact_reductions = true;
  // Counts that differ by so many elements are told to disagree. A backend that compares calls only where they do not end
  // may end two that differ by less. Where it is more than 1, a message of fewer elements may be over before its receiver
  // takes it.
  int64_t told_difference = 1;

  // Calls are compared once one is late: what has ended in spite of a difference is told by the next call that waits.
  bool compares_late_calls_alone() const { return told_difference > 1; }
};
inline void PrintTo(const CommBackend& backend, std::ostream* out) { *out << backend.name; }

// The cases that every backend passes. Ranks may be processes: bodies share no memory, and fail by throwing.
class CommConformance : public testing::TestWithParam<CommBackend> {
 protected:
  void Run(int num_ranks, const std::function<void(World&)>& body) { GetParam().run(num_ranks, body); }
  int Repeats(int count) const { return static_cast<int>(count * GetParam().repeats); }

  // As AwaitError, of calls that may have ended although they differ: rank 0 lets the others wait until they compare.
  static void AwaitDifference(World& world, Communicator& group);
};

// Fails the test from any rank.
template <class... Parts>
void Expect(bool condition, const Parts&... parts) {
  if (!condition) Throw(absl::StatusCode::kInternal, "test: ", parts...);
}

inline std::vector<int> AllRanks(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Calls `function`, which must throw an Error of `code`, and returns its message.
inline std::string ErrorOf(absl::StatusCode code, const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    Expect(error.code() == code, "expected ", absl::StatusCodeToString(code), ", got ",
           absl::StatusCodeToString(error.code()), ": ", error.message());
    return error.message();
  }
  Expect(false, "expected ", absl::StatusCodeToString(code), ", nothing was thrown");
  return "";
}

inline void ExpectContains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    Expect(text.find(part) != std::string::npos, "'", part, "' is not in '", text, "'");
  }
}

inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Element `i` of `rank`'s input: any bits for integers (so that sums wrap), values of both signs and many
// magnitudes for floats (so that the order of a sum shows).
template <class T>
T InputValue(int rank, int64_t i) {
  const uint64_t bits = Mix(static_cast<uint64_t>(rank + 1) * 1000003u + static_cast<uint64_t>(i));
  if constexpr (std::is_same_v<T, bool>) {
    return bits % 8 != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<int64_t>(bits) >> 4);
  } else {
    const float magnitude = static_cast<float>(1 << (bits % 7)) * 0.25f;
    return static_cast<T>((static_cast<float>((bits >> 8) & 0xffffff) * 0x1p-23f - 1.0f) * magnitude);
  }
}

inline bool OnCpu(World& world) { return world.allocator()->device().type == DeviceType::kCpu; }

// A tensor of the rank's device whose elements `fill` writes, on the CPU.
template <class T, class Fill>
Tensor MakeTensor(World& world, int64_t count, const Fill& fill) {
  const Tensor tensor =
      Tensor::Empty(OnCpu(world) ? world.allocator() : MakeCpuAllocator(), kDTypeOf<T>, {count});
  fill(tensor.data<T>());
  return OnCpu(world) ? tensor : CloneTensor(tensor, world.allocator());
}

// Where a device runs what a call has issued, the call may be back before its error: throws that.
inline void AwaitError(World& world, Communicator& group) {
  if (!OnCpu(world)) group.Barrier();
}

inline void CommConformance::AwaitDifference(World& world, Communicator& group) {
  const bool waits = GetParam().compares_late_calls_alone() && world.rank() == 0;
  if (waits) std::this_thread::sleep_for(std::chrono::seconds(4));
  AwaitError(world, group);
}

// Blocks the host until the work has finished, and throws its error.
inline void AwaitOnHost(World& world, const Work& work) {
  if (OnCpu(world)) return work.Wait();
  while (!work.WaitFor(std::chrono::seconds(1))) continue;
}

// Elements [begin, begin + count) of `rank`'s input.
template <class T>
Tensor InputTensor(World& world, int rank, int64_t count, int64_t begin = 0) {
  return MakeTensor<T>(world, count, [&](T* values) {
    for (int64_t i = 0; i < count; ++i) values[i] = InputValue<T>(rank, begin + i);
  });
}

// A tensor whose bytes are neither inputs nor results.
template <class T>
Tensor OutputTensor(World& world, int64_t count) {
  return MakeTensor<T>(world, count, [&](T* values) {
    if (count > 0)
      std::memset(static_cast<void*>(values), std::is_same_v<T, bool> ? 1 : 0x5a, count * sizeof(T));
  });
}

template <class T>
bool SameBits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_CONFORMANCE_H_
