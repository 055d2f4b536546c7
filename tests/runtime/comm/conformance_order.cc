// Asynchronous work, order, groups that overlap, and the ledger.

#include <atomic>

#include "runtime/base/dtype.h"
#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

Tensor Filled(World& world, int64_t count, double value) {
  return MakeTensor<double>(world, count, [&](double* values) { std::fill_n(values, count, value); });
}

void ExpectFilled(const Tensor& tensor, double value) {
  const Tensor host = OnHost(tensor);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    Expect(host.data<double>()[i] == value, "element ", i, " is ", host.data<double>()[i], ", expected ",
           value);
  }
}

// Each operation reads what the one before wrote, so any other order gives another number.
TEST_P(CommConformance, OperationsRunInTheOrderIssuedBlockingAndAsynchronousAlike) {
  Run(3, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    for (int64_t count : {1, 3000}) {
      const Tensor tensor = Filled(world, count, 1);
      double expected = 1;
      std::vector<Work> works;
      for (int i = 0; i < 20; ++i) {
        works.push_back(group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}));
        expected *= 3;
      }
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
      expected *= 3;
      ExpectFilled(tensor, expected);
      for (const Work& work : works) {
        Expect(work.Test(), "a blocking call came back before an older asynchronous one");
        work.Wait();
      }
    }
  });
}

TEST_P(CommConformance, ManyWorksInFlightOwnTheirBuffers) {
  Run(4, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    std::vector<Tensor> outputs;
    std::vector<Work> works;
    for (int i = 0; i < 200; ++i) {
      const int64_t count = 1 + (i * 37) % 700;
      outputs.push_back(Filled(world, count, -1));
      // The input has no other owner once this call is back.
      works.push_back(group->AllReduce(Filled(world, count, world.rank() + i), outputs.back(), ReduceOp::kSum,
                                       {.async = true}));
    }
    for (int i = 199; i >= 0; --i) {
      works[i].Wait();
      ExpectFilled(outputs[i], 6 + 4 * i);
    }
  });
}

TEST_P(CommConformance, WorksTakeEveryKindAndMayBeDropped) {
  Run(3, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const std::vector<int64_t> counts = {100, 100, 100};
    const double me = world.rank();
    const Tensor gathered = Filled(world, 300, -1);
    const Tensor scattered = Filled(world, 100, -1);
    const Tensor exchanged = Filled(world, 300, -1);
    const Tensor copied = Filled(world, 100, me);
    const Tensor received = Filled(world, 100, -1);
    const Tensor reduced = Filled(world, 100, me);
    group->AllGather(Filled(world, 100, me), gathered, counts, {.async = true});
    group->ReduceScatter(gathered, scattered, counts, ReduceOp::kAvg, {.async = true});
    group->AllToAll(gathered, counts, exchanged, counts, {.async = true});
    group->Broadcast(copied, 2, {.async = true});
    group->SendRecv({{(world.rank() + 1) % 3, Filled(world, 100, me)}}, {{(world.rank() + 2) % 3, received}},
                    {.async = true});
    group->Reduce(reduced, reduced, ReduceOp::kMax, 1, {.async = true});
    group->Barrier();  // behind them all
    for (int rank = 0; rank < 3; ++rank) {
      ExpectFilled(gathered.Slice(0, rank * 100, 100), rank);
      ExpectFilled(exchanged.Slice(0, rank * 100, 100), me);
    }
    ExpectFilled(scattered, me);
    ExpectFilled(copied, 2);
    ExpectFilled(received, (world.rank() + 2) % 3);
    ExpectFilled(reduced, world.rank() == 1 ? 2 : me);
  });
}

