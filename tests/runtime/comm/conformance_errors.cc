// Misuse, disagreement, missing and failing peers: by code and message, on every member.

#include <chrono>
#include <thread>

#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

using absl::StatusCode;
using Call = std::function<void(World&, Communicator&)>;

Tensor F32(World& world, int64_t count) { return InputTensor<float>(world, world.rank(), count); }

struct Disagreement {
  Call rank0;
  Call others;
  std::vector<std::string> expected;  // in the message; of the others it names whoever was heard first
};

std::vector<Disagreement> Disagreements() {
  const auto all_reduce = [](int64_t count, ReduceOp op) -> Call {
    return
        [=](World& world, Communicator& group) { group.AllReduce(F32(world, count), F32(world, count), op); };
  };
  const auto all_gather = [](std::vector<int64_t> counts) -> Call {
    return [=](World& world, Communicator& group) {
      group.AllGather(F32(world, counts[group.rank()]),
                      F32(world, std::accumulate(counts.begin(), counts.end(), int64_t{0})), counts);
    };
  };
  const auto broadcast = [](int root, int64_t count) -> Call {
    return [=](World& world, Communicator& group) { group.Broadcast(F32(world, count), root); };
  };
  const Call f64 = [](World& world, Communicator& group) {
    const Tensor tensor = InputTensor<double>(world, 0, 4);
    group.AllReduce(tensor, tensor, ReduceOp::kSum);
  };
  const Call barrier = [](World&, Communicator& group) { group.Barrier(); };
  const auto all_to_all = [](std::vector<int64_t> send, std::vector<int64_t> receive) -> Call {
    return [=](World& world, Communicator& group) {
      group.AllToAll(F32(world, send[0] + send[1] + send[2]), send,
                     F32(world, receive[0] + receive[1] + receive[2]), receive);
    };
  };
  return {
      {all_reduce(4, ReduceOp::kSum),
       all_reduce(5, ReduceOp::kSum),
       {"rank 0 called all_reduce(f32, sum, count 4)", " called all_reduce(f32, sum, count 5)"}},
      {all_reduce(4000, ReduceOp::kSum), all_reduce(4001, ReduceOp::kSum), {"count 4000", "count 4001"}},
      {all_reduce(4, ReduceOp::kSum),
       all_reduce(4, ReduceOp::kMax),
       {"all_reduce(f32, sum, count 4)", "all_reduce(f32, max, count 4)"}},
      {all_reduce(4, ReduceOp::kSum), f64, {"all_reduce(f32,", "all_reduce(f64,"}},
      {barrier, all_reduce(4, ReduceOp::kSum), {"rank 0 called barrier()", " called all_reduce("}},
      {all_gather({1, 2, 3}), all_gather({1, 3, 2}), {"counts [1, 2, 3]", "counts [1, 3, 2]"}},
      {broadcast(0, 3),
       broadcast(1, 3),
       {"broadcast(f32, root 0, count 3)", "broadcast(f32, root 1, count 3)"}},
      {broadcast(0, 3), all_gather({1, 1, 1}), {"broadcast(", "all_gather("}},
      // One pair alone disagrees: of two, the one named would depend on who was heard first.
      {all_to_all({1, 2, 3}, {1, 1, 1}),
       all_to_all({1, 1, 1}, {2, 1, 1}),
       {"rank 0 sends 3 elements to rank 2, which expects 2"}},
  };
}

TEST_P(CommConformance, DisagreementNamesBothSidesOnEveryMember) {
  for (const Disagreement& disagreement : Disagreements()) {
    Run(3, [&](World& world) {
      const auto group = world.NewGroup("dp", AllRanks(world));
      const Tensor agreed = F32(world, 1);
      group->AllReduce(agreed, agreed, ReduceOp::kSum);
      const Call& call = world.rank() == 0 ? disagreement.rank0 : disagreement.others;
      const std::string message = ErrorOf(StatusCode::kInvalidArgument, [&] {
        call(world, *group);
        AwaitDifference(world, *group);
      });
      ExpectContains(message, disagreement.expected);
      ExpectContains(message, {"group 'dp'", "collective #2"});
      // They have lost step: the group is dead, and says why.
      Expect(ErrorOf(StatusCode::kInvalidArgument, [&] { group->Barrier(); }) == message, "another error");
    });
  }
}

