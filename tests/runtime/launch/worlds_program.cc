// One rank of worlds by arguments, for their tests: worlds_program ADDRESS RANK SIZE TIMES [TIMEOUT_MS]. Joins TIMES worlds
// one after another at the same place; in each it counts ranks through an all-reduce, and prints the sum. In every second world
// it has the number that is opposite to RANK.
//
// worlds_program spawn HOW RANKS: spawns ranks of this program, which count; HOW happens to rank 1 after it: "well"
// nothing, "throw", "code", "kill", "start": it starts this program anew, to spawn ranks, in vain, "unset": the same without its
// RANK and WORLD_SIZE, or "ignore": rank 0 throws, and rank 1 ignores SIGTERM and sleeps.
//
// worlds_program hear ADDRESS RANK SIZE [bad]: joins, waits until it hears that another rank has failed, and prints how. "bad":
// by options of which no world can be made.
//
// worlds_program stray ADDRESS RANK SIZE: joins, and does not catch the error.
//
// worlds_program again ADDRESS RANK: rank 1 fails in the first world; both join the next by another generation.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/launch/join_world.h"
#include "runtime/launch/spawn_ranks.h"
#include "runtime/tensor/tensor.h"

namespace weft {
namespace {

void Count(World& world) {
  std::vector<int> ranks(world.size());
  for (int rank = 0; rank < world.size(); ++rank) ranks[rank] = rank;
  const auto group = world.NewGroup("all", ranks);
  const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {1});
  tensor.data<float>()[0] = static_cast<float>(world.rank() + 1);
  group->AllReduce(tensor, tensor, ReduceOp::kSum);
  std::printf("rank %d of %d: %g\n", world.rank(), world.size(),
              static_cast<double>(tensor.data<float>()[0]));
  std::fflush(stdout);
}

void Join(const std::string& address, int rank, int size, int times, int64_t timeout_ms) {
  for (int time = 0; time < times; ++time) {
    const std::unique_ptr<World> world = JoinWorld({.rank = time % 2 == 0 ? rank : size - 1 - rank,
                                                    .size = size,
                                                    .address = address,
                                                    .timeout = std::chrono::milliseconds(timeout_ms)});
    Count(*world);
  }
}

void JoinAgain(const std::string& address, int rank) {
  try {
    const std::unique_ptr<World> world = JoinWorld({.rank = rank, .size = 2, .address = address});
    Count(*world);
    if (rank == 1) Throw(absl::StatusCode::kDataLoss, "the disk is full");
    Count(*world);
    std::printf("no error\n");
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
  }
  const std::unique_ptr<World> world =
      JoinWorld({.rank = rank, .size = 2, .address = address, .generation = 1});
  Count(*world);
}

void Hear(const std::string& address, int rank, int size, bool bad) {
  WorldOptions options;
  if (bad) options.comm_timeout = std::chrono::milliseconds(0);
  const std::unique_ptr<World> world = JoinWorld({.rank = rank, .size = size, .address = address}, options);
  try {
    world->store().Get("never", std::chrono::minutes(5));
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
  }
}

void Happen(const std::string& how, World& world) {
  Count(world);
  if (how == "ignore" && world.rank() == 1) {
    signal(SIGTERM, SIG_IGN);
    world.store().Set("ignores", "");
    while (true) sleep(60);
  }
  if (how == "ignore") world.store().Get("ignores", std::chrono::minutes(1));
  if (world.rank() != (how == "ignore" ? 0 : 1)) return;
  if (how == "throw" || how == "ignore") Throw(absl::StatusCode::kDataLoss, "the disk is full");
  if (how == "code") std::_Exit(9);
  if (how == "kill") raise(SIGKILL);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (how == "start") {
    WEFT_CHECK(std::system(absl::StrCat("'", program, "' spawn well 3").c_str()) != 0, "it has run");
  }
  if (how == "unset") {
    const std::string start = "env -u RANK -u WORLD_SIZE";
    WEFT_CHECK(std::system(absl::StrCat(start, " '", program, "' spawn well 2").c_str()) == 0,
               "it has failed");
  }
}

int Main(int argc, char** argv) {
  try {
    const std::string first = argc > 1 ? argv[1] : "";
    if (first == "spawn" && argc == 4) {
      return SpawnRanks(std::atoi(argv[3]), argc, argv,
                        [how = std::string(argv[2])](World& world) { Happen(how, world); },
                        {.grace = std::chrono::milliseconds(300)});
    }
    if (first == "hear" && (argc == 5 || argc == 6)) {
      Hear(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), /*bad=*/argc == 6);
      return 0;
    }
    if (first == "again" && argc == 4) {
      JoinAgain(argv[2], std::atoi(argv[3]));
      return 0;
    }
    WEFT_REQUIRE(argc == 5 || argc == 6, "expected ADDRESS RANK SIZE TIMES [TIMEOUT_MS]");
    Join(first, std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]),
         argc == 6 ? std::atoll(argv[5]) : 60'000);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "stray") {
    // Outside of any try: the process ends without unwinding, and says no farewell.
    weft::JoinWorld({.rank = std::atoi(argv[3]), .size = std::atoi(argv[4]), .address = argv[2]});
    return 0;
  }
  return weft::Main(argc, argv);
}