TEST_P(CommConformance, RowsAndColumnsOfAGridAtOnce) {
  Run(4, [repeats = Repeats(100)](World& world) {
    const int row = world.rank() / 2;
    const int column = world.rank() % 2;
    const auto rows = world.NewGroup("rows", {2 * row, 2 * row + 1});
    const auto columns = world.NewGroup("columns", {column, column + 2});
    const auto all = world.NewGroup("all", {0, 1, 2, 3});
    for (int i = 0; i < repeats; ++i) {
      const int64_t count = i % 2 == 0 ? 3 : 2000;
      const Tensor a = Filled(world, count, world.rank() + i);
      const Tensor b = Filled(world, count, world.rank() * i);
      const Tensor c = Filled(world, count, world.rank() - i);
      const Work row_work = rows->AllReduce(a, a, ReduceOp::kSum, {.async = true});
      const Work column_work = columns->AllReduce(b, b, ReduceOp::kSum, {.async = true});
      all->AllReduce(c, c, ReduceOp::kSum);
      column_work.Wait();
      row_work.Wait();
      ExpectFilled(a, 4 * row + 1 + 2 * i);
      ExpectFilled(b, (2 * column + 2) * i);
      ExpectFilled(c, 6 - 4 * i);
    }
  });
}

// Ranks enter two groups in opposite orders: with one shared queue, each would wait for the other.
TEST_P(CommConformance, TwoGroupsOfTheSameRanksAreIndependent) {
  Run(2, [](World& world) {
    const auto first = world.NewGroup("first", {0, 1});
    const auto second = world.NewGroup("second", {0, 1});
    for (const auto& group : {first, second}) group->Barrier();  // NCCL makes its groups in one order
    const Tensor a = Filled(world, 1000, 1 + world.rank());
    const Tensor b = Filled(world, 1000, 10 + world.rank());
    Communicator& early = world.rank() == 0 ? *first : *second;
    Communicator& late = world.rank() == 0 ? *second : *first;
    const Work work = early.AllReduce(world.rank() == 0 ? a : b, world.rank() == 0 ? a : b, ReduceOp::kSum,
                                      {.async = true});
    late.AllReduce(world.rank() == 0 ? b : a, world.rank() == 0 ? b : a, ReduceOp::kSum);
    work.Wait();
    ExpectFilled(a, 3);
    ExpectFilled(b, 21);
  });
}

TEST_P(CommConformance, TestAndWaitForSeeAWorkThatCannotFinishYet) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const auto gate = world.NewGroup("gate", {0, 1});
    const Tensor tensor = Filled(world, 10, 1);
    if (world.rank() == 0) {
      const Work work = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
      Expect(!work.Test(), "finished without its peer");
      Expect(!work.WaitFor(std::chrono::milliseconds(5)), "finished without its peer");
      gate->Barrier();
      Expect(work.WaitFor(std::chrono::minutes(1)), "never finished");
      Expect(work.Test(), "finished, then not");
    } else {
      gate->Barrier();
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
    }
    ExpectFilled(tensor, 2);
    const Work none;
    Expect(none.Test() && none.WaitFor(std::chrono::milliseconds(0)), "an empty Work is a finished one");
    none.Wait();
  });
}

TEST_P(CommConformance, TwoThousandSmallCollectives) {
  Run(4, [repeats = Repeats(2000)](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const Tensor tensor = Filled(world, 1, 0);
    const Tensor gathered = Filled(world, 4, 0);
    for (int i = 0; i < repeats; ++i) {
      FillTensor(tensor, world.rank() + i);
      switch (i % 4) {
        case 0:
          group->AllReduce(tensor, tensor, ReduceOp::kSum);
          ExpectFilled(tensor, 6 + 4 * i);
          break;
        case 1:
          group->Broadcast(tensor, i % 3);
          ExpectFilled(tensor, i % 3 + i);
          break;
        case 2:
          group->AllGather(tensor, gathered, {1, 1, 1, 1});
          for (int rank = 0; rank < 4; ++rank) ExpectFilled(gathered.Slice(0, rank, 1), rank + i);
          break;
        default:
          group->Barrier();
      }
    }
  });
}

