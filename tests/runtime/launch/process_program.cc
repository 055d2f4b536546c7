// One rank of a job, for the tests of worlds of processes: process_program HOW [RANK]. Joins by
// World::FromEnv and takes all-reduces on axis dp until HOW happens on RANK. Prints "joined" when it has been
// through the first; an error goes to stderr, and the exit code is 1 then.
//
// HOW = again: in five worlds, one after another. Over MPI all of them leave no more communicators than one.
//
// HOW = late: two worlds without a collective; RANK comes to the second a second after the others.
//
// HOW = groups: all ranks have a group of another backend beside dp.
//
// HOW = keep: what the ranks have of a group outlives the world.
//
// HOW = slow: RANK waits until the file TEST_GO is there.
//
// HOW = store: the ranks count and greet each other through World::store; RANK throws, and the others wait for a key
// of its. HOW = count: the same, without the failure.
//
// HOW = files: the ranks open 200 files.
//
// HOW = train: 20 steps of a toy training whose state, a step and a value, rank 0 keeps in the file
// TEST_STATE; a new generation goes on from there. In the first generation RANK is killed in step 12. Rank 0
// prints the value at the end. TEST_KILLS="5,9": instead, in step 5 of the first generation and in step 9 of the second.
// TEST_NOTE_SAVE: every step is a save that the launcher is told of.

#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_world.h"
#include "runtime/tensor/tensor.h"

