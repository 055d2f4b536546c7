// What the `gloo` backend promises beyond the contract: its bits, how pairs are connected, and peers that are
// processes and end in every way.

#include "runtime/comm/gloo/communicator.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <limits>
#include <numeric>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/gloo/gloo_ranks.h"

namespace weft {
namespace {

using testing::HasSubstr;

Tensor Filled(World& world, int64_t count, float value) {
  const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {count});
  std::fill_n(tensor.data<float>(), count, value);
  return tensor;
}

std::vector<int> AllRanks(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// A number that the processes of a test share.
class SharedNumber {
 public:
  SharedNumber()
      : number_(new (mmap(nullptr, sizeof(*number_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                          0)) std::atomic<int64_t>(0)) {}
  ~SharedNumber() { munmap(number_, sizeof(*number_)); }
  std::atomic<int64_t>& operator*() const { return *number_; }

 private:
  std::atomic<int64_t>* number_;
};

struct PathCase {
  std::string name;
  std::function<GlooOptions(int)> options;
};
void PrintTo(const PathCase& path, std::ostream* out) { *out << path.name; }

class GlooPathTest : public testing::TestWithParam<PathCase> {};

INSTANTIATE_TEST_SUITE_P(, GlooPathTest,
                         testing::Values(PathCase{"Memory", [](int) { return GlooOptions(); }},
                                         PathCase{"Tcp", OverTcp}, PathCase{"TwoToAHost", TwoToAHost}),
                         [](const auto& info) { return info.param.name; });

// What `rank` gets of every kind of collective, as bytes; blocks and chunks of both transports are exceeded.
uint64_t DigestOfEveryKind(World& world) {
  const auto group = world.NewGroup("dp", AllRanks(world));
  const int n = world.size();
  const int me = world.rank();
  uint64_t digest = 14695981039346656037u;
  const auto add = [&](const Tensor& tensor) {
    const auto* const bytes = static_cast<const uint8_t*>(tensor.data());
    for (int64_t i = 0; i < tensor.num_bytes(); ++i) digest = (digest ^ bytes[i]) * 1099511628211u;
  };
  const auto input = [&](DType dtype, int64_t count) {
    const Tensor tensor = Tensor::Empty(world.allocator(), dtype, {count});
    for (int64_t i = 0; i < count; ++i) {
      const float value = 1.0f / static_cast<float>(1 + (i * 7 + me * 13) % 1009);
      if (dtype == DType::kF32) tensor.data<float>()[i] = value;
      if (dtype == DType::kBF16) tensor.data<BFloat16>()[i] = BFloat16(value);
    }
    return tensor;
  };
  for (int64_t count : {3, 1000, 40001, 1300007}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<int64_t> counts(n);
      for (int rank = 0; rank < n; ++rank) counts[rank] = count * (rank + 1) / n - count * rank / n;
      const Tensor whole = input(dtype, count);
      const Tensor output = Tensor::Empty(world.allocator(), dtype, {count});
      const Tensor piece = Tensor::Empty(world.allocator(), dtype, {counts[me]});
      group->AllReduce(whole, output, ReduceOp::kSum);
      add(output);
      group->ReduceScatter(whole, piece, counts, ReduceOp::kAvg);
      add(piece);
      group->AllGather(piece, output, counts);
      add(output);
      group->AllReduce(whole, whole, ReduceOp::kAvg);
      add(whole);
      group->Broadcast(whole, n - 1);
      add(whole);
      group->Reduce(whole, output, ReduceOp::kMax, 0);
      if (me == 0) add(output);
    }
  }
  return digest;
}

TEST_P(GlooPathTest, ItsBitsAreThoseOfLocal) {
  constexpr int kRanks = 4;
  std::vector<uint64_t> expected(kRanks);
  RunRanks(kRanks, [&](World& world) { expected[world.rank()] = DigestOfEveryKind(world); },
           {.threads_per_rank = 1});
  EXPECT_NE(expected[0], expected[1]);
  RunGlooRanks(kRanks, [&](GlooWorld& world) { EXPECT_EQ(DigestOfEveryKind(world), expected[world.rank()]); },
               {.hub = GetParam().options});
}

// Runs all-reduces on four ranks until rank 2 has met with `end`, and returns what the others reported.
std::vector<RankOutcome> EndRankTwo(const PathCase& path, const std::function<void()>& end,
                                    const SharedNumber& ended_ns, std::chrono::milliseconds timeout) {
  return RunGlooProcesses(4,
                          [&](GlooWorld& world) {
                            const auto group = world.NewGroup("dp", AllRanks(world));
                            const auto tensor = Filled(world, 30000, 0);
                            for (int i = 0;; ++i) {
                              if (world.rank() == 2 && i == 20) {
                                *ended_ns = std::chrono::steady_clock::now().time_since_epoch().count();
                                end();
                                return;
                              }
                              group->AllReduce(tensor, tensor, ReduceOp::kSum);
                            }
                          },
                          {.hub = path.options, .timeout = timeout, .deadline = std::chrono::seconds(60)});
}

// All but rank 2 have thrown an error of `code`, long before a timeout of a minute.
void ExpectErrorsOfOthers(const std::vector<RankOutcome>& outcomes, absl::StatusCode code,
                          const std::string& part, int64_t ended_ns) {
  constexpr int64_t kBoundNs = 30'000'000'000;
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  int64_t last_ns = 0;
  for (int rank : {0, 1, 3}) {
    ASSERT_TRUE(outcomes[rank].error.has_value())
        << "rank " << rank << " ended by signal " << outcomes[rank].signal;
    EXPECT_EQ(outcomes[rank].error->code(), code) << outcomes[rank].error->message();
    EXPECT_THAT(outcomes[rank].error->message(), HasSubstr("group 'dp', collective #21"));
    EXPECT_THAT(outcomes[rank].error->message(), HasSubstr(part));
    first_ns = std::min(first_ns, outcomes[rank].error_ns);
    last_ns = std::max(last_ns, outcomes[rank].error_ns);
  }
  EXPECT_LT(last_ns - first_ns, kBoundNs) << "the last rank after the first";
  EXPECT_LT(first_ns - ended_ns, kBoundNs) << "the first rank after the end";
}

TEST_P(GlooPathTest, AKilledPeerIsAnErrorOnEveryRank) {
  const SharedNumber ended_ns;
  const auto outcomes = EndRankTwo(
      GetParam(), [] { raise(SIGKILL); }, ended_ns, std::chrono::minutes(1));
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  ExpectErrorsOfOthers(outcomes, absl::StatusCode::kAborted, "world rank 2", *ended_ns);
}

TEST_P(GlooPathTest, AnEarlyExitIsAnErrorOnEveryRank) {
  const SharedNumber ended_ns;
  const auto outcomes = EndRankTwo(
      GetParam(), [] { _exit(0); }, ended_ns, std::chrono::minutes(1));
  EXPECT_EQ(outcomes[2].exit_code, 0);
  ExpectErrorsOfOthers(outcomes, absl::StatusCode::kAborted, "world rank 2", *ended_ns);
}

// On a busy machine others may not come in time either, before rank 2 stops or after. Then the timeout was
// too short.
TEST_P(GlooPathTest, AStoppedPeerIsNamedAtTheTimeout) {
  const SharedNumber ended_ns;
  std::chrono::milliseconds timeout(700);
  const auto run = [&] {
    return EndRankTwo(
        GetParam(), [] { raise(SIGSTOP); }, ended_ns, timeout);
  };
  const auto is_short = [](const RankOutcome& outcome) {
    const std::string message = outcome.error.has_value() ? outcome.error->message() : "";
    return message.find("collective #21,") == std::string::npos ||
           message.find("world ranks [2] have") == std::string::npos;
  };
  std::vector<RankOutcome> outcomes = run();
  for (; is_short(outcomes[0]) && timeout < std::chrono::seconds(10); timeout *= 4, outcomes = run())
    continue;
  EXPECT_TRUE(outcomes[2].stopped);
  ExpectErrorsOfOthers(outcomes, absl::StatusCode::kDeadlineExceeded,
                       absl::StrCat("waited ", timeout.count(), " ms; world ranks [2] have not arrived"),
                       *ended_ns);
}

TEST_P(GlooPathTest, APeerThatReturnsHasLeftTheGroup) {
  const SharedNumber ended_ns;
  const auto outcomes = EndRankTwo(
      GetParam(), [] {}, ended_ns, std::chrono::minutes(1));
  EXPECT_EQ(outcomes[2].exit_code, 0);
  ExpectErrorsOfOthers(outcomes, absl::StatusCode::kAborted, "waits for world ranks [2], which have left",
                       *ended_ns);
}

// Rank 2 dies in a reduction of more than its ring holds. When the root has read what it left as far as its ring's end, rank 1's ring
// ends 8 KiB further on: the root has few bytes of rank 1, which has sent enough, and many of rank 2, which sends no more.
TEST(GlooGroupTest, APeerThatDiesWithinALargeReductionIsNoticed) {
  constexpr int64_t kRing = 512 << 10;    // of one peer of two
  constexpr int64_t kHeaders = 128 + 64;  // of the all-gather and of the reduction
  const std::vector<int64_t> counts = {0, kRing / 2 - (8 << 10) - kHeaders, kRing / 2 - kHeaders};
  const SharedNumber dies;
  const auto outcomes = RunGlooProcesses(
      3,
      [&](GlooWorld& world) {
        const auto bytes = [&](int64_t count) {
          return Tensor::Empty(world.allocator(), DType::kU8, {count});
        };
        const auto group = world.NewGroup("dp", {0, 1, 2});
        group->AllGather(bytes(counts[world.rank()]), bytes(counts[1] + counts[2]), counts);
        std::thread killer;
        if (world.rank() == 2) {
          killer = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));  // by then its ring is full
            *dies = 1;
            kill(getpid(), SIGKILL);
          });
        }
        while (world.rank() == 0 && *dies == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        group->Reduce(bytes(8 * kRing), bytes(8 * kRing), ReduceOp::kSum, 0);
      },
      {.timeout = std::chrono::seconds(20)});
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  for (int rank : {0, 1}) {
    ASSERT_TRUE(outcomes[rank].error.has_value()) << "rank " << rank;
    EXPECT_EQ(outcomes[rank].error->code(), absl::StatusCode::kAborted) << outcomes[rank].error->message();
    EXPECT_THAT(outcomes[rank].error->message(), HasSubstr("world rank 2 is gone"));
  }
}