TEST_P(CommConformance, LedgerCountsWhatMembersLack) {
  Run(4, [](World& world) {
    if (world.rank() == 0) return;
    const auto group = world.NewGroup("dp.tp", {1, 2, 3});
    const int me = group->rank();
    constexpr int64_t kS = (1 + 2 + 3) * 8;  // bytes of the whole
    const std::vector<int64_t> counts = {1, 2, 3};
    const Tensor whole = Filled(world, 6, 0);
    const Tensor piece = Filled(world, counts[me], 0);
    const CommTag tag = {.purpose = 3, .path_id = 17};
    group->AllReduce(whole, whole, ReduceOp::kSum, {.tag = tag});
    group->AllGather(piece, whole, counts, {.async = true, .tag = tag});
    group->ReduceScatter(whole, piece, counts, ReduceOp::kSum);
    // Rank s sends 10 * s + r + 1 elements to r.
    const auto sent = [](int from, int to) { return int64_t{10} * from + to + 1; };
    const std::vector<int64_t> send = {sent(me, 0), sent(me, 1), sent(me, 2)};
    const std::vector<int64_t> receive = {sent(0, me), sent(1, me), sent(2, me)};
    group->AllToAll(Filled(world, send[0] + send[1] + send[2], 0), send,
                    Filled(world, receive[0] + receive[1] + receive[2], 0), receive);
    group->Broadcast(whole, 1);
    group->Reduce(whole, whole, ReduceOp::kSum, 2);
    group->Gather(piece, Filled(world, 6, 0), counts, 1);
    group->Scatter(whole, piece, counts, 2);
    group->SendRecv({{(me + 1) % 3, Filled(world, 5 + me, 0)}, {me, Filled(world, 100, 0)}},
                    {{(me + 2) % 3, Filled(world, 5 + (me + 2) % 3, 0)}, {me, Filled(world, 100, 0)}});
    group->Barrier();

    // From others alone, on each receiver.
    const int64_t received = (receive[0] + receive[1] + receive[2] - receive[me]) * 8;
    const std::vector<std::pair<CollectiveKind, int64_t>> expected = {
        {CollectiveKind::kAllReduce, 4 * kS},
        {CollectiveKind::kAllGather, 2 * kS},
        {CollectiveKind::kReduceScatter, 2 * kS},
        {CollectiveKind::kAllToAll, received},
        {CollectiveKind::kBroadcast, 2 * kS},
        {CollectiveKind::kReduce, 2 * kS},
        {CollectiveKind::kGather, 4 * 8},
        {CollectiveKind::kScatter, 3 * 8},
        {CollectiveKind::kSendRecv, (5 + (me + 2) % 3) * 8},
        {CollectiveKind::kBarrier, 0}};
    const std::vector<LedgerEntry> entries = world.ledger().entries();
    Expect(entries.size() == expected.size(), "the ledger has ", entries.size(), " entries");
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto [kind, num_bytes] = expected[i];
      const bool by_receiver = kind == CollectiveKind::kSendRecv || kind == CollectiveKind::kAllToAll;
      const int64_t mine = me == 0 || by_receiver ? num_bytes : 0;
      Expect(entries[i].kind == kind && entries[i].group == "dp.tp", "entry ", i, " is ",
             CollectiveName(entries[i].kind), " of ", entries[i].group);
      Expect(entries[i].num_bytes == mine, CollectiveName(kind), ": ", entries[i].num_bytes,
             " bytes, expected ", mine);
      Expect(entries[i].calls == 1, CollectiveName(kind), ": ", entries[i].calls, " calls");
      Expect(entries[i].seconds >= 0 && entries[i].seconds < 60, CollectiveName(kind), " took ",
             entries[i].seconds, " s");
      Expect(entries[i].tag == (i < 2 ? tag : CommTag()), CollectiveName(kind), ": another tag");
    }
  });
}

