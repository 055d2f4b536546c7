// A process that uses a store, or keeps one, for tests that start several:
//
//   store_client STORE add KEY TIMES         prints "ready", waits for the key "go", then adds 1 TIMES times
//   and
//                                            prints each sum
//   store_client STORE will KEY VALUE        leaves a last will, prints "ready", and ends in good order when
//   its
//                                            input does
//   store_client STORE will_exit KEY VALUE   the same, but ends by _exit(0)
//   store_client serve PORT                  keeps a TCP store until its input ends; prints its address
//   store_client keep PORT FOLDER            the same, with a journal in FOLDER
//   store_client keep_synced PORT FOLDER     the same, on the disk before each answer
//
// STORE is file:FOLDER or tcp:HOST:PORT. Exits 1 with a line on stderr when anything fails.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"
#include "runtime/store/file_store.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kLong = std::chrono::seconds(60);

std::unique_ptr<Store> Open(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "file:")) return std::make_unique<FileStore>(address);
  WEFT_REQUIRE(absl::ConsumePrefix(&address, "tcp:"), "no such store: ", address);
  return std::make_unique<TcpStore>(address);
}

int Number(absl::string_view text) {
  int number = 0;
  WEFT_REQUIRE(absl::SimpleAtoi(text, &number), "not a number: ", text);
  return number;
}

void Print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void AwaitInputsEnd() {
  char byte = 0;
  while (read(0, &byte, 1) > 0) {
  }
}

void Add(Store& store, const std::string& key, int times) {
  Print("ready");
  store.Get("go", kLong);
  for (int i = 0; i < times; ++i) Print(absl::StrCat(store.Add(key, 1)));
}

void LeaveWill(Store& store, const std::string& key, const std::string& value) {
  dynamic_cast<TcpStore&>(store).SetOnDisconnect(key, value);
  Print("ready");
  AwaitInputsEnd();
}

void Run(int argc, char** argv) {
  if (argc == 3 && argv[1] == absl::string_view("serve")) {
    const TcpStoreServer server({.port = Number(argv[2])});
    Print(server.address());
    AwaitInputsEnd();
    return;
  }
  const bool synced = argc == 4 && argv[1] == absl::string_view("keep_synced");
  if (argc == 4 && (synced || argv[1] == absl::string_view("keep"))) {
    signal(SIGXFSZ, SIG_IGN);  // a limit on its files is a full disk
    const TcpStoreServer server({.port = Number(argv[2]),
                                 .journal = StoreJournalOptions{.folder = argv[3], .sync_each = synced},
                                 .compact_bytes = 4096});
    Print(server.address());
    AwaitInputsEnd();
    return;
  }
  WEFT_REQUIRE(argc == 5, "expected STORE COMMAND and its two arguments");
  const std::unique_ptr<Store> store = Open(argv[1]);
  const absl::string_view command = argv[2];
  if (command == "add") {
    Add(*store, argv[3], Number(argv[4]));
  } else if (command == "will") {
    LeaveWill(*store, argv[3], argv[4]);
  } else if (command == "will_exit") {
    LeaveWill(*store, argv[3], argv[4]);
    _exit(0);
  } else {
    ThrowInvalidArgument("no such command: ", command);
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    weft::Run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "store_client: %s\n", error.what());
    return 1;
  }
}