TEST_P(GlooPathTest, WhoWaitsForAMessageOfARankThatHasEndedIsTold) {
  const auto outcomes = RunGlooProcesses(2,
                                         [](GlooWorld& world) {
                                           const auto group = world.NewGroup("pp", {0, 1});
                                           // So that both have joined.
                                           if (world.rank() == 0) group->Send(Filled(world, 3, 0), 1);
                                           if (world.rank() == 0) group->Recv(Filled(world, 3, 0), 1);
                                           if (world.rank() == 1) group->Recv(Filled(world, 3, 0), 0);
                                           if (world.rank() == 1) _exit(0);
                                         },
                                         {.hub = GetParam().options});
  ASSERT_TRUE(outcomes[0].error.has_value());
  EXPECT_EQ(outcomes[0].error->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(outcomes[0].error->message(), HasSubstr("group 'pp', send_recv #"));
  EXPECT_THAT(outcomes[0].error->message(), HasSubstr("world rank 1"));
}

// The last collective's bytes are on their way when a rank drops its group and ends: its peers get them.
TEST_P(GlooPathTest, WhoLeavesAtOnceOwesNothing) {
  for (int round = 0; round < 5; ++round) {
    RunGlooRanks(4,
                 [&](GlooWorld& world) {
                   const auto group = world.NewGroup("dp", AllRanks(world));
                   const Tensor tensor =
                       Filled(world, round % 2 == 0 ? 100 : 300000, static_cast<float>(world.rank()));
                   group->AllReduce(tensor, tensor, ReduceOp::kSum);
                   EXPECT_EQ(tensor.data<float>()[99], 6);
                 },
                 {.hub = GetParam().options});
  }
}

TEST_P(GlooPathTest, GroupsThatMembersNameOtherwiseAreRefused) {
  const auto outcomes = RunGlooProcesses(2,
                                         [](GlooWorld& world) {
                                           world.NewGroup(world.rank() == 0 ? "dp" : "tp", {0, 1});
                                         },
                                         {.hub = GetParam().options});
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_THAT(outcome.error->message(), HasSubstr("members must make their groups in the same order"));
  }
}

