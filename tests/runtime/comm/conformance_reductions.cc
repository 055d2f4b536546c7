// Reductions against a naive loop, bit for bit: ascending rank order is part of the contract.

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"
#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

constexpr int64_t kCounts[] = {0, 1, 5, 4097, 100003};

template <class A>
A Combine(ReduceOp op, A a, A b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      if constexpr (std::is_integral_v<A>)
        return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      return a * b;
    default:
      if constexpr (std::is_integral_v<A>)
        return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      return a + b;
  }
}

// bool as bytes of 0 and 1: vector<bool> has no data().
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

// Every rank's input.
template <class T>
using Inputs = std::vector<std::vector<Stored<T>>>;

template <class T>
Inputs<T> MakeInputs(int num_ranks, int64_t count) {
  Inputs<T> inputs(num_ranks, std::vector<Stored<T>>(count));
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int64_t i = 0; i < count; ++i) inputs[rank][i] = InputValue<T>(rank, i);
  }
  return inputs;
}

template <class T, class A>
std::vector<T> ReducedAs(ReduceOp op, const Inputs<T>& inputs) {
  std::vector<T> result(inputs[0].size());
  for (size_t i = 0; i < result.size(); ++i) {
    A value = static_cast<A>(inputs[0][i]);
    for (size_t rank = 1; rank < inputs.size(); ++rank)
      value = Combine(op, value, static_cast<A>(inputs[rank][i]));
    if (op == ReduceOp::kAvg) value = value / static_cast<A>(inputs.size());
    result[i] = static_cast<T>(value);
  }
  return result;
}

std::vector<uint8_t> ReducedBools(ReduceOp op, const Inputs<bool>& inputs) {
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
  std::vector<uint8_t> result(inputs[0].size());
  for (size_t i = 0; i < result.size(); ++i) {
    size_t num_true = 0;
    for (const std::vector<uint8_t>& input : inputs) num_true += input[i];
    result[i] = any ? num_true > 0 : num_true == inputs.size();
  }
  return result;
}

template <class T>
std::vector<Stored<T>> Reduced(ReduceOp op, const Inputs<T>& inputs) {
  if constexpr (std::is_same_v<T, bool>) {
    return ReducedBools(op, inputs);
  } else if constexpr (std::is_integral_v<T>) {
    return ReducedAs<T, int64_t>(op, inputs);
  } else if constexpr (std::is_same_v<T, double>) {
    return op == ReduceOp::kAvg ? ReducedAs<T, long double>(op, inputs) : ReducedAs<T, double>(op, inputs);
  } else {
    return op == ReduceOp::kAvg ? ReducedAs<T, double>(op, inputs) : ReducedAs<T, float>(op, inputs);
  }
}

// Whether `value` is what some order of combining the inputs gives, rounded to T at every step.
template <class T>
bool IsWithinRounding(ReduceOp op, const Inputs<T>& inputs, size_t i, T expected, T value) {
  if constexpr (std::is_integral_v<T>) {
    return value == expected;
  } else {
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) return SameBits(value, expected);
    const double epsilon = std::is_same_v<T, double>     ? 0x1p-52
                           : std::is_same_v<T, float>    ? 0x1p-23
                           : std::is_same_v<T, BFloat16> ? 0x1p-7
                                                         : 0x1p-10;
    const double smallest = std::is_same_v<T, Float16> ? 0x1p-24 : 0;  // products come near it
    const double n = static_cast<double>(inputs.size());
    double scale = 0;
    for (const auto& input : inputs) scale += std::abs(static_cast<double>(input[i]));
    if (op == ReduceOp::kAvg) scale /= n;
    if (op == ReduceOp::kProduct) scale = std::abs(static_cast<double>(expected));
    return std::abs(static_cast<double>(value) - static_cast<double>(expected)) <=
           (n + 1) * (epsilon * scale + 16 * smallest);
  }
}

// What one rank does in one case: run the collective on `input`, and return the output and where it begins in
// the whole result. An undefined tensor: this rank gets none.
struct Result {
  Tensor output;
  int64_t begin = 0;
};

// Runs `body(world, group, tag, input, op, in_place)` for every dtype, count, reduction and placing of the
// output on the ranks of a sweep, and compares.
template <class Body>
void ForEachCase(const CommBackend& backend, const Body& body) {
  for (int num_ranks : backend.sweep_ranks) {
    backend.run(num_ranks, [&](World& world) {
      const auto group = world.NewGroup("dp", AllRanks(world));
      const auto run_dtype = [&](auto tag, int64_t count) {
        using T = typename decltype(tag)::type;
        const Inputs<T> inputs = MakeInputs<T>(num_ranks, count);
        for (ReduceOp op : kAllReduceOps) {
          const std::vector<Stored<T>> expected = Reduced<T>(op, inputs);
          for (bool in_place : {false, true}) {
            const Tensor input = MakeTensor<T>(world, count, [&](T* values) {
              if (count > 0)
                std::memcpy(static_cast<void*>(values), inputs[world.rank()].data(), count * sizeof(T));
            });
            const Result result = body(world, *group, tag, input, op, in_place);
            if (!result.output.defined() || result.output.num_elements() == 0) continue;
            const Tensor output = OnHost(result.output);
            bool same = std::memcmp(output.data(), &expected[result.begin], output.num_bytes()) == 0;
            if (!same && !backend.exact_reductions) {
              const auto* const values = static_cast<const Stored<T>*>(output.data());
              same = true;
              for (int64_t i = 0; i < output.num_elements(); ++i) {
                const size_t at = static_cast<size_t>(result.begin + i);
                same = same && IsWithinRounding<Stored<T>>(op, inputs, at, expected[at], values[i]);
              }
            }
            Expect(same, input.TypeString(), " ", ReduceOpName(op), in_place ? " in place" : "", " on ",
                   num_ranks, " ranks is not the naive loop");
          }
        }
      };
      for (DType dtype : kAllDTypes) {
        for (int64_t count : kCounts) VisitDType(dtype, [&](auto tag) { run_dtype(tag, count); });
      }
    });
  }
}

