#include "tools/launcher/launch_options.h"

#include <sched.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/nearest.h"

ABSL_FLAG(bool, standalone, false,
          "one node that meets nobody: a port that is free, a run id of its own. The same as --nnodes=1 with "
          "no address");
ABSL_FLAG(std::string, nnodes, "1",
          "nodes of the job: N, or MIN:MAX for a job that may start with MIN, grow to MAX, and go on with "
          "MIN when nodes are lost");
ABSL_FLAG(std::string, nproc_per_node, "1",
          "workers on this node, the same number on every node: a number, or auto or cpu for one a core");
ABSL_FLAG(std::string, rdzv_backend, "",
          "how nodes meet. static: each is numbered by --node_rank and comes to --master_addr. c10d or weft, "
          "the same thing: they come to --rdzv_endpoint and are numbered there. By default the one whose "
          "address is given");
ABSL_FLAG(std::string, rdzv_endpoint, "",
          "HOST[:PORT] where nodes meet, port 29400 if none is said: the address of one of them, whose "
          "launcher holds the job's store");
ABSL_FLAG(std::string, store, "",
          "HOST[:PORT] of a store apart (weft_run store), in place of --rdzv_endpoint: no node holds the "
          "job's store "
          "then, and it may be killed and begun again under the job");
ABSL_FLAG(absl::Duration, store_grace, absl::Seconds(60),
          "how long nodes and ranks try to come back to a store apart that is away, as in 60s or 2m");
ABSL_FLAG(absl::Duration, suspicion_time, absl::Seconds(5),
          "after how long a silence a node or a rank counts as lost, as in 5s: one that was stopped, or "
          "whose machine "
          "or link has vanished. One that was killed is noticed at once");
ABSL_FLAG(
    absl::Duration, stop_grace, absl::Seconds(30),
    "how long workers may take to save and end after this launcher, or another node's, was told to stop "
    "by a signal, or where a node joins, as in 30s or 2m; then SIGKILL. Shorter than what a batch system "
    "gives the whole job");
ABSL_FLAG(
    std::string, rdzv_id, "",
    "name of the job, the same on all of its nodes: the store refuses others. By default none, and a random "
    "one for a single node");
ABSL_FLAG(
    std::string, rdzv_conf, "",
    "waits in seconds, as key=value,...: join_timeout (600) for enough nodes, last_call_timeout (30) for "
    "nodes beyond MIN once MIN are there, name_timeout (0) for the address to be known, where its name comes "
    "later than this");
ABSL_FLAG(int, node_rank, -1, "number of this node, from 0; static only; -1: none");
ABSL_FLAG(std::string, master_addr, "", "address of node 0; static only");
ABSL_FLAG(
    int, master_port, 0,
    "port of the job's store on node 0; static or a single node; 0: 29500, and of a single node any that "
    "is free");
ABSL_FLAG(
    int, max_restarts, 0,
    "how often all workers are started anew, over all nodes, after one failed or a node was lost; counted "
    "anew after each save that the workers tell of");
ABSL_FLAG(double, monitor_interval, 0.1,
          "seconds between looks at the other nodes. The ends of this node's own workers are seen at once");
ABSL_FLAG(std::string, log_dir, "",
          "folder for what the workers print: RUN/RESTART/RANK/stdout.log and stderr.log");
ABSL_FLAG(std::string, tee, "",
          "which streams go to the logs and to the console, there with the rank before each line; others go "
          "to the logs alone. Into a pipe or file stdout is rank 0's alone, and as it wrote it. 0: none, 1: "
          "stdout, 2: stderr, 3: both; or by local rank, as in 0:3,1:2. Without --log_dir logs go to a new "
          "folder under /tmp. By default the console has them all and the logs are as the workers wrote");

