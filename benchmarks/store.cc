// What a call of a store costs: round trips over the loopback device to a TCP store in this process, and the
// same calls in memory and in files.
//
//   bazel run //benchmarks:store
//   bazel run //benchmarks:store -- --ca=ca.pem --certificate=node.pem --key=node.key     with mutual TLS too
//
// A line is STORE/CALL/BYTES of the value: the median time of one call. A certificate for 127.0.0.1 comes
// from the lines in runtime/store/README.md. `wake` is the time from a Set on one client until the Get that
// waits for it on another has returned, Set included; `connect` is a client's begin and end.

#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/store/file_store.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

ABSL_FLAG(std::string, ca, "", "PEM file of the authority: with it mutual TLS is measured too");
ABSL_FLAG(std::string, certificate, "", "PEM file of a certificate for 127.0.0.1");
ABSL_FLAG(std::string, key, "", "PEM file of its private key");

namespace weft {
namespace {

constexpr std::chrono::milliseconds kLong = std::chrono::minutes(1);

FlagsUsage Usage() {
  return {.summary = "Measures what a call of a store costs.",
          .groups = {{"Measurement", {"ca", "certificate", "key", "log_format"}}},
          .examples = {"store", "store --ca=ca.pem --certificate=node.pem --key=node.key"}};
}

void ReportCall(const std::string& name, const std::function<void()>& call) {
  Report({.name = name, .value = MedianNanoseconds(call) / 1e3, .unit = "us", .less_is_better = true});
}

void MeasureCalls(const std::string& name, Store& store) {
  for (const int64_t num_bytes : {int64_t{16}, int64_t{4096}, Store::kMaxValueBytes}) {
    const std::string value(num_bytes, 'v');
    ReportCall(absl::StrCat(name, "/set/", num_bytes), [&] { store.Set("key", value); });
    ReportCall(absl::StrCat(name, "/get/", num_bytes), [&] { store.Get("key", kLong); });
  }
  ReportCall(absl::StrCat(name, "/add"), [&] { store.Add("number", 1); });
}

void MeasureWake(const std::string& name, Store& ours, Store& theirs) {
  std::thread echo([&theirs] {
    for (int64_t i = 0;; ++i) {
      if (theirs.Get(absl::StrCat("there", i), kLong) == "end") return;
      theirs.Set(absl::StrCat("back", i), "");
    }
  });
  int64_t i = 0;
  const double ns = MedianNanoseconds([&] {
    ours.Set(absl::StrCat("there", i), "");
    ours.Get(absl::StrCat("back", i++), kLong);
  });
  ours.Set(absl::StrCat("there", i), "end");
  echo.join();
  // There and back.
  Report({.name = absl::StrCat(name, "/wake"), .value = ns / 2 / 1e3, .unit = "us", .less_is_better = true});
}

void MeasureTcp(const std::string& name, const std::optional<StoreTls>& tls) {
  const TcpStoreServer server({.host = "127.0.0.1", .tls = tls});
  TcpStore store(server.address(), {.tls = tls});
  TcpStore other(server.address(), {.tls = tls});
  MeasureCalls(name, store);
  MeasureWake(name, store, other);
  ReportCall(absl::StrCat(name, "/connect"), [&] { TcpStore(server.address(), {.tls = tls}); });
}

int Run() {
  HashStore hash;
  MeasureCalls("hash", hash);
  std::string folder = "/tmp/weft_store.XXXXXX";
  WEFT_REQUIRE(mkdtemp(folder.data()) != nullptr, "cannot make a folder in /tmp");
  FileStore file(folder);
  MeasureCalls("file", file);
  std::filesystem::remove_all(folder);
  MeasureTcp("tcp", std::nullopt);
  const std::string ca = UserPath(absl::GetFlag(FLAGS_ca));
  if (ca.empty()) return 0;
  MeasureTcp("tcp_mtls", StoreTls{.ca_file = ca,
                                  .certificate_file = UserPath(absl::GetFlag(FLAGS_certificate)),
                                  .key_file = UserPath(absl::GetFlag(FLAGS_key))});
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