TEST_P(CommConformance, AnAsynchronousDisagreementIsReadFromTheWorkOrAtTheNextCall) {
  const int64_t more = 4 + GetParam().told_difference;
  const std::vector<std::string> both = {"count 4", absl::StrCat("count ", more)};
  Run(2, [=](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const Tensor tensor = F32(world, world.rank() == 0 ? 4 : more);
    const Work work = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
    const std::string message = ErrorOf(StatusCode::kInvalidArgument, [&] { AwaitOnHost(world, work); });
    ExpectContains(message, both);
    Expect(work.Test(), "a failed Work has finished");
    Expect(ErrorOf(StatusCode::kInvalidArgument, [&] { work.Wait(); }) == message,
           "an error may be read twice");

    const auto other = world.NewGroup("tp", AllRanks(world));
    other->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});  // dropped: neither blocks nor throws
    const std::string next = ErrorOf(StatusCode::kInvalidArgument, [&] { other->Barrier(); });
    ExpectContains(next, both);
    ExpectContains(next, {"group 'tp'"});
  });
}

TEST_P(CommConformance, MessagesOfOtherLengthsFailAtBothEnds) {
  const int64_t more = 4 + GetParam().told_difference;
  Run(2, [=](World& world) {
    const auto group = world.NewGroup("pp", AllRanks(world));
    const std::string message = ErrorOf(StatusCode::kInvalidArgument, [&] {
      if (world.rank() == 0) group->Send(F32(world, 4), 1);
      if (world.rank() == 1) group->Recv(F32(world, more), 0);
      AwaitError(world, *group);
    });
    ExpectContains(message, {"group 'pp'", "rank 0 sent 16 bytes to rank 1",
                             absl::StrCat("expected ", 4 * more, " bytes")});
  });
}

struct Misuse {
  Call call;
  std::vector<std::string> expected;
};

std::vector<Misuse> Misuses() {
  const auto sum = ReduceOp::kSum;
  return {
      {[=](World& w, Communicator& g) { g.AllReduce(Tensor(), F32(w, 1), sum); },
       {"all_reduce", "input is undefined"}},
      {[=](World& w, Communicator& g) { g.AllReduce(F32(w, 1), Tensor(), sum); }, {"output is undefined"}},
      {[=](World& w, Communicator& g) { g.AllReduce(F32(w, 4), F32(w, 5), sum); },
       {"output f32[5] has 5 elements, expected 4"}},
      {[=](World& w, Communicator& g) { g.AllReduce(F32(w, 4), InputTensor<double>(w, 0, 4), sum); },
       {"input is f32[4], output f64[4]"}},
      {[=](World& w, Communicator& g) {
         const Tensor t = F32(w, 6).Reshape({2, 3}).Transpose(0, 1);
         g.AllReduce(t, t, sum);
       },
       {"f32[3, 2] is not contiguous"}},
      {[=](World& w, Communicator& g) {
         const Tensor t = F32(w, 6);
         g.AllReduce(t.Slice(0, 0, 4), t.Slice(0, 1, 4), sum);
       },
       {"input and output overlap"}},
      {[](World& w, Communicator& g) {
         g.AllGather(F32(w, 1), F32(w, 3), {1, 1, 1});
       },
       {"all_gather", "counts has 3 numbers, expected one for each of the 2 members"}},
      {[](World& w, Communicator& g) {
         g.AllGather(F32(w, 2), F32(w, 2), {1, 1});
       },
       {"input f32[2] has 2 elements, expected 1"}},
      {[](World& w, Communicator& g) {
         g.AllGather(F32(w, 1), F32(w, 3), {1, 1});
       },
       {"output f32[3] has 3 elements, expected 2"}},
      {[=](World& w, Communicator& g) {
         g.ReduceScatter(F32(w, 2), F32(w, 1), {3, -1}, sum);
       },
       {"reduce_scatter", "counts holds -1, below 0"}},
      {[](World& w, Communicator& g) {
         const Tensor t = F32(w, 2);
         g.AllToAll(t, {1, 1}, t, {1, 1});
       },
       {"all_to_all", "input and output overlap"}},
      {[](World& w, Communicator& g) {
         g.AllToAll(F32(w, 3), {2, 1}, F32(w, 3), {1, 2});
       },
       {"this rank sends itself ", " elements and expects "}},
      {[](World& w, Communicator& g) { g.Broadcast(F32(w, 2), 2); },
       {"broadcast", "root 2 is not a group rank: the group has 2 members"}},
      {[](World& w, Communicator& g) { g.Send(F32(w, 2), -1); },
       {"send_recv", "receiver -1 is not a group rank"}},
      {[](World& w, Communicator& g) { g.Recv(F32(w, 2), g.rank()); },
       {"this rank sends itself 0 messages and receives 1"}},
      {[](World& w, Communicator& g) {
         g.SendRecv({{g.rank(), F32(w, 2)}}, {{g.rank(), F32(w, 3)}});
       },
       {"this rank sends itself 8 bytes and receives them into 12"}},
  };
}

