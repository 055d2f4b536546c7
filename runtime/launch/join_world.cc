#include "runtime/launch/join_world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/open_file_limit.h"
#include "runtime/base/random_id.h"
#include "runtime/launch/job_store.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/peer_watch.h"
#include "runtime/launch/process_world.h"
#include "runtime/launch/world_meeting.h"
#include "runtime/store/tcp_address.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// One attempt to reach a store; in between a file is read again.
constexpr milliseconds kSlice{1000};

std::string RunId(const WorldPlace& place) { return absl::StrCat("weft.world.", place.generation); }

std::string PrefixOf(const WorldPlace& place) {
  return absl::StrCat(RunId(place), "/", place.generation, "/");
}

// The rank that keeps the store at `address`, if one answers there.
std::optional<MeetingRank> KeeperAt(const std::string& address, const WorldPlace& place,
                                    const std::string& token) {
  try {
    TcpStore store(address, {.run_id = RunId(place), .token = token, .connect_timeout = 2 * kSlice});
    return MeetingRank::FromText(store.Get(absl::StrCat(PrefixOf(place), MeetingKey(0)), kSlice));
  } catch (const Error&) {
    return std::nullopt;
  }
}

// A rank's store: with the server on rank 0.
struct Opened {
  std::unique_ptr<TcpStoreServer> server = nullptr;
  std::shared_ptr<TcpStore> client = nullptr;
  std::string token = {};
};

std::shared_ptr<TcpStore> ConnectTo(const std::string& address, const WorldPlace& place,
                                    const std::string& token, milliseconds timeout) {
  return std::make_shared<TcpStore>(
      address, TcpStoreOptions{.run_id = RunId(place), .token = token, .connect_timeout = timeout});
}

Opened ListenAt(const HostAndPort& at, const WorldPlace& place, const MeetingRank& self) {
  Opened opened = {.token = place.token};
  const std::string host = IsLoopback(at.host) ? at.host : "0.0.0.0";
  const std::string here = JoinHostAndPort(IsLoopback(at.host) ? at.host : "127.0.0.1", at.port);
  try {
    opened.server = std::make_unique<TcpStoreServer>(
        TcpStoreServerOptions{.host = host, .port = at.port, .run_id = RunId(place), .token = place.token});
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kFailedPrecondition) throw;
    if (const auto first = KeeperAt(here, place, place.token)) ThrowTaken(place, *first, self);
    throw;
  }
  if (host == "0.0.0.0" && !opened.server->notice().empty()) {
    std::fputs(absl::StrCat("weft: ", opened.server->notice(), "\n").c_str(), stderr);
  }
  opened.client = ConnectTo(here, place, place.token, place.timeout);
  return opened;
}

Opened ListenByFile(const std::string& path, const WorldPlace& place, const MeetingRank& self) {
  Opened opened = {.token = RandomId()};
  opened.server = std::make_unique<TcpStoreServer>(
      TcpStoreServerOptions{.host = "0.0.0.0", .run_id = RunId(place), .token = opened.token});
  const MeetingFile file = {.rank0 = self, .port = opened.server->port(), .token = opened.token};
  if (!file.Make(path)) {
    const std::optional<MeetingFile> other = MeetingFile::Read(path);
    WEFT_REQUIRE(other.has_value(), "the file ", path, " is there, and cannot be read");
    if (const auto first = KeeperAt(other->Address(), place, other->token)) ThrowTaken(place, *first, self);
    ThrowInvalidArgument("the file ", path, " is left from an earlier world, whose rank 0 was ",
                         other->rank0.ToString(), " and does not answer: remove it, or name another");
  }
  try {
    opened.client = ConnectTo(JoinHostAndPort("127.0.0.1", file.port), place, opened.token, place.timeout);
  } catch (...) {
    unlink(path.c_str());
    throw;
  }
  return opened;
}

