// Collectives that move elements and combine none, and point-to-point messages.

#include "runtime/base/dtype.h"
#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

// The piece of each rank: even with a short tail, everything in one piece, or growing with the rank.
std::vector<std::vector<int64_t>> CountsOf(int64_t count, int num_ranks) {
  const int64_t chunk = (count + num_ranks - 1) / num_ranks;
  std::vector<int64_t> even(num_ranks);
  std::vector<int64_t> growing(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    even[rank] = std::max<int64_t>(0, std::min(chunk, count - rank * chunk));
    growing[rank] = count * rank / (num_ranks * num_ranks);
  }
  growing.back() += count - std::accumulate(growing.begin(), growing.end(), int64_t{0});
  std::vector<int64_t> one(num_ranks);
  one[num_ranks / 2] = count;
  return {even, growing, one};
}

int64_t OffsetOf(const std::vector<int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

// Elements [begin, begin + count) of `tensor` are elements from `source_begin` on of `rank`'s input.
template <class T>
void ExpectInput(const Tensor& tensor, int64_t begin, int64_t count, int rank, int64_t source_begin) {
  const Tensor host = OnHost(tensor.Slice(0, begin, count));
  for (int64_t i = 0; i < count; ++i) {
    Expect(SameBits(host.data<T>()[i], InputValue<T>(rank, source_begin + i)), DTypeName(tensor.dtype()),
           ": element ", begin + i, " of ", tensor.num_elements(), " is not element ", source_begin + i,
           " of rank ", rank, "'s input");
  }
}

// Calls `body(group, tag, counts)` on the ranks of a sweep, for every dtype and distribution of every count.
template <class Body>
void ForEachCase(const CommBackend& backend, const Body& body) {
  for (int num_ranks : backend.sweep_ranks) {
    backend.run(num_ranks, [&](World& world) {
      const auto group = world.NewGroup("dp", AllRanks(world));
      for (DType dtype : kAllDTypes) {
        for (int64_t count : {0, 1, 5, 4097, 100003}) {
          if (count > 5000 && dtype != DType::kF32 && dtype != DType::kU8)
            continue;  // only the item size matters
          for (const std::vector<int64_t>& counts : CountsOf(count, num_ranks)) {
            VisitDType(dtype, [&](auto tag) { body(world, *group, tag, counts); });
          }
        }
      }
    });
  }
}

TEST_P(CommConformance, AllGatherConcatenates) {
  ForEachCase(GetParam(),
              [](World& world, Communicator& group, auto tag, const std::vector<int64_t>& counts) {
                using T = typename decltype(tag)::type;
                const int64_t begin = OffsetOf(counts, world.rank());
                const int64_t mine = counts[world.rank()];
                for (bool in_place : {false, true}) {
                  const Tensor output = OutputTensor<T>(world, OffsetOf(counts, world.size()));
                  Tensor input = InputTensor<T>(world, world.rank(), mine);
                  if (in_place) {
                    CopyTensor(input, output.Slice(0, begin, mine));
                    input = output.Slice(0, begin, mine);
                  }
                  group.AllGather(input, output, counts);
                  for (int rank = 0; rank < world.size(); ++rank) {
                    ExpectInput<T>(output, OffsetOf(counts, rank), counts[rank], rank, 0);
                  }
                }
              });
}

TEST_P(CommConformance, GatherConcatenatesAtTheRootAndScatterTakesApart) {
  ForEachCase(
      GetParam(), [](World& world, Communicator& group, auto tag, const std::vector<int64_t>& counts) {
        using T = typename decltype(tag)::type;
        const int64_t total = OffsetOf(counts, world.size());
        const int64_t mine = counts[world.rank()];
        const int64_t begin = OffsetOf(counts, world.rank());
        for (int root : {0, world.size() - 1}) {
          const bool is_root = world.rank() == root;
          Tensor all;
          if (is_root) all = OutputTensor<T>(world, total);
          group.Gather(InputTensor<T>(world, world.rank(), mine), all, counts, root);
          for (int rank = 0; is_root && rank < world.size(); ++rank) {
            ExpectInput<T>(all, OffsetOf(counts, rank), counts[rank], rank, 0);
          }

          if (is_root) all = InputTensor<T>(world, root, total);
          const Tensor piece = is_root ? all.Slice(0, begin, mine) : OutputTensor<T>(world, mine);
          group.Scatter(all, piece, counts, root);
          ExpectInput<T>(piece, 0, mine, root, begin);
          const Tensor other = OutputTensor<T>(world, mine);
          group.Scatter(all, other, counts, root);
          ExpectInput<T>(other, 0, mine, root, begin);

          // The root's own piece in place.
          group.Gather(is_root ? all.Slice(0, begin, mine) : InputTensor<T>(world, world.rank(), mine), all,
                       counts, root);
          for (int rank = 0; is_root && rank < world.size(); ++rank) {
            ExpectInput<T>(all, OffsetOf(counts, rank), counts[rank], rank, rank == root ? begin : 0);
          }
        }
      });
}

TEST_P(CommConformance, BroadcastCopiesTheRoot) {
  ForEachCase(GetParam(),
              [](World& world, Communicator& group, auto tag, const std::vector<int64_t>& counts) {
                using T = typename decltype(tag)::type;
                const int64_t count = OffsetOf(counts, world.size());
                for (int root : {0, world.size() - 1}) {
                  const Tensor tensor = InputTensor<T>(world, world.rank(), count);
                  group.Broadcast(tensor, root);
                  ExpectInput<T>(tensor, 0, count, root, 0);
                }
              });
}

// Rank s sends counts[(s + r) % n] elements to rank r: every pair of counts differs from its mirror image.
TEST_P(CommConformance, AllToAllTransposes) {
  ForEachCase(GetParam(),
              [](World& world, Communicator& group, auto tag, const std::vector<int64_t>& counts) {
                using T = typename decltype(tag)::type;
                const int n = world.size();
                const int me = world.rank();
                const auto sent = [&](int from, int to) { return counts[(2 * from + to) % n]; };
                std::vector<std::vector<int64_t>> send_counts(n, std::vector<int64_t>(n));
                std::vector<int64_t> receive_counts(n);
                for (int from = 0; from < n; ++from) {
                  for (int to = 0; to < n; ++to) send_counts[from][to] = sent(from, to);
                  receive_counts[from] = sent(from, me);
                }
                const Tensor output = OutputTensor<T>(world, OffsetOf(receive_counts, n));
                group.AllToAll(InputTensor<T>(world, me, OffsetOf(send_counts[me], n)), send_counts[me],
                               output, receive_counts);
                for (int from = 0; from < n; ++from) {
                  ExpectInput<T>(output, OffsetOf(receive_counts, from), receive_counts[from], from,
                                 OffsetOf(send_counts[from], me));
                }
              });
}

TEST_P(CommConformance, RingsInBothDirectionsAtOnce) {
  for (int num_ranks = 1; num_ranks <= 5; ++num_ranks) {
    Run(num_ranks, [](World& world) {
      const auto group = world.NewGroup("pp", AllRanks(world));
      const int n = world.size();
      const int next = (world.rank() + 1) % n;
      const int previous = (world.rank() + n - 1) % n;
      for (int64_t count : {0, 1, 5, 4097, 100003}) {
        const Tensor mine = InputTensor<float>(world, world.rank(), count);
        const Tensor from_previous = OutputTensor<float>(world, count);
        const Tensor from_next = OutputTensor<float>(world, count);
        group->SendRecv({{next, mine}, {previous, mine}}, {{previous, from_previous}, {next, from_next}});
        ExpectInput<float>(from_previous, 0, count, previous, 0);
        ExpectInput<float>(from_next, 0, count, next, 0);
      }
    });
  }
}

TEST_P(CommConformance, MessagesOfAPairMatchInTheOrderIssued) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("pp", AllRanks(world));
    constexpr int kMessages = 50;
    if (world.rank() == 0) {
      for (int i = 0; i < kMessages; ++i)
        group->Send(InputTensor<int64_t>(world, i, i), 1, {.async = i % 2 == 0});
      std::vector<Message> sends;
      for (int i = 0; i < kMessages; ++i) sends.push_back({1, InputTensor<int64_t>(world, i, i)});
      group->SendRecv(sends, {});
    } else {
      std::vector<Message> receives;
      for (int i = 0; i < kMessages; ++i) receives.push_back({0, OutputTensor<int64_t>(world, i)});
      group->SendRecv({}, receives);  // the sender sent one by one
      for (int i = 0; i < kMessages; ++i) ExpectInput<int64_t>(receives[i].tensor, 0, i, i, 0);
      for (int i = 0; i < kMessages; ++i) {
        const Tensor tensor = OutputTensor<int64_t>(world, i);
        group->Recv(tensor, 0);
        ExpectInput<int64_t>(tensor, 0, i, i, 0);
      }
    }
  });
}