TEST_P(CommConformance, MisuseIsToldFromTheCallAndLeavesTheGroupUsable) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    for (const Misuse& misuse : Misuses()) {
      const std::string message = ErrorOf(StatusCode::kInvalidArgument, [&] { misuse.call(world, *group); });
      ExpectContains(message, misuse.expected);
      ExpectContains(message, {"group 'dp'"});
    }
    const Tensor tensor = F32(world, 4);
    if (world.rank() == 0) ErrorOf(StatusCode::kInvalidArgument, [&] { group->Broadcast(tensor, 9); });
    group->AllReduce(tensor, tensor, ReduceOp::kSum);
    Expect(OnHost(tensor).data<float>()[3] == InputValue<float>(0, 3) + InputValue<float>(1, 3),
           "wrong sum after misuse");
  });
}

// Ranks 1 and 3 of a new group of ranks 1 to 4 wait for ranks 2 and 4, which do not come. Returns the error,
// which is the same on all four; empty on rank 0.
std::string ErrorOfATimeout(World& world, Communicator& gate, std::chrono::milliseconds timeout) {
  const auto group = world.rank() == 0 ? nullptr : world.NewGroup("dp", {1, 2, 3, 4});
  if (group != nullptr) group->Barrier();
  gate.Barrier();  // all are out of that one
  if (group == nullptr) {
    gate.Barrier();
    return "";
  }
  group->set_timeout(timeout);
  if (world.rank() == 2 || world.rank() == 4) {
    gate.Barrier();  // until the others have given up
    return ErrorOf(StatusCode::kDeadlineExceeded, [&] { group->Barrier(); });
  }
  const Tensor tensor = F32(world, 3);
  const std::string message = ErrorOf(StatusCode::kDeadlineExceeded, [&] {
    group->AllReduce(tensor, tensor, ReduceOp::kSum);
    AwaitError(world, *group);
  });
  Expect(ErrorOf(StatusCode::kDeadlineExceeded, [&] { group->Barrier(); }) == message, "another error");
  gate.Barrier();
  return message;
}

// True on every rank if `condition` is true on one.
bool IsTrueOnOne(World& world, Communicator& group, bool condition) {
  const Tensor tensor = MakeTensor<int32_t>(world, 1, [&](int32_t* value) { *value = condition; });
  group.AllReduce(tensor, tensor, ReduceOp::kMax);
  return OnHost(tensor).data<int32_t>()[0] != 0;
}

// On a busy machine rank 1 or 3 may not come in time either, and is named rightly. Then the timeout was too
// short.
TEST_P(CommConformance, TimeoutNamesTheMissingWorldRanks) {
  Run(5, [](World& world) {
    const auto gate = world.NewGroup("gate", AllRanks(world));
    std::chrono::milliseconds timeout(60);
    for (;; timeout *= 4) {
      const std::string message = ErrorOfATimeout(world, *gate, timeout);
      const bool is_short = message.find("world ranks [1, 2, 4] have not arrived") != std::string::npos ||
                            message.find("world ranks [2, 3, 4] have not arrived") != std::string::npos;
      if (world.rank() != 0) {
        ExpectContains(message, {"group 'dp'", "collective #2", "all_reduce(f32, sum, count 3)",
                                 absl::StrCat("waited ", timeout.count(), " ms")});
        if (!is_short) ExpectContains(message, {"world ranks [2, 4] have not arrived"});
      }
      if (!IsTrueOnOne(world, *gate, is_short)) return;
      Expect(timeout < std::chrono::seconds(10), "named in spite of ", timeout.count(), " ms: ", message);
    }
  });
}

TEST_P(CommConformance, TimeoutOfAMessageNamesTheOtherEnd) {
  const int64_t count = 2 + GetParam().told_difference;
  for (bool receives : {false, true}) {
    Run(2, [=](World& world) {
      const auto gate = world.NewGroup("gate", AllRanks(world));
      const auto group = world.NewGroup("pp", AllRanks(world));
      group->set_timeout(std::chrono::milliseconds(30));
      if (world.rank() == 0) {
        const std::string message = ErrorOf(StatusCode::kDeadlineExceeded, [&] {
          receives ? group->Recv(F32(world, count), 1) : group->Send(F32(world, count), 1);
          AwaitError(world, *group);
        });
        ExpectContains(message, {"group 'pp'", "send_recv #1", "waited 30 ms", "world ranks [1]"});
      }
      gate->Barrier();
    });
  }
}