TEST(GlooGroupTest, MembersThatDoNotComeAreNamed) {
  const auto outcomes = RunGlooProcesses(
      3,
      [](GlooWorld& world) {
        if (world.rank() == 0) world.NewGroup("dp", {0, 1, 2});
      },
      {.hub = [](int) { return GlooOptions{.connect_timeout = std::chrono::milliseconds(300)}; }});
  ASSERT_TRUE(outcomes[0].error.has_value());
  EXPECT_EQ(outcomes[0].error->message(),
            "new group 'dp': world rank 0 waited 300 ms; world ranks [1, 2] have not made it");
}

// milliseconds::max() added to the present is the past.
TEST_P(GlooPathTest, WhoWaitsForMembersForEverMeetsThem) {
  const auto wait_for_ever = [](int rank) {
    GlooOptions options = GetParam().options(rank);
    options.connect_timeout = std::chrono::milliseconds::max();
    return options;
  };
  const auto outcomes = RunGlooProcesses(2,
                                         [](GlooWorld& world) {
                                           // The other one waits for it.
                                           if (world.rank() == 1)
                                             std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                           world.NewGroup("dp", {0, 1})->Barrier();
                                         },
                                         {.hub = wait_for_ever});
  RethrowFirst(outcomes);
}

TEST(GlooGroupTest, AbortAllEndsTheWaitForMembers) {
  const auto outcomes = RunGlooProcesses(2, [](GlooWorld& world) {
    if (world.rank() == 1) return;
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world.hub().AbortAll("the launcher says stop");
    });
    const std::string message = MessageOf([&] { world.NewGroup("dp", {0, 1}); });
    aborter.join();
    EXPECT_EQ(message, "new group 'dp': the launcher says stop");
  });
  RethrowFirst(outcomes);
}

