#include "runtime/launch/spawn_ranks.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/error_file.h"
#include "runtime/base/random_id.h"
#include "runtime/base/start_program.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/process_world.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// Tells a rank that its parent, of this process number, has started it, and no other launcher.
constexpr char kSpawned[] = "WEFT_SPAWNED";
constexpr char kRunId[] = "spawn.";  // begins every job's

// What a launcher above this program has told it of another job and of that job's store. The ranks' own store is in this
// process, and is reached without TLS on the loopback.
constexpr std::array kOfAnotherJob = {"WEFT_STORE_CA",
                                      "WEFT_STORE_CERT",
                                      "WEFT_STORE_KEY",
                                      "WEFT_STORE_SERVER_NAME",
                                      "WEFT_STORE_GRACE_MS",
                                      "WEFT_SUSPICION_MS",
                                      "WEFT_SNAPSHOT_MEMORY",
                                      "TORCHELASTIC_USE_AGENT_STORE",
                                      "TORCHELASTIC_MAX_RESTARTS"};

// The ranks, from their start to their end; stops those that run when it ends.
class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    Signal(SIGKILL);
    for (const pid_t pid : pids_) {
      if (pid > 0) waitpid(pid, nullptr, 0);
    }
  }

  void Add(pid_t pid) { pids_.push_back(pid); }

  void Signal(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0 && IsOurs(pid)) kill(pid, signal);
    }
  }

  // A rank that has ended, and how, by wait's word.
  // Errors: FailedPrecondition if somebody else of this process has taken that word.
  std::optional<std::pair<int, int>> Reap() {
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      if (pids_[rank] <= 0) continue;
      int status = 0;
      const pid_t ended = waitpid(pids_[rank], &status, WNOHANG);
      const bool is_taken = ended < 0 && errno == ECHILD;
      if (ended != pids_[rank] && !is_taken) continue;
      pids_[rank] = -1;
      ++num_ended_;
      if (is_taken) {
        Throw(absl::StatusCode::kFailedPrecondition, "how rank ", rank,
              " has ended is not known: another has taken its end (is SIGCHLD ignored?)");
      }
      return std::pair(static_cast<int>(rank), status);
    }
    return std::nullopt;
  }

  bool AllEnded() const { return num_ended_ == pids_.size(); }

 private:
  // Not if somebody else has taken its end: the number may be another process's by now.
  static bool IsOurs(pid_t pid) {
    siginfo_t ignored = {};
    return waitid(P_PID, static_cast<id_t>(pid), &ignored, WEXITED | WNOHANG | WNOWAIT) == 0;
  }

  std::vector<pid_t> pids_;  // -1: has ended
  size_t num_ended_ = 0;
};

// The path from the root on: ranks may go to another folder.
std::string Absolute(const std::string& path) {
  std::error_code failure;
  const std::string absolute = std::filesystem::absolute(path, failure).string();
  return failure ? path : absolute;
}

// The folder of the error files, removed with this if it is its own.
class ErrorFolder {
 public:
  explicit ErrorFolder(const std::string& named) : path_(Absolute(named)), is_own_(named.empty()) {
    if (!is_own_) return;
    path_ = Absolute(absl::StrCat(TemporaryFolder(), "/weft_spawn.XXXXXX"));
    if (mkdtemp(path_.data()) == nullptr) {
      Throw(absl::StatusCode::kResourceExhausted, "cannot make a folder in ", TemporaryFolder(), ": ",
            strerror(errno));
    }
  }
  ErrorFolder(const ErrorFolder&) = delete;
  ErrorFolder& operator=(const ErrorFolder&) = delete;
  ~ErrorFolder() {
    std::error_code ignored;
    if (is_own_) std::filesystem::remove_all(path_, ignored);
  }

  std::string FileOf(int rank) const { return absl::StrCat(path_, "/", rank, "/error.json"); }
  void Prepare(int rank) const {
    std::error_code failure;
    std::filesystem::create_directories(absl::StrCat(path_, "/", rank), failure);
    if (failure) {
      ThrowInvalidArgument("cannot make the folder ", path_, "/", rank, ": ", failure.message());
    }
    std::filesystem::remove(FileOf(rank), failure);  // of an earlier run
  }

 private:
  std::string path_;
  const bool is_own_;
};

struct Job {
  int num_ranks = 1;
  int port = 0;
  std::string token;
  std::string run_id;
};