TEST_P(CommConformance, AbortReleasesEveryoneAndEndsTheGroup) {
  Run(3, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const auto issued =
        world.rank() == 1 ? nullptr : world.NewGroup("issued", {0, 2});  // rank 0 has, before the abort
    // Of groups that overlap, the first use may wait for all members.
    group->Barrier();
    if (issued != nullptr) issued->Barrier();
    const Tensor tensor = F32(world, 5000);
    std::string message;
    if (world.rank() == 2) {
      issued->Barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      group->Abort("the disk is full");
      message = ErrorOf(StatusCode::kAborted, [&] { group->Barrier(); });
    } else if (world.rank() == 1) {
      message = ErrorOf(StatusCode::kAborted, [&] {
        group->AllReduce(tensor, tensor, ReduceOp::kSum);
        AwaitError(world, *group);
      });
    } else {
      const Work work = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
      const Work behind = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
      issued->Barrier();
      message = ErrorOf(StatusCode::kAborted, [&] { AwaitOnHost(world, behind); });
      ErrorOf(StatusCode::kAborted, [&] { work.Wait(); });
    }
    ExpectContains(message, {"group 'dp'", "the disk is full"});
    ErrorOf(StatusCode::kAborted, [&] { group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}); });
  });
}

TEST_P(CommConformance, AThrowingRankReleasesTheOthersAndItsErrorIsTheOneRethrown) {
  const std::string message = ErrorOf(StatusCode::kNotFound, [&] {
    Run(4, [](World& world) {
      const auto group = world.NewGroup("dp", AllRanks(world));
      const auto half =
          world.NewGroup("half", world.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
      const Tensor tensor = F32(world, 5000);
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
      group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = world.rank() == 1});
      if (world.rank() == 1) Throw(StatusCode::kNotFound, "no such file");
      if (world.rank() == 0) half->AllReduce(tensor, tensor, ReduceOp::kSum);
      for (;;) group->Barrier();
    });
  });
  EXPECT_EQ(message, "rank 1: no such file");
}

// Rank 1 comes late enough for rank 0 to have looked at the time.
TEST_P(CommConformance, ATimeoutMayBeForEver) {
  Run(2, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    constexpr std::chrono::milliseconds kForEver = std::chrono::milliseconds::max();
    for (const bool of_the_call : {false, true}) {
      group->set_timeout(of_the_call ? std::chrono::minutes(1) : kForEver);
      const CommOptions options = {.timeout = of_the_call ? kForEver : std::chrono::milliseconds(0)};
      const Tensor tensor = InputTensor<float>(world, 0, 5);
      const Tensor sum = OutputTensor<float>(world, 5);
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
      AwaitOnHost(world, group->AllReduce(tensor, sum, ReduceOp::kSum, options));
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
      AwaitOnHost(world, world.rank() == 0 ? group->Recv(sum, 1, options) : group->Send(tensor, 0, options));
    }
  });
}

TEST_P(CommConformance, ACallMayHaveATimeoutOfItsOwn) {
  Run(3, [](World& world) {
    const auto group = world.NewGroup("late", AllRanks(world));
    const auto lives = world.NewGroup("lives", AllRanks(world));
    const Tensor tensor = InputTensor<float>(world, 0, 5);
    ExpectContains(ErrorOf(absl::StatusCode::kInvalidArgument,
                           [&] {
                             group->AllReduce(tensor, tensor, ReduceOp::kSum,
                                              {.timeout = std::chrono::milliseconds(-1)});
                           }),
                   {"group 'late': all_reduce: timeout is -1 ms, expected at least 0"});
    if (world.rank() != 1) {
      const std::string message = ErrorOf(absl::StatusCode::kDeadlineExceeded, [&] {
        AwaitOnHost(world, group->AllReduce(tensor, tensor, ReduceOp::kSum,
                                            {.async = true, .timeout = std::chrono::milliseconds(60)}));
      });
      ExpectContains(message, {"group 'late', collective #1, all_reduce(f32, sum, count 5): world rank",
                               "waited 60 ms; world ranks ["});
      // The other one that calls may be late itself.
      const auto names = [&](const char* ranks) { return message.find(ranks) != std::string::npos; };
      Expect(
          names("[1] have not arrived") || names(world.rank() == 0 ? "[1, 2] have not" : "[0, 1] have not"),
          "somebody else is missing: ", message);
    }
    lives->Barrier();
    Expect(group->timeout() == lives->timeout(), "the group's timeout is another");
  });
}

}  // namespace
}  // namespace weft