namespace weft {
namespace {

constexpr int kDefaultEndpointPort = 29400;
constexpr int kDefaultStaticPort = 29500;

// The words of argv, from the second, that are this program's own flags: ParseFlags reads those.
int CountOwnWords(int argc, const char* const* argv) {
  int i = 1;
  for (; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (word.size() < 2 || word[0] != '-' || word == "--") break;
    if (word.find('=') != absl::string_view::npos) continue;
    const absl::string_view bare = word.substr(word[1] == '-' ? 2 : 1);
    const std::string name = absl::StrReplaceAll(bare, {{"-", "_"}});
    const bool alone = name == "standalone" || name == "nostandalone" || name == "help" || name == "h" ||
                       name == "version" || name == "print_config" || name == "noprint_config";
    if (!alone && i + 1 < argc) ++i;
  }
  return std::min(i, argc) - 1;
}

[[noreturn]] void ThrowUnreadable(absl::string_view flag, absl::string_view value,
                                  absl::string_view expected) {
  ThrowInvalidArgument("flag --", flag, ": cannot read \"", value, "\": expected ", expected);
}

int CoresOfThisProcess() {
  cpu_set_t cores;
  WEFT_CHECK(sched_getaffinity(0, sizeof(cores), &cores) == 0, "sched_getaffinity failed");
  return CPU_COUNT(&cores);
}

void ReadNodes(LaunchOptions* options) {
  const std::string text = absl::GetFlag(FLAGS_nnodes);
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  const bool readable = parts.size() <= 2 && absl::SimpleAtoi(parts.front(), &options->min_nodes) &&
                        absl::SimpleAtoi(parts.back(), &options->max_nodes) && options->min_nodes >= 1 &&
                        options->max_nodes >= options->min_nodes;
  if (!readable) ThrowUnreadable("nnodes", text, "a number of nodes, as in 2, or MIN:MAX, as in 1:4");
}

void ReadWorkers(LaunchOptions* options) {
  const std::string text = absl::GetFlag(FLAGS_nproc_per_node);
  if (text == "auto" || text == "cpu") {
    options->workers_per_node = CoresOfThisProcess();
    return;
  }
  if (!absl::SimpleAtoi(text, &options->workers_per_node) || options->workers_per_node < 1) {
    ThrowUnreadable("nproc_per_node", text, "a number of workers from 1, auto or cpu");
  }
}

// HOST, HOST:PORT, [V6]:PORT.
void ReadEndpoint(absl::string_view flag, const std::string& text, LaunchOptions* options) {
  absl::string_view host = text;
  options->port = kDefaultEndpointPort;
  const size_t colon = text.rfind(':');
  const bool bracketed_end = !text.empty() && text.back() == ']';
  if (colon != std::string::npos && !bracketed_end) {
    host = absl::string_view(text).substr(0, colon);
    if (!absl::SimpleAtoi(text.substr(colon + 1), &options->port)) options->port = -1;
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty() || options->port < 1 || options->port > 65535) {
    ThrowUnreadable(flag, text, "HOST or HOST:PORT, as in node0:29400");
  }
  options->address = std::string(host);
}

void ReadStore(LaunchOptions* options) {
  options->store_apart = !absl::GetFlag(FLAGS_store).empty();
  options->store_grace =
      ReadTime("store_grace", absl::GetFlag(FLAGS_store_grace), /*least=*/absl::ZeroDuration());
  options->suspicion_time =
      ReadTime("suspicion_time", absl::GetFlag(FLAGS_suspicion_time), /*least=*/absl::Milliseconds(500));
  options->stop_grace =
      ReadTime("stop_grace", absl::GetFlag(FLAGS_stop_grace), /*least=*/absl::ZeroDuration());
  if (!options->store_apart) return;
  for (const char* other : {"standalone", "rdzv_endpoint", "master_addr", "master_port", "node_rank"}) {
    WEFT_REQUIRE(!IsGiven(other), "--store says where the nodes meet: leave out --", other);
  }
  WEFT_REQUIRE(absl::GetFlag(FLAGS_rdzv_backend) != "static",
               "--store numbers the nodes as they come: leave out --rdzv_backend=static");
}

// static or dynamic, by name or by which address is given.
Meeting ReadMeeting(const LaunchOptions& options) {
  if (options.store_apart) return Meeting::kDynamic;
  const std::string backend = absl::GetFlag(FLAGS_rdzv_backend);
  const std::vector<std::string> names = {"static", "c10d", "weft"};
  if (!backend.empty() && std::find(names.begin(), names.end(), backend) == names.end()) {
    ThrowInvalidArgument("flag --rdzv_backend: there is no \"", backend, "\": did you mean ",
                         NearestName(backend, names), "? (static, c10d, weft)");
  }
  const bool endpoint = IsGiven("rdzv_endpoint");
  if (absl::GetFlag(FLAGS_standalone)) {
    WEFT_REQUIRE(options.max_nodes == 1,
                 "--standalone is one node: leave out --nnodes=", absl::GetFlag(FLAGS_nnodes));
    for (const char* other : {"rdzv_endpoint", "rdzv_backend", "master_addr"}) {
      WEFT_REQUIRE(!IsGiven(other), "--standalone meets nobody: leave out --", other);
    }
    return Meeting::kStandalone;
  }
  if (options.max_nodes == 1 && !endpoint) return Meeting::kStandalone;
  if (!backend.empty()) return backend == "static" ? Meeting::kStatic : Meeting::kDynamic;
  if (endpoint) return Meeting::kDynamic;
  WEFT_REQUIRE(
      IsGiven("master_addr"), "--nnodes=", absl::GetFlag(FLAGS_nnodes),
      " needs a place where the nodes meet: --rdzv_endpoint=HOST[:PORT] on all, or --master_addr=HOST "
      "and a --node_rank on each");
  return Meeting::kStatic;
}

void ReadStatic(LaunchOptions* options) {
  WEFT_REQUIRE(options->min_nodes == options->max_nodes, "--nnodes=", absl::GetFlag(FLAGS_nnodes),
               " needs --rdzv_backend=c10d: static knows a fixed number of nodes");
  WEFT_REQUIRE(!IsGiven("rdzv_endpoint"),
               "--rdzv_endpoint belongs to --rdzv_backend=c10d: static comes to --master_addr");
  WEFT_REQUIRE(IsGiven("master_addr"), "--rdzv_backend=static needs --master_addr, the address of node 0");
  WEFT_REQUIRE(IsGiven("node_rank"), "--rdzv_backend=static needs --node_rank, the number of this node");
  options->node_rank = absl::GetFlag(FLAGS_node_rank);
  WEFT_REQUIRE(options->node_rank >= 0 && options->node_rank < options->max_nodes,
               "--node_rank=", options->node_rank, ": with --nnodes=", options->max_nodes, " expected 0 to ",
               options->max_nodes - 1);
  options->address = absl::GetFlag(FLAGS_master_addr);
  options->port = IsGiven("master_port") ? absl::GetFlag(FLAGS_master_port) : kDefaultStaticPort;
}

void ReadDynamic(LaunchOptions* options) {
  for (const char* other : {"node_rank", "master_addr", "master_port"}) {
    WEFT_REQUIRE(!IsGiven(other), "--", other,
                 " belongs to --rdzv_backend=static: nodes that come to --rdzv_endpoint are numbered there");
  }
  if (options->store_apart) return ReadEndpoint("store", absl::GetFlag(FLAGS_store), options);
  WEFT_REQUIRE(IsGiven("rdzv_endpoint"), "--rdzv_backend=", absl::GetFlag(FLAGS_rdzv_backend),
               " needs --rdzv_endpoint=HOST[:PORT], where the nodes meet");
  ReadEndpoint("rdzv_endpoint", absl::GetFlag(FLAGS_rdzv_endpoint), options);
}

void ReadStandalone(LaunchOptions* options) {
  WEFT_REQUIRE(absl::GetFlag(FLAGS_node_rank) == 0 || !IsGiven("node_rank"),
               "--node_rank=", absl::GetFlag(FLAGS_node_rank), ": with --nnodes=1 there is node 0 alone");
  const std::string address = absl::GetFlag(FLAGS_master_addr);
  if (!address.empty()) options->address = address;
  options->port = absl::GetFlag(FLAGS_master_port);
}

// Seconds from a millisecond to some 24 days, or nothing.
std::optional<std::chrono::milliseconds> Milliseconds(double seconds) {
  if (!(seconds >= 1e-3 && seconds * 1e3 < std::numeric_limits<int32_t>::max())) return std::nullopt;
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

void ReadWaits(LaunchOptions* options) {
  const double interval = absl::GetFlag(FLAGS_monitor_interval);
  const auto monitor = Milliseconds(interval);
  WEFT_REQUIRE(monitor, "--monitor_interval=", interval, ": expected seconds, 0.001 or more");
  options->monitor_interval = *monitor;
  const std::string text = absl::GetFlag(FLAGS_rdzv_conf);
  const std::vector<std::string> keys = {"join_timeout", "last_call_timeout", "name_timeout"};
  std::chrono::milliseconds* const waits[] = {&options->join_timeout, &options->last_call,
                                              &options->name_timeout};
  for (absl::string_view pair : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    const auto key = std::find(keys.begin(), keys.end(), parts.first);
    if (key == keys.end()) {
      ThrowInvalidArgument("flag --rdzv_conf: there is no \"", parts.first, "\": did you mean ",
                           NearestName(parts.first, keys), "?");
    }
    double seconds = 0;
    const bool number = absl::SimpleAtod(parts.second, &seconds);
    const auto wait = Milliseconds(number ? seconds : 0);
    if (!wait) ThrowUnreadable("rdzv_conf", pair, "seconds, 0.001 or more, as in join_timeout=60");
    *waits[key - keys.begin()] = *wait;
  }
}

void ReadLogs(LaunchOptions* options) {
  options->log_dir = absl::GetFlag(FLAGS_log_dir);
  const std::string tee = absl::GetFlag(FLAGS_tee);
  if (tee.empty()) return;
  try {
    options->tee = StreamChoice::Parse(tee);
  } catch (const Error& error) {
    ThrowInvalidArgument("flag --tee: ", error.message());
  }
  WEFT_REQUIRE(options->tee->MaxRank() < options->workers_per_node, "--tee=", tee,
               ": there is no local rank ", options->tee->MaxRank(),
               " with --nproc_per_node=", options->workers_per_node);
}

}  // namespace

std::chrono::milliseconds ReadTime(absl::string_view flag, absl::Duration value, absl::Duration least) {
  WEFT_REQUIRE(value >= least && value <= absl::Hours(24), "--", flag, "=", absl::FormatDuration(value),
               ": expected ", absl::FormatDuration(least), " to 24h");
  return absl::ToChronoMilliseconds(value);
}

FlagsUsage WeftRunUsage() {
  return {
      .summary =
          "Starts a program as the ranks of one job, on this machine or on several, and stops or restarts\n"
          "all of them when one fails: weft_run [flags] [--] PROGRAM [ARGUMENTS]\n"
          "weft_run store --dir=DIR keeps a job's store apart from its nodes: weft_run store --help.\n"
          "\n"
          "Flags and the variables that the program finds (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,\n"
          "MASTER_PORT, TORCHELASTIC_RESTART_COUNT, ...) mean what they mean to torchrun. Flags end at the\n"
          "first word that is none. Exits with the code of the first worker that failed; 128 + N for signal "
          "N.",
      .groups = {{"How many", {"nproc_per_node", "nnodes", "standalone"}},
                 {"Where nodes meet",
                  {"rdzv_endpoint", "store", "rdzv_backend", "rdzv_id", "rdzv_conf", "node_rank",
                   "master_addr", "master_port"}},
                 {"Failures",
                  {"max_restarts", "monitor_interval", "suspicion_time", "stop_grace", "store_grace"}},
                 {"Output", {"log_dir", "tee"}}},
      .examples = {
          "weft_run --nproc-per-node=4 bazel-bin/examples/train_gpt --mesh=dp=2,tp=2",
          "weft_run --nnodes=2 --nproc-per-node=2 --rdzv-endpoint=node0 train   # the same on both nodes",
          "weft_run --nnodes=2 --node-rank=1 --master-addr=node0 train",
          "weft_run --nproc-per-node=2 --max-restarts=3 --log-dir=logs --tee=0:3 -- train --steps=100"}};
}

LaunchOptions ParseLaunchOptions(int argc, const char* const* argv) {
  const int own = CountOwnWords(argc, argv);
  const ParsedFlags flags = ParseFlags(own + 1, argv, WeftRunUsage());
  LaunchOptions options;
  if (flags.help) {
    options.help = true;
    return options;
  }
  if (flags.version) {
    options.version = true;
    return options;
  }
  if (flags.print_config) {
    options.print_config = true;
    return options;
  }
  int program = own + 1;
  if (program < argc && absl::string_view(argv[program]) == "--") ++program;
  options.command.assign(argv + std::min(program, argc), argv + argc);
  WEFT_REQUIRE(
      !options.command.empty() && !options.command.front().empty(),
      "expected a program to start, got none: weft_run [flags] PROGRAM [ARGUMENTS]; --help lists the flags");

  ReadNodes(&options);
  ReadWorkers(&options);
  const int port = absl::GetFlag(FLAGS_master_port);
  WEFT_REQUIRE(port >= 0 && port <= 65535, "--master_port=", port, ": expected 0 to 65535");
  ReadStore(&options);
  options.meeting = ReadMeeting(options);
  switch (options.meeting) {
    case Meeting::kStandalone:
      ReadStandalone(&options);
      break;
    case Meeting::kStatic:
      ReadStatic(&options);
      break;
    case Meeting::kDynamic:
      ReadDynamic(&options);
      break;
  }
  options.run_id = absl::GetFlag(FLAGS_rdzv_id);
  WEFT_REQUIRE(options.run_id.find('/') == std::string::npos && options.run_id.size() <= 200,
               "--rdzv_id=", options.run_id, ": expected at most 200 letters, and no slash");
  if (options.run_id.empty() && options.meeting != Meeting::kStandalone) options.run_id = "none";
  options.max_restarts = absl::GetFlag(FLAGS_max_restarts);
  WEFT_REQUIRE(options.max_restarts >= 0, "--max_restarts=", options.max_restarts, ": expected 0 or more");
  ReadWaits(&options);
  ReadLogs(&options);
  return options;
}

}  // namespace weft