// A folder for the segments, to see what is left in it.
TEST(GlooSharedMemoryTest, NothingIsLeftBehindByAKilledRank) {
  const ShortFolder folder;
  const auto outcomes =
      RunGlooProcesses(3,
                       [](GlooWorld& world) {
                         const auto group = world.NewGroup("dp", {0, 1, 2});
                         group->Barrier();
                         raise(SIGKILL);
                       },
                       {.hub = [&](int) { return GlooOptions{.shared_memory_folder = folder.path()}; }});
  for (const RankOutcome& outcome : outcomes) EXPECT_EQ(outcome.signal, SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

void ExpectSumOverTcp(GlooWorld& world) {
  const auto group = world.NewGroup("dp", AllRanks(world));
  const Tensor tensor = Filled(world, 50000, static_cast<float>(world.rank() + 1));
  group->AllReduce(tensor, tensor, ReduceOp::kSum);
  EXPECT_EQ(tensor.data<float>()[49999], 6);
}

// One of three cannot: it is reached by TCP, and the others still share memory.
TEST(GlooSharedMemoryTest, AFolderThatCannotBeUsedFallsBackToTcp) {
  const auto options = [](int rank) {
    GlooOptions options = {.address = "127.0.0.1"};
    if (rank == 1) options.shared_memory_folder = "/nonexistent";
    return options;
  };
  RunGlooRanks(3, ExpectSumOverTcp, {.hub = options});
}

TEST(GlooSharedMemoryTest, NoRoomForASegmentFallsBackToTcp) {
  const auto with_little_room = [](GlooWorld& world) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ExpectSumOverTcp(world);
  };
  const auto options = [](int) { return GlooOptions{.address = "127.0.0.1"}; };
  RunGlooRanks(3, with_little_room, {.hub = options});

  const auto outcomes = RunGlooProcesses(
      3, with_little_room, {.hub = [](int) { return GlooOptions{.path = GlooPath::kSharedMemory}; }});
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error.has_value());
    EXPECT_EQ(outcome.error->code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(outcome.error->message(), HasSubstr("not all members share memory: cannot get "));
  }
}

}  // namespace
}  // namespace weft