// Tries until rank 0 is there: it may come later, or an earlier world may not have ended at its place.
Opened ConnectUntil(const MeetingAddress& address, const WorldPlace& place) {
  const Clock::time_point deadline = Clock::now() + place.timeout;
  std::string reason = "there is no such file";
  for (;;) {
    std::optional<MeetingFile> file;
    if (!address.path.empty()) file = MeetingFile::Read(address.path);
    const std::string& token = file ? file->token : place.token;
    try {
      const std::string where = file ? file->Address() : address.host_and_port;
      if (file || address.path.empty()) {
        return {.client = ConnectTo(where, place, token, std::min(kSlice, place.timeout)), .token = token};
      }
    } catch (const Error& error) {
      const bool another = absl::StrContains(error.message(), "serves run ");
      if (error.code() != absl::StatusCode::kDeadlineExceeded && !another) throw;
      reason = file ? absl::StrCat("it names ", file->rank0.ToString(),
                                   ", which does not answer: is it left from an earlier world?")
                    : error.message();
    }
    if (Clock::now() >= deadline) {
      Throw(absl::StatusCode::kDeadlineExceeded, "rank ", place.rank, " has found no rank 0 at ",
            place.address, ": ", reason);
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

Opened Open(const WorldPlace& place, const MeetingAddress& address, const MeetingRank& self) {
  if (place.rank > 0) return ConnectUntil(address, place);
  return address.path.empty() ? ListenAt(ParseAddress(address.host_and_port), place, self)
                              : ListenByFile(address.path, place, self);
}

}  // namespace

std::unique_ptr<World> JoinWorld(const WorldPlace& given, const WorldOptions& options) {
  const MeetingAddress address = ParsePlace(given);
  WorldPlace place = given;
  place.timeout = ClampTimeout(given.timeout);
  WEFT_REQUIRE(
      options.backend != Backend::kLocal && options.backend != Backend::kMpi,
      "a world by arguments is one of processes over gloo or NCCL: its backend is auto, gloo or nccl");
  RaiseOpenFileLimit();
  const MeetingRank self = MeetingRank::Self();
  Opened opened = Open(place, address, self);
  const auto job =
      std::make_shared<JobStore>(std::move(opened.server), std::move(opened.client), PrefixOf(place));
  // A rank that has come and dies while it waits is missing in the world, which is complete all the same. One that is refused
  // leaves no will: its end would be taken for that of the rank that has its number.
  const auto leave_will = [&] { LeaveLastWill(*job, place.rank); };
  // All have read the file, so the next world may use its name.
  const auto remove_file = [&] {
    if (!address.path.empty()) unlink(address.path.c_str());
  };
  std::vector<MeetingRank> ranks;
  try {
    ranks = Meet(*job->store(), place, self, leave_will, remove_file);
  } catch (...) {
    if (place.rank == 0) remove_file();
    // The others hear why from the store that goes with this rank.
    if (place.rank == 0) std::this_thread::sleep_for(kSlice);
    throw;
  }
  LaunchEnvironment environment;
  environment.launcher = "JoinWorld";
  environment.rank = place.rank;
  environment.world_size = place.size;
  environment.local_world_size = static_cast<int>(std::count_if(
      ranks.begin(), ranks.end(), [&](const MeetingRank& rank) { return rank.host == self.host; }));
  environment.local_rank =
      static_cast<int>(std::count_if(ranks.begin(), ranks.begin() + place.rank,
                                     [&](const MeetingRank& rank) { return rank.host == self.host; }));
  environment.run_id = RunId(place);
  environment.restart_count = place.generation;
  environment.token = opened.token;
  const auto variables = LauncherVariables();
  if (const auto host = variables.find("WEFT_GLOO_HOST"); host != variables.end()) {
    environment.gloo_host = host->second;
  }
  if (const auto folder = variables.find("WEFT_FLIGHT_DIR"); folder != variables.end()) {
    environment.flight_dir = folder->second;
  }
  return MakeProcessWorldIn(job, environment, options);
}

}  // namespace weft
