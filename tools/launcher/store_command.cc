#include "tools/launcher/store_command.h"

#include <poll.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/open_file_limit.h"
#include "runtime/store/tcp_store_server.h"
#include "tools/launcher/launch_options.h"
#include "tools/launcher/processes/signal_source.h"

ABSL_FLAG(
    std::string, dir, "",
    "folder of the journal, which the store makes: with the same folder and port it goes on where it ended. "
    "On a disk of this machine, not in its memory");
ABSL_FLAG(int, port, 29400, "port that it listens on; 0 for any that is free");
ABSL_FLAG(std::string, host, "",
          "address that it listens on: by default every one of this machine, and 127.0.0.1 without "
          "WEFT_STORE_TOKEN "
          "and TLS");
ABSL_FLAG(
    absl::Duration, grace, absl::Seconds(60),
    "how long ranks may take to come back after a restart of the store, before they count as dead; not below "
    "the jobs' --store_grace");
ABSL_FLAG(bool, sync_each, false,
          "brings each write to the disk before it is answered, in place of once a second: then a machine "
          "that loses "
          "its power loses nothing either");

ABSL_DECLARE_FLAG(absl::Duration, suspicion_time);  // weft_run's

namespace weft {
namespace {

std::string ReadVariable(const char* name) {
  const auto variables = LauncherVariables();
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// The folder's file `address`, for programs that begin a store at any free port.
void WriteAddress(const std::string& folder, const std::string& address) {
  const std::string path = absl::StrCat(folder, "/address");
  const std::string draft = path + ".new";
  std::string held;
  if (std::getline(std::ifstream(path), held) && held == address)
    return;  // begun again, on a disk that may be full
  std::ofstream file(draft);
  const bool written =
      (file << address << "\n").flush().good() && std::rename(draft.c_str(), path.c_str()) == 0;
  WEFT_REQUIRE(written, "cannot write ", path);
}

}  // namespace

FlagsUsage StoreUsage() {
  return {
      .summary =
          "Keeps the store of a job apart from its nodes: weft_run store --dir=DIR [flags]\n"
          "\n"
          "It may be killed at any moment and begun again with the same --dir and --port: it has then every\n"
          "write that it has answered, and nodes and ranks come back to it. WEFT_STORE_TOKEN, or\n"
          "WEFT_STORE_CA, _CERT and _KEY, say who may join; without either it serves this machine alone,\n"
          "unless --host says more. Several jobs may share it, each by its own --rdzv_id.",
      .groups = {{"The store", {"dir", "port", "host", "grace", "suspicion_time", "sync_each"}}},
      .examples = {"export WEFT_STORE_TOKEN=SECRET   # the same for all of these",
                   "weft_run store --dir=/var/lib/weft/store --port=29400",
                   "weft_run --store=node0:29400 --nnodes=2:4 --nproc-per-node=8 train   # on the nodes"}};
}

int RunStore(const ParsedFlags& /*flags*/) {
  SignalSource signals;
  const std::string folder = UserPath(absl::GetFlag(FLAGS_dir));
  WEFT_REQUIRE(!folder.empty(), "weft_run store needs --dir=DIR, the folder of its journal");
  const int port = absl::GetFlag(FLAGS_port);
  WEFT_REQUIRE(port >= 0 && port <= 65535, "--port=", port, ": expected 0 to 65535");
  const auto grace = ReadTime("grace", absl::GetFlag(FLAGS_grace), /*least=*/absl::ZeroDuration());
  const auto suspicion =
      ReadTime("suspicion_time", absl::GetFlag(FLAGS_suspicion_time), /*least=*/absl::Milliseconds(500));
  RaiseOpenFileLimit();
  const TcpStoreServer server(
      {.host = absl::GetFlag(FLAGS_host),
       .port = port,
       .run_id = std::nullopt,
       .token = ReadVariable("WEFT_STORE_TOKEN"),
       .tls = StoreTlsFrom(LauncherVariables()),
       .keepalive = KeepaliveOf(suspicion),
       .journal = StoreJournalOptions{.folder = folder, .sync_each = absl::GetFlag(FLAGS_sync_each)},
       .grace = grace});
  if (server.num_cut_bytes() > 0) {
    std::cerr << absl::StrCat("weft_run: store: cut ", server.num_cut_bytes(),
                              " bytes from the end of the journal: a write that nobody had an answer for\n");
  }
  if (!server.notice().empty()) std::cerr << absl::StrCat("weft_run: ", server.notice(), "\n");
  WriteAddress(folder, server.address());
  std::cout << server.address() << std::endl;
  for (;;) {
    pollfd ready = {signals.fd(), POLLIN, 0};
    poll(&ready, 1, /*timeout=*/-1);
    for (const ReceivedSignal& signal : signals.Take()) {
      if (SignalSource::EndsAProgram(signal.number)) return 0;
    }
  }
}

}  // namespace weft