TEST_P(CommConformance, OnlyTheEndsOfAMessageTakePart) {
  Run(3, [](World& world) {
    const auto group = world.NewGroup("pp", AllRanks(world));
    if (world.rank() == 0) group->Send(InputTensor<float>(world, 0, 7), 2);
    if (world.rank() == 2) {
      const Tensor tensor = OutputTensor<float>(world, 7);
      group->Recv(tensor, 0);
      ExpectInput<float>(tensor, 0, 7, 0, 0);
    }
    group->Barrier();
    group->SendRecv({}, {});
  });
}

TEST_P(CommConformance, MessagesToOneselfMeetInOrder) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("pp", AllRanks(world));
    const int me = world.rank();
    const Tensor a = OutputTensor<float>(world, 3);
    const Tensor b = OutputTensor<float>(world, 9000);
    const Tensor c = OutputTensor<float>(world, 5);
    group->SendRecv({{me, InputTensor<float>(world, 10, 3)},
                     {1 - me, InputTensor<float>(world, 20 + me, 5)},
                     {me, InputTensor<float>(world, 30, 9000)}},
                    {{me, a}, {me, b}, {1 - me, c}});
    ExpectInput<float>(a, 0, 3, 10, 0);
    ExpectInput<float>(b, 0, 9000, 30, 0);
    ExpectInput<float>(c, 0, 5, 20 + 1 - me, 0);
  });
}

}  // namespace
}  // namespace weft
