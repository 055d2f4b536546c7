// Reductions against a naive loop, bit for bit: ascending rank order is part of the contract.

#include <algorithm>
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

template <class T, class A>
std::vector<T> ReducedAs(ReduceOp op, int num_ranks, int64_t count) {
  std::vector<T> result(count);
  for (int64_t i = 0; i < count; ++i) {
    A value = static_cast<A>(InputValue<T>(0, i));
    for (int rank = 1; rank < num_ranks; ++rank) {
      value = Combine(op, value, static_cast<A>(InputValue<T>(rank, i)));
    }
    if (op == ReduceOp::kAvg) value = value / static_cast<A>(num_ranks);
    result[i] = static_cast<T>(value);
  }
  return result;
}

// bool as bytes of 0 and 1: vector<bool> has no data().
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

template <class T>
std::vector<Stored<T>> Reduced(ReduceOp op, int num_ranks, int64_t count) {
  if constexpr (std::is_same_v<T, bool>) {
    const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
    std::vector<uint8_t> result(count);
    for (int64_t i = 0; i < count; ++i) {
      int num_true = 0;
      for (int rank = 0; rank < num_ranks; ++rank) num_true += InputValue<bool>(rank, i);
      result[i] = any ? num_true > 0 : num_true == num_ranks;
    }
    return result;
  } else if constexpr (std::is_integral_v<T>) {
    return ReducedAs<T, int64_t>(op, num_ranks, count);
  } else if constexpr (std::is_same_v<T, double>) {
    return ReducedAs<T, double>(op, num_ranks, count);
  } else {
    return ReducedAs<T, float>(op, num_ranks, count);
  }
}

template <class T>
void ExpectElements(const Tensor& tensor, const std::vector<Stored<T>>& expected, int64_t begin,
                    const std::string& what) {
  const auto* actual = static_cast<const Stored<T>*>(tensor.data());
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    Expect(SameBits(actual[i], expected[begin + i]), what, ": element ", i, " is ",
           static_cast<double>(actual[i]), ", expected ", static_cast<double>(expected[begin + i]));
  }
}

std::string Case(DType dtype, ReduceOp op, int64_t count, bool in_place) {
  return absl::StrCat(DTypeName(dtype), " ", ReduceOpName(op), " count ", count, in_place ? " in place" : "");
}

// Calls `body(tag, op, count, in_place)` for every combination.
template <class Body>
void ForEachCase(const Body& body) {
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllReduceOps) {
      for (int64_t count : kCounts) {
        for (bool in_place : {false, true}) {
          VisitDType(dtype, [&](auto tag) { body(tag, op, count, in_place); });
        }
      }
    }
  }
}

TEST_P(CommConformance, AllReduceIsTheNaiveLoop) {
  for (int num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    Run(num_ranks, [](World& world) {
      const auto group = world.NewGroup("dp", AllRanks(world));
      ForEachCase([&](auto tag, ReduceOp op, int64_t count, bool in_place) {
        using T = typename decltype(tag)::type;
        const Tensor input = InputTensor<T>(world, world.rank(), count);
        const Tensor output = in_place ? input : OutputTensor<T>(world, count);
        group->AllReduce(input, output, op);
        ExpectElements<T>(output, Reduced<T>(op, world.size(), count), 0,
                          Case(kDTypeOf<T>, op, count, in_place));
      });
    });
  }
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
  for (int num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    Run(num_ranks, [](World& world) {
      const auto group = world.NewGroup("dp", AllRanks(world));
      ForEachCase([&](auto tag, ReduceOp op, int64_t count, bool in_place) {
        using T = typename decltype(tag)::type;
        const std::vector<int64_t> counts = UnevenCounts(count, world.size());
        const int64_t begin = std::accumulate(counts.begin(), counts.begin() + world.rank(), int64_t{0});
        const Tensor input = InputTensor<T>(world, world.rank(), count);
        const Tensor output = in_place ? input.Slice(0, begin, counts[world.rank()])
                                       : OutputTensor<T>(world, counts[world.rank()]);
        group->ReduceScatter(input, output, counts, op);
        ExpectElements<T>(output, Reduced<T>(op, world.size(), count), begin,
                          Case(kDTypeOf<T>, op, count, in_place));
      });
    });
  }
}

TEST_P(CommConformance, ReduceIsTheNaiveLoopAtTheRoot) {
  for (int num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    Run(num_ranks, [](World& world) {
      const auto group = world.NewGroup("dp", AllRanks(world));
      int root = 0;
      ForEachCase([&](auto tag, ReduceOp op, int64_t count, bool in_place) {
        using T = typename decltype(tag)::type;
        root = (root + 1) % world.size();
        const Tensor input = InputTensor<T>(world, world.rank(), count);
        Tensor output;
        if (world.rank() == root) output = in_place ? input : OutputTensor<T>(world, count);
        group->Reduce(input, output, op, root);
        if (world.rank() != root) return;
        ExpectElements<T>(output, Reduced<T>(op, world.size(), count), 0,
                          Case(kDTypeOf<T>, op, count, in_place));
      });
    });
  }
}

// Two in float's last place: 1 + 2^-8 + 2^-8 is a bf16 only if the sum is rounded once.
TEST_P(CommConformance, SixteenBitSumsRoundOnce) {
  Run(3, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    for (int64_t count : {1, 5000}) {
      const Tensor tensor = Tensor::Empty(world.allocator(), DType::kBF16, {count});
      std::fill_n(tensor.data<BFloat16>(), count, BFloat16(world.rank() == 0 ? 1.0f : 0x1p-8f));
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
      for (int64_t i = 0; i < count; ++i) {
        Expect(static_cast<float>(tensor.data<BFloat16>()[i]) == 1.0f + 0x1p-7f, "rounded more than once");
      }
    }
  });
}

TEST_P(CommConformance, NanWinsInMinAndMaxWhereverItComesFrom) {
  Run(3, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
      const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {4});
      for (int64_t i = 0; i < 4; ++i) {
        tensor.data<float>()[i] = i == world.rank() ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
      }
      group->AllReduce(tensor, tensor, op);
      for (int64_t i = 0; i < 4; ++i) {
        const bool is_nan = tensor.data<float>()[i] != tensor.data<float>()[i];
        Expect(is_nan == (i < 3), ReduceOpName(op), ": element ", i);
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
    for (int run = 0; run < 20; ++run) {
      const Tensor again = OutputTensor<float>(world, kCount);
      group->AllReduce(input, again, ReduceOp::kSum);
      Expect(std::memcmp(first.data(), again.data(), first.num_bytes()) == 0, "run ", run, " differs");
    }
    const Tensor all = OutputTensor<float>(world, 4 * kCount);
    group->AllGather(first, all, {kCount, kCount, kCount, kCount});
    for (int rank = 0; rank < 4; ++rank) {
      Expect(std::memcmp(first.data(), all.data<float>() + rank * kCount, first.num_bytes()) == 0, "rank ",
             rank, " has other bits");
    }
  });
}

}  // namespace
}  // namespace weft
