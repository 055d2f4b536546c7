// Lists of collectives: each part with the bits that it would have alone, all of them one operation.

#include "runtime/base/reduce_op.h"
#include "runtime/comm/ledger.h"
#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

using Counts = std::vector<int64_t>;

int64_t Sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// Parts of many blocks, whose ends lie anywhere in them, with small and empty ones between.
std::vector<Counts> CountsOfLargeParts(int num_ranks) {
  std::vector<Counts> parts;
  for (const int64_t count : {40000, 0, 131072, 3, 65537, 290001, 512, 9000}) {
    Counts& counts = parts.emplace_back(num_ranks);
    for (int rank = 0; rank < num_ranks; ++rank) {
      counts[rank] = parts.size() % 3 == 0 && rank == 1 ? 0 : count / num_ranks + rank;
    }
  }
  return parts;
}

// Uneven pieces of three parts, some empty, some larger than what travels with a message.
std::vector<Counts> CountsOfParts(int num_ranks) {
  std::vector<Counts> parts(3, Counts(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    parts[0][rank] = rank % 3;
    parts[1][rank] = 700 * rank + 1;
    parts[2][rank] = rank == 0 ? 30011 : 0;
  }
  return parts;
}

template <class T>
void ExpectSame(const Tensor& list, const Tensor& alone, const char* what) {
  const std::vector<T> a = list.ToVector<T>();
  const std::vector<T> b = alone.ToVector<T>();
  for (size_t i = 0; i < b.size(); ++i) Expect(SameBits(a[i], b[i]), what, ": element ", i);
}

// As InputTensor; whole numbers below 1024, whose sums are exact in any order, unless the backend has one order.
Tensor PartTensor(World& world, int64_t count, int64_t begin, bool exact_reductions) {
  if (exact_reductions) return InputTensor<float>(world, world.rank(), count, begin);
  return MakeTensor<float>(world, count, [&](float* values) {
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(InputValue<int64_t>(world.rank(), begin + i) & 1023);
    }
  });
}

// One kind's list beside its parts alone, with as many bytes in the ledger.
void CheckKind(World& world, Communicator& group, CollectiveKind kind, bool async,
               const std::vector<Counts>& counts_of_parts, bool exact_reductions) {
  std::vector<CollectivePart> parts;
  std::vector<Tensor> alone;
  const int me = group.rank();
  // Thirds of whole numbers are rounded.
  const ReduceOp scatter_op = exact_reductions ? ReduceOp::kAvg : ReduceOp::kSum;
  world.ledger().Clear();
  for (const Counts& counts : counts_of_parts) {
    const int64_t whole = Sum(counts);
    const bool gathers = kind == CollectiveKind::kAllGather;
    const Tensor input =
        PartTensor(world, gathers ? counts[me] : whole, 17 * std::ssize(parts), exact_reductions);
    const int64_t result = kind == CollectiveKind::kReduceScatter ? counts[me] : whole;
    alone.push_back(OutputTensor<float>(world, result));
    CollectivePart part = {.input = input,
                           .output = OutputTensor<float>(world, result),
                           .counts = {counts.begin(), counts.end()}};
    if (gathers) {
      group.AllGather(input, alone.back(), counts).Wait();
    } else if (kind == CollectiveKind::kReduceScatter) {
      group.ReduceScatter(input, alone.back(), counts, scatter_op).Wait();
    } else {
      part.counts.clear();
      group.AllReduce(input, alone.back(), ReduceOp::kSum).Wait();
    }
    parts.push_back(std::move(part));
  }
  const int64_t bytes_alone = world.ledger().num_bytes();
  world.ledger().Clear();
  const CommOptions options = {.async = async};
  Work work;
  if (kind == CollectiveKind::kAllGather) {
    work = group.AllGatherEach(parts, options);
  } else if (kind == CollectiveKind::kReduceScatter) {
    work = group.ReduceScatterEach(parts, scatter_op, options);
  } else {
    work = group.AllReduceEach(parts, ReduceOp::kSum, options);
  }
  AwaitOnHost(world, work);
  for (size_t i = 0; i < parts.size(); ++i) {
    ExpectSame<float>(parts[i].output, alone[i], std::string(CollectiveName(kind)).c_str());
  }
  const std::vector<LedgerEntry> entries = world.ledger().entries();
  Expect(entries.size() == 1 && entries[0].calls == 1, "a list is ", entries.size(),
         " entries of the ledger");
  Expect(entries[0].num_bytes == bytes_alone, "the list counts ", entries[0].num_bytes, " bytes, its parts ",
         bytes_alone);
}

TEST_P(CommConformance, ListsGiveWhatTheirPartsGiveAlone) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    Run(num_ranks, [exact = GetParam().exact_reductions](World& world) {
      const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
      for (const bool async : {false, true}) {
        for (const CollectiveKind kind :
             {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
          CheckKind(world, *group, kind, async, CountsOfParts(world.size()), exact);
        }
      }
    });
  }
}

