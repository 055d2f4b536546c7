// A process that uses a store, for tests that start several:
//
//   store_client STORE add KEY TIMES         prints "ready", waits for the key "go", then adds 1 TIMES times
//   and
//                                            prints each sum
//
// STORE is file:FOLDER. Exits 1 with a line on stderr when anything fails.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/base/error.h"
#include "runtime/store/file_store.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kLong = std::chrono::seconds(60);

std::unique_ptr<Store> Open(absl::string_view address) {
  WEFT_REQUIRE(absl::ConsumePrefix(&address, "file:"), "no such store: ", address);
  return std::make_unique<FileStore>(address);
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

void Add(Store& store, const std::string& key, int times) {
  Print("ready");
  store.Get("go", kLong);
  for (int i = 0; i < times; ++i) Print(absl::StrCat(store.Add(key, 1)));
}

void Run(int argc, char** argv) {
  WEFT_REQUIRE(argc == 5, "expected STORE COMMAND and its two arguments");
  const std::unique_ptr<Store> store = Open(argv[1]);
  const absl::string_view command = argv[2];
  if (command == "add") {
    Add(*store, argv[3], Number(argv[4]));
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