TEST_P(CommConformance, AllReduceIsTheNaiveLoop) {
  ForEachCase(GetParam(), [](World& world, Communicator& group, auto tag, const Tensor& input, ReduceOp op,
                             bool in_place) {
    using T = typename decltype(tag)::type;
    const Tensor output = in_place ? input : OutputTensor<T>(world, input.num_elements());
    group.AllReduce(input, output, op);
    return Result{output, 0};
  });
}

// Pieces differ: rank r's has r parts of the whole, rank 0 none.
std::vector<int64_t> UnevenCounts(int64_t count, int num_ranks) {
  const int64_t parts = std::max(1, num_ranks * (num_ranks - 1) / 2);
  std::vector<int64_t> counts(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) counts[rank] = count * rank / parts;
  counts.back() += count - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return counts;
}

TEST_P(CommConformance, ReduceScatterIsTheNaiveLoop) {
  ForEachCase(GetParam(), [](World& world, Communicator& group, auto tag, const Tensor& input, ReduceOp op,
                             bool in_place) {
    using T = typename decltype(tag)::type;
    const std::vector<int64_t> counts = UnevenCounts(input.num_elements(), world.size());
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + world.rank(), int64_t{0});
    const int64_t count = counts[world.rank()];
    const Tensor output = in_place ? input.Slice(0, begin, count) : OutputTensor<T>(world, count);
    group.ReduceScatter(input, output, counts, op);
    return Result{output, begin};
  });
}

TEST_P(CommConformance, ReduceIsTheNaiveLoopAtTheRoot) {
  ForEachCase(GetParam(), [](World& world, Communicator& group, auto tag, const Tensor& input, ReduceOp op,
                             bool in_place) {
    using T = typename decltype(tag)::type;
    const int root = static_cast<int>(op) % world.size();
    Tensor output;
    if (world.rank() == root) output = in_place ? input : OutputTensor<T>(world, input.num_elements());
    group.Reduce(input, output, op, root);
    return Result{output, 0};
  });
}

// 1 + 2^-8 + 2^-8 is a bf16 only if the sum is rounded once.
TEST_P(CommConformance, SixteenBitSumsRoundOnce) {
  Run(3, [exact = GetParam().exact_reductions](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    for (int64_t count : {1, 5000}) {
      const Tensor tensor = MakeTensor<BFloat16>(world, count, [&](BFloat16* values) {
        std::fill_n(values, count, BFloat16(world.rank() == 0 ? 1.0f : 0x1p-8f));
      });
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
      const Tensor host = OnHost(tensor);
      for (int64_t i = 0; i < count; ++i) {
        const float sum = static_cast<float>(host.data<BFloat16>()[i]);
        Expect(sum == 1.0f + 0x1p-7f || (!exact && sum == 1.0f), "rounded more than once");
      }
    }
  });
}

TEST_P(CommConformance, NanWinsInMinAndMaxWhereverItComesFrom) {
  Run(3, [exact = GetParam().exact_reductions](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
      const Tensor tensor = MakeTensor<float>(world, 4, [&](float* values) {
        for (int64_t i = 0; i < 4; ++i) {
          values[i] = i == world.rank() ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
        }
      });
      group->AllReduce(tensor, tensor, op);
      const Tensor host = OnHost(tensor);
      for (int64_t i = 0; i < 4; ++i) {
        const float value = host.data<float>()[i];
        const bool may_lose = !exact && op != ReduceOp::kSum && value == 1.0f;
        Expect((value != value) == (i < 3) || may_lose, ReduceOpName(op), ": element ", i);
      }
    }
  });
}

TEST_P(CommConformance, FloatSumsAreTheSameBitsOnEveryMemberAndInEveryRun) {
  static constexpr int64_t kCount = 20011;
  Run(4, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const Tensor input = InputTensor<float>(world, world.rank(), kCount);
    const Tensor first = OutputTensor<float>(world, kCount);
    group->AllReduce(input, first, ReduceOp::kSum);
    const Tensor host = OnHost(first);
    for (int run = 0; run < 20; ++run) {
      const Tensor again = OutputTensor<float>(world, kCount);
      group->AllReduce(input, again, ReduceOp::kSum);
      Expect(std::memcmp(host.data(), OnHost(again).data(), host.num_bytes()) == 0, "run ", run, " differs");
    }
    const Tensor all = OutputTensor<float>(world, 4 * kCount);
    group->AllGather(first, all, {kCount, kCount, kCount, kCount});
    const Tensor all_host = OnHost(all);
    for (int rank = 0; rank < 4; ++rank) {
      Expect(std::memcmp(host.data(), all_host.data<float>() + rank * kCount, host.num_bytes()) == 0, "rank ",
             rank, " has other bits");
    }
  });
}

}  // namespace
}  // namespace weft