TEST_P(CommConformance, ListsOfLargePartsGiveWhatTheyGiveAlone) {
  for (const int num_ranks : {2, 3, 4}) {
    Run(num_ranks, [exact = GetParam().exact_reductions](World& world) {
      const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
      for (const CollectiveKind kind :
           {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
        CheckKind(world, *group, kind, /*async=*/true, CountsOfLargeParts(world.size()), exact);
      }
    });
  }
}

// In place, as a bucket of gradients is reduced.
TEST_P(CommConformance, ListsWorkInPlace) {
  const auto body = [](World& world) {
    const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
    std::vector<CollectivePart> parts;
    std::vector<Tensor> alone;
    for (const int64_t count : {3, 5000, 70001, 200, 100003}) {
      const Tensor tensor = InputTensor<double>(world, world.rank(), count);
      alone.push_back(OutputTensor<double>(world, count));
      group->AllReduce(tensor, alone.back(), ReduceOp::kSum).Wait();
      parts.push_back({.input = tensor, .output = tensor});
    }
    AwaitOnHost(world, group->AllReduceEach(parts, ReduceOp::kSum));
    for (size_t i = 0; i < parts.size(); ++i) ExpectSame<double>(parts[i].output, alone[i], "in place");
  };
  for (const int num_ranks : {2, 3}) Run(num_ranks, body);
}

TEST_P(CommConformance, ListsMayBeEmptyOrOfOnePart) {
  Run(2, [](World& world) {
    const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
    AwaitOnHost(world, group->AllReduceEach({}, ReduceOp::kSum));
    const Tensor tensor = InputTensor<float>(world, 0, 4);
    AwaitOnHost(world, group->AllReduceEach({{.input = tensor, .output = tensor}}, ReduceOp::kMax));
    ExpectSame<float>(tensor, InputTensor<float>(world, 0, 4), "the largest of equal values");
  });
}

TEST_P(CommConformance, ListsOfTwoDTypesAreMisuse) {
  Run(2, [](World& world) {
    const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
    const Tensor a = InputTensor<float>(world, 0, 4);
    const Tensor b = InputTensor<double>(world, 0, 4);
    const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
      group->AllReduceEach({{.input = a, .output = a}, {.input = b, .output = b}}, ReduceOp::kSum);
    });
    ExpectContains(message, {"group 'lists'", "all_reduce", "part 1 of the list is f64, the first is f32"});
    group->Barrier();  // it lives
  });
}

TEST_P(CommConformance, MisuseInAListNamesThePart) {
  Run(2, [](World& world) {
    const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
    const Tensor a = InputTensor<float>(world, 0, 4);
    const Tensor b = InputTensor<float>(world, 0, 5);
    const CollectivePart good = {.input = a, .output = a};
    const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
      group->AllReduceEach({good, good, {.input = a, .output = b}, good}, ReduceOp::kSum);
    });
    ExpectContains(message, {"group 'lists'", "all_reduce", "output f32[5] has 5 elements, expected 4",
                             "part 2 of the list"});
    group->Barrier();  // it lives
  });
}

TEST_P(CommConformance, ListsThatDisagreeEndTheGroupForAll) {
  Run(2, [](World& world) {
    const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
    const Tensor a = InputTensor<float>(world, 0, 4);
    const Tensor b = InputTensor<float>(world, 0, world.rank() == 0 ? 600 : 601);
    const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
      group->AllReduceEach({{.input = a, .output = a}, {.input = b, .output = b}}, ReduceOp::kSum).Wait();
      AwaitError(world, *group);
    });
    ExpectContains(message, {"group 'lists'", "all_reduce"});
  });
}

// Together the parts have as many elements; one by one they have not.
TEST_P(CommConformance, ListsOfOtherPartsThanThePeersEndTheGroupForAll) {
  for (const int64_t large : {600, 90000}) {
    Run(2, [=](World& world) {
      const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
      const Tensor a = InputTensor<float>(world, 0, world.rank() == 0 ? 400 : large);
      const Tensor b = InputTensor<float>(world, 0, world.rank() == 0 ? large : 400);
      const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
        group->AllReduceEach({{.input = a, .output = a}, {.input = b, .output = b}}, ReduceOp::kSum).Wait();
        AwaitDifference(world, *group);
      });
      ExpectContains(message, {"group 'lists'", "all_reduce"});
    });
  }
}

// As many elements in parts of the same sizes, but of other things. NCCL compares only once something is late.
TEST_P(CommConformance, ListsOfOtherThingsEndTheGroupForAll) {
  for (const int64_t count : {6, 600, 90000}) {
    Run(2, [=](World& world) {
      if (!OnCpu(world)) return;
      const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
      const Tensor a = InputTensor<float>(world, 0, count);
      const Tensor b = InputTensor<float>(world, 0, count);
      const uint32_t subject = world.rank() + 1;
      const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
        group->AllReduceEach({{.input = a, .output = a}, {.input = b, .output = b}}, ReduceOp::kSum,
                             {.subject = subject});
      });
      ExpectContains(message, {"group 'lists'", "all_reduce"});
    });
  }
}

TEST_P(CommConformance, AListBesideOneCallOfItsSumEndsTheGroupForAll) {
  for (const int64_t count : {6, 600, 90000}) {
    for (int repeat = 0; repeat < Repeats(20); ++repeat) {
      Run(2, [=](World& world) {
        if (!OnCpu(world)) return;
        const std::shared_ptr<Communicator> group = world.NewGroup("lists", AllRanks(world));
        const Tensor a = InputTensor<float>(world, 0, count);
        const Tensor both = InputTensor<float>(world, 0, 2 * count);
        const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
          if (world.rank() == 0) {
            group->AllReduceEach({{.input = a, .output = a}, {.input = a, .output = a}}, ReduceOp::kSum);
          } else {
            group->AllReduce(both, both, ReduceOp::kSum);
          }
        });
        ExpectContains(message, {"group 'lists'", "all_reduce"});
      });
    }
  }
}

}  // namespace
}  // namespace weft