TEST_P(CommConformance, TheLedgerDoesNotGrowWithTheNumberOfCalls) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const Tensor tensor = Filled(world, 1, 0);
    for (int i = 0; i < 100; ++i) {
      group->AllReduce(tensor, tensor, ReduceOp::kSum, {.tag = {.path_id = i % 2}});
    }
    group->Barrier();
    const std::vector<LedgerEntry> entries = world.ledger().entries();
    Expect(entries.size() == 3, "the ledger has ", entries.size(), " entries of 2 tags and a barrier");
    for (size_t i = 0; i < 2; ++i) {
      Expect(entries[i].calls == 50 && entries[i].num_bytes == (world.rank() == 0 ? 50 * 2 * 8 : 0), "entry ",
             i, " has ", entries[i].calls, " calls of ", entries[i].num_bytes, " bytes");
    }
  });
}

// Rank 1 comes only after rank 0 has looked.
TEST_P(CommConformance, BytesAreInTheLedgerOnceTheCallReturns) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const auto gate = world.NewGroup("gate", AllRanks(world));
    const bool is_first = world.rank() == 0;
    const Tensor tensor = Filled(world, 1000, 1);
    const std::vector<int64_t> send = {1, is_first ? 5 : 1};
    const std::vector<int64_t> receive = {is_first ? 1 : 5, 1};
    if (!is_first) gate->Barrier();
    for (int i = 0; i < 10; ++i) group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
    group->AllToAll(Filled(world, send[0] + send[1], 0), send, Filled(world, receive[0] + receive[1], 0),
                    receive, {.async = true});
    const int64_t expected = is_first ? 10 * 2 * 8000 + 1 * 8 : 5 * 8;
    Expect(world.ledger().num_bytes() == expected, "the ledger holds ", world.ledger().num_bytes(),
           " bytes, expected ", expected);
    if (is_first) gate->Barrier();
    group->Barrier();
  });
}

TEST_P(CommConformance, AGroupOfOneMovesNothing) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("solo", {world.rank()});
    const Tensor input = Filled(world, 1000, 5);
    const Tensor output = Filled(world, 1000, 0);
    const Work work = group->AllReduce(input, output, ReduceOp::kAvg, {.async = true});
    work.Wait();
    ExpectFilled(output, 5);
    group->AllToAll(input, {1000}, Filled(world, 1000, 0), {1000});
    group->Barrier();
    Expect(world.ledger().entries().size() == 3 && world.ledger().num_bytes() == 0, "it counted bytes");
  });
}

TEST_P(CommConformance, EightRanks) {
  Run(8, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const double me = world.rank();
    for (int64_t count : {1, 700, 30011}) {
      const std::vector<int64_t> counts(8, count);
      const Tensor tensor = Filled(world, count, me);
      const Tensor all = Filled(world, 8 * count, -1);
      const Tensor exchanged = Filled(world, 8 * count, -1);
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
      ExpectFilled(tensor, 28);
      group->AllGather(Filled(world, count, me), all, counts);
      group->AllToAll(all, counts, exchanged, counts);
      for (int rank = 0; rank < 8; ++rank) {
        ExpectFilled(all.Slice(0, rank * count, count), rank);
        ExpectFilled(exchanged.Slice(0, rank * count, count), me);
      }
      group->ReduceScatter(all, tensor, counts, ReduceOp::kSum);
      ExpectFilled(tensor, 8 * me);
      group->Broadcast(tensor, 5);
      ExpectFilled(tensor, 40);
    }
  });
}

// Three groups of one rank set after another, each dropped with everything in flight.
TEST_P(CommConformance, DroppedWithWorkInFlightTheWorkIsDone) {
  Run(3, [](World& world) {
    std::vector<Tensor> outputs;
    for (int round = 0; round < 3; ++round) {
      auto group = world.NewGroup("dp", AllRanks(world));
      for (int i = 0; i < 30; ++i) {
        outputs.push_back(Filled(world, i % 2 == 0 ? 7 : 20000, -1));
        group->AllReduce(Filled(world, outputs.back().num_elements(), world.rank() + i), outputs.back(),
                         ReduceOp::kSum, {.async = true});
      }
      group.reset();
    }
    world.FinishWork();
    for (size_t i = 0; i < outputs.size(); ++i)
      ExpectFilled(outputs[i], 3.0 + 3.0 * static_cast<double>(i % 30));
  });
}

}  // namespace
}  // namespace weft