namespace weft {
namespace {

struct Job {
  std::string how;
  int rank = 0;  // that it happens to
};

void AllReduce(World& world, Communicator& group, int64_t count) {
  const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {count});
  for (int64_t i = 0; i < count; ++i) tensor.data<float>()[i] = static_cast<float>(world.rank() + 1);
  group.AllReduce(tensor, tensor, ReduceOp::kSum);
  const int n = group.size();
  WEFT_CHECK(tensor.data<float>()[count - 1] == static_cast<float>(n * (n + 1) / 2), "a wrong sum");
}

// What happens to one rank after a few collectives.
void Happen(const Job& job, World& world, Communicator& dp) {
  if (job.how == "kill") raise(SIGKILL);
  if (job.how == "stop") raise(SIGSTOP);
  if (job.how == "exit") std::_Exit(0);
  if (job.how == "code") std::_Exit(9);
  if (job.how == "throw") Throw(absl::StatusCode::kDataLoss, "the disk is full");
  if (job.how == "other") dp.Barrier();
  if (job.how == "size") AllReduce(world, dp, 77);
  if (job.how == "slow") {
    world.flight_recorder().SetActivity("data loader");
    const char* const go = std::getenv("TEST_GO");
    while (go != nullptr && !std::ifstream(go)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void RunRank(const Job& job, World& world) {
  std::vector<int> ranks(world.size());
  for (int rank = 0; rank < world.size(); ++rank) ranks[rank] = rank;
  const auto dp = world.NewGroup("dp", ranks);
  std::shared_ptr<Communicator> tp;
  if (job.how == "circle" && (world.rank() == 0 || world.rank() == world.size() - 1)) {
    tp = world.NewGroup("tp", {0, world.size() - 1});
  }
  if (job.how == "groups") {
    const auto cpu = world.NewGroup(
        "cpu", ranks, {.backend = Backend::kGloo, .timeout = std::chrono::milliseconds(30'000)});
    AllReduce(world, *cpu, 1000);
    WEFT_CHECK(cpu->timeout().count() == 30'000, "its timeout is ", cpu->timeout().count(), " ms");
    try {
      world.NewGroup("threads", ranks, {.backend = Backend::kLocal});
      WEFT_CHECK(false, "processes have threads' groups");
    } catch (const Error& error) {
      WEFT_CHECK(error.code() == absl::StatusCode::kInvalidArgument, error.message());
    }
  }
  AllReduce(world, *dp, 3);
  std::printf("joined\n");
  std::fflush(stdout);
  for (int step = 1; step <= 20; ++step) {
    if (step == 5 && world.rank() == job.rank) {
      if (tp != nullptr) tp->Barrier();
      Happen(job, world, *dp);
      if (job.how == "skip") continue;
      if (job.how == "return") return;
    }
    AllReduce(world, *dp, step % 2 == 0 ? 1000 : 300'000);
  }
  std::printf("done\n");
}

// What a model that outlives the world has of it.
struct Kept {
  std::shared_ptr<FlightRecorder> recorder;
  std::shared_ptr<Communicator> group;
};

void Keep(World& world, Kept* kept) {
  std::vector<int> ranks(world.size());
  for (int rank = 0; rank < world.size(); ++rank) ranks[rank] = rank;
  *kept = {world.shared_flight_recorder(), world.NewGroup("dp", ranks)};
  AllReduce(world, *kept->group, 3);
  AllReduce(world, *kept->group, 300'000);
}

void UseStore(const Job& job, World& world) {
  using std::chrono::minutes;
  Store& store = world.store();
  const auto waits = [](int rank) { return "waits " + std::to_string(rank); };
  if (job.how == "store" && world.rank() == job.rank) {
    // For all: the store goes with rank 0, and who has not joined by then never will.
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank != job.rank) store.Wait({waits(rank)}, minutes(1));
    }
    Throw(absl::StatusCode::kDataLoss, "the disk is full");
  }
  if (job.how == "store") {
    store.Set(waits(world.rank()), "");
    store.Get("of the rank that throws", minutes(5));
  }
  WEFT_CHECK(!store.TryGet("dead").has_value(), "the job's own keys show");
  store.Add("count", world.rank() + 1);
  store.Set(std::to_string(world.rank()), "hello");
  std::vector<std::string> keys;
  int sum = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    keys.push_back(std::to_string(rank));
    sum += rank + 1;
  }
  store.Wait(keys, minutes(1));
  WEFT_CHECK(store.Get("count", minutes(1)) == std::to_string(sum), "a wrong count");
  WEFT_CHECK(store.Get(keys.back(), minutes(1)) == "hello", "a wrong value");
  std::printf("counted\n");
}

// More than the soft limit that the test has set.
void OpenFiles() {
  for (int i = 0; i < 200; ++i)
    WEFT_CHECK(open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0, "file ", i, " is too many");
  std::printf("opened\n");
}

struct State {
  int step = 0;
  double value = 1;
};

State ReadState(const std::string& path) {
  State state;
  std::ifstream file(path);
  if (file) file >> state.step >> state.value;
  return state;
}

void WriteState(const std::string& path, const State& state) {
  const std::string draft = path + ".draft";
  {
    std::ofstream file(draft);
    file.precision(17);
    file << state.step << " " << state.value << "\n";
  }
  WEFT_CHECK(std::rename(draft.c_str(), path.c_str()) == 0, "cannot write ", path);
}

// The step of this generation in which the rank is killed; 0: none.
int KilledInStep(int generation) {
  const char* const kills = std::getenv("TEST_KILLS");
  const std::vector<std::string> steps = absl::StrSplit(kills == nullptr ? "12" : kills, ',');
  int step = 0;
  if (generation < static_cast<int>(steps.size())) {
    WEFT_CHECK(absl::SimpleAtoi(steps[generation], &step), "TEST_KILLS=", kills);
  }
  return step;
}

void Train(const Job& job, World& world) {
  std::vector<int> ranks(world.size());
  for (int rank = 0; rank < world.size(); ++rank) ranks[rank] = rank;
  const auto dp = world.NewGroup("dp", ranks);
  const std::string path = std::getenv("TEST_STATE");
  const int generation = std::atoi(std::getenv("TORCHELASTIC_RESTART_COUNT"));
  const int killed_in = KilledInStep(generation);
  State state = ReadState(path);
  dp->Barrier();  // nobody reads what is written below
  while (state.step < 20) {
    ++state.step;
    if (state.step == killed_in && world.rank() == job.rank) raise(SIGKILL);
    const Tensor gradient = Tensor::Empty(world.allocator(), DType::kF64, {1});
    gradient.data<double>()[0] = (world.rank() + 1) * 0.1 / state.step;
    dp->AllReduce(gradient, gradient, ReduceOp::kAvg);
    state.value -= gradient.data<double>()[0] * state.value;
    if (world.rank() != 0) continue;
    WriteState(path, state);
    if (std::getenv("TEST_NOTE_SAVE") != nullptr) NoteSave(world);
  }
  if (world.rank() == 0) std::printf("generation %d: %.17g\n", generation, state.value);
}

// The number that MPI gives to a new communicator, which is the lowest that is free; 0 without MPI.
int NextCommunicator() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) return 0;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_SELF, &comm);
  const int number = static_cast<int>(MPI_Comm_c2f(comm));
  MPI_Comm_free(&comm);
  return number;
}

int Main(int argc, char** argv) {
  const Job job = {argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 0};
  try {
    const char* const size = std::getenv("TEST_RANKS");
    WorldOptions options;
    if (const char* const timeout = std::getenv("TEST_TIMEOUT_MS")) {
      options.comm_timeout = std::chrono::milliseconds(std::atoi(timeout));
    }
    Kept kept;
    const auto run = [&](World& world) {
      if (job.how == "keep") return Keep(world, &kept);
      if (job.how == "files") return OpenFiles();
      if (job.how == "late") return;
      if (job.how == "store" || job.how == "count") return UseStore(job, world);
      job.how == "train" ? Train(job, world) : RunRank(job, world);
    };
    const int num_worlds = job.how == "again" ? 5 : job.how == "late" ? 2 : 1;
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const bool is_late = job.how == "late" && rank != nullptr && std::atoi(rank) == job.rank;
    std::vector<int> next;  // after each world
    for (int i = 0; i < num_worlds; ++i) {
      // Nothing has to come to an end within it.
      if (i > 0 && is_late) std::this_thread::sleep_for(std::chrono::seconds(1));
      RunWorld(size != nullptr ? std::atoi(size) : 1, run, options);
      next.push_back(NextCommunicator());
    }
    // When all worlds are over: MPI's end waits for all processes.
    WEFT_CHECK(next.back() <= next.front() + 3, "communicators are left over: after ", next.size(),
               " worlds the next has number ", next.back(), ", after one ", next.front());
    if (job.how == "late") std::printf("done\n");
    kept.group = nullptr;
    if (job.how == "keep") std::printf("let go\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