std::vector<std::string> EnvironmentOf(int rank, const Job& job, const std::string& error_file,
                                       const SpawnOptions& options) {
  std::map<std::string, std::string> own = options.variables;
  const std::map<std::string, std::string> told = {{"RANK", absl::StrCat(rank)},
                                                   {"WORLD_SIZE", absl::StrCat(job.num_ranks)},
                                                   {"LOCAL_RANK", absl::StrCat(rank)},
                                                   {"LOCAL_WORLD_SIZE", absl::StrCat(job.num_ranks)},
                                                   {"MASTER_ADDR", "127.0.0.1"},
                                                   {"MASTER_PORT", absl::StrCat(job.port)},
                                                   {"TORCHELASTIC_RUN_ID", job.run_id},
                                                   {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                   {"TORCHELASTIC_ERROR_FILE", error_file},
                                                   {"WEFT_AGENT_STORE", "1"},
                                                   {"WEFT_STORE_TOKEN", job.token},
                                                   {kSpawned, absl::StrCat(getpid())}};
  for (const auto& [name, value] : told) own[name] = value;
  std::vector<std::string> variables;
  for (const std::string& variable : WholeEnvironment()) {
    const std::string name = variable.substr(0, variable.find('='));
    if (own.count(name) == 0 && !absl::c_linear_search(kOfAnotherJob, name)) variables.push_back(variable);
  }
  for (const auto& [name, value] : own) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

SpawnedEnd EndOf(int status, const std::string& error_file) {
  SpawnedEnd end = {.error = ReadErrorFile(error_file)};
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.exit_code = WEXITSTATUS(status);
  }
  return end;
}

// Waits for all; when the first has failed the others are stopped.
SpawnResult AwaitRanks(const Job& job, const ErrorFolder& errors, TcpStore& store,
                       const SpawnOptions& options, Ranks* ranks) {
  SpawnResult result = {.ranks = std::vector<SpawnedEnd>(job.num_ranks)};
  Clock::time_point kill_at = Clock::time_point::max();
  while (!ranks->AllEnded()) {
    const std::optional<std::pair<int, int>> ended = ranks->Reap();
    if (!ended) {
      if (Clock::now() >= kill_at) ranks->Signal(SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    const int rank = ended->first;
    SpawnedEnd& end = result.ranks[rank];
    end = EndOf(ended->second, errors.FileOf(rank));
    SpawnedEnd bare = end;
    bare.error.clear();
    // The others' errors name it so.
    store.Set(absl::StrCat(job.run_id, "/0/exit/", rank), absl::StrCat("rank ", rank, " ", bare.What()));
    if (!end.failed() || result.first_failed >= 0) continue;
    result.first_failed = rank;
    ranks->Signal(SIGTERM);
    kill_at = Clock::now() + ClampTimeout(options.grace);
  }
  return result;
}

}  // namespace

std::string SpawnedEnd::What() const {
  std::string what = absl::StrCat("exited with code ", exit_code);
  if (signal != 0) {
    const char* const name = sigabbrev_np(signal);
    what = absl::StrCat("was killed by signal ", signal,
                        name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
  }
  return error.empty() ? what : absl::StrCat(what, ": ", error);
}

int SpawnResult::ExitCode() const {
  if (first_failed < 0) return 0;
  const SpawnedEnd& end = ranks[first_failed];
  return end.signal != 0 ? 128 + end.signal : end.exit_code;
}

SpawnResult SpawnRanks(int num_ranks, const std::vector<std::string>& command, const SpawnOptions& options) {
  WEFT_REQUIRE(num_ranks >= 1, "1 rank or more can be spawned, got ", num_ranks);
  WEFT_REQUIRE(!command.empty() && !command[0].empty(), "no program to spawn ranks of");
  const ErrorFolder errors(options.error_folder);
  Job job = {.num_ranks = num_ranks, .token = RandomId(), .run_id = absl::StrCat(kRunId, RandomId())};
  const TcpStoreServer server({.host = "127.0.0.1", .run_id = job.run_id, .token = job.token});
  job.port = server.port();
  TcpStore store(server.address(), {.run_id = job.run_id, .token = job.token});
  Ranks ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    errors.Prepare(rank);
    ranks.Add(StartProgram(command, EnvironmentOf(rank, job, errors.FileOf(rank), options)));
  }
  return AwaitRanks(job, errors, store, options, &ranks);
}

namespace {

// What a rank starts has the same variables, but another parent.
bool IsSpawned(const std::map<std::string, std::string>& variables) {
  const auto starter = variables.find(kSpawned);
  return starter != variables.end() && starter->second == absl::StrCat(getppid());
}

// Whether a rank that SpawnRanks started has this environment, or has left it to what it starts.
bool IsRanksOwn(const LaunchEnvironment& environment) {
  return environment.launcher == "RANK" && absl::StartsWith(environment.run_id, kRunId);
}

int RunSpawned(int num_ranks, const std::function<void(World&)>& body, const SpawnOptions& options) {
  try {
    const std::unique_ptr<ProcessWorld> world =
        MakeProcessWorld(ParseLaunchEnvironment(LauncherVariables()), options.world);
    WEFT_REQUIRE(world->size() == num_ranks, "SpawnRanks of ", num_ranks,
                 " ranks in a process that is one of ", world->size(),
                 ": the number must not depend on the process");
    try {
      body(*world);
    } catch (const std::exception& error) {
      world->TellFailure(error.what());
      throw;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << absl::StrCat("error: ", error.what(), "\n");
    WriteErrorFile(error.what());
    return 1;
  }
}

}  // namespace

int SpawnRanks(int num_ranks, int argc, const char* const* argv, const std::function<void(World&)>& body,
               const SpawnOptions& options) {
  const std::map<std::string, std::string> variables = LauncherVariables();
  if (IsSpawned(variables)) return RunSpawned(num_ranks, body, options);
  const std::optional<LaunchEnvironment> environment = ParseLaunchEnvironment(variables);
  WEFT_REQUIRE(
      !environment.has_value() || !IsRanksOwn(*environment), "rank ", environment->rank, " of ",
      environment->world_size,
      ", which SpawnRanks has started, has started this program: start it without RANK and WORLD_SIZE "
      "in its environment if it is to spawn ranks of its own, or by exec if it is to be that rank");
  WEFT_REQUIRE(!environment.has_value(), "SpawnRanks starts ranks itself, and a launcher (",
               environment->launcher, ") has started this as rank ", environment->rank, " of ",
               environment->world_size, ": start it alone, or use RunWorld");
  std::vector<std::string> command(argv, argv + argc);
  // The program itself, wherever its name leads by now.
  if (command.empty()) command.emplace_back();
  command[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  const SpawnResult result = SpawnRanks(num_ranks, command, options);
  if (result.first_failed >= 0) {
    std::cerr << absl::StrCat("rank ", result.first_failed, " ", result.ranks[result.first_failed].What(),
                              "\n");
  }
  return result.ExitCode();
}

}  // namespace weft
