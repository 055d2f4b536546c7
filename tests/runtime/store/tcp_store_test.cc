// The conformance cases over the TCP store, and who may join one. tcp_store_deaths_test has the rest.

#include "runtime/store/tcp_store.h"

#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/store/prefix_store.h"
#include "runtime/store/tcp_address.h"
#include "runtime/store/tcp_store_server.h"
#include "tests/message_of.h"
#include "tests/runtime/store/certificates.h"
#include "tests/runtime/store/conformance.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kShort = milliseconds(700);  // to give up a connection in

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class TcpSite : public StoreSite {
 public:
  std::shared_ptr<Store> Join() override { return std::make_shared<TcpStore>(server_.address()); }
  std::string address() const override { return absl::StrCat("tcp:", server_.address()); }

 private:
  TcpStoreServer server_;
};

const StoreBackend kTcp = {"tcp", [] { return std::make_unique<TcpSite>(); }};
INSTANTIATE_TEST_SUITE_P(Tcp, StoreConformance, testing::Values(kTcp));
INSTANTIATE_TEST_SUITE_P(Tcp, StoreAcrossProcesses, testing::Values(kTcp));

TEST(TcpStoreTest, OnlyTheTokenAdmits) {
  const TcpStoreServer server({.token = "open sesame"});
  const std::string address = absl::StrCat("127.0.0.1:", server.port());
  const auto join = [&](const std::string& token) { TcpStore(address, {.token = token}); };
  EXPECT_EQ(MessageOf([&] { join("open sesame"); }), "no error");
  EXPECT_EQ(MessageOf([&] { join(""); }),
            absl::StrCat("the store at ", address,
                         " refuses this client: it asks for a token, and none was given"));
  for (const std::string wrong :
       {"o", "open sesamf", "Open sesame", "open sesame ", "open sesameopen sesame"}) {
    try {
      join(wrong);
      ADD_FAILURE() << wrong << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
      EXPECT_EQ(error.message(), absl::StrCat("the store at ", address, " refuses this client: wrong token"));
    }
  }
  EXPECT_EQ(InvalidArgumentMessage([&] { join(std::string(1025, 't')); }),
            "a store's token has at most 1024 bytes, got 1025");
  const std::string bytes("\0\xff\n", 3);
  const TcpStoreServer odd({.token = bytes});
  TcpStore client(absl::StrCat("127.0.0.1:", odd.port()), {.token = bytes});
  client.Set("k", "v");
  EXPECT_EQ(client.TryGet("k"), "v");
}

TEST(TcpStoreTest, OnlyClientsOfTheRunJoin) {
  const TcpStoreServer server({.run_id = "a"});
  TcpStore client(server.address(), {.run_id = "a"});
  client.Set("k", "v");
  EXPECT_EQ(MessageOf([&] { TcpStore(server.address(), {.run_id = "b"}); }),
            absl::StrCat("the store at ", server.address(), " serves run 'a', this client is of run 'b'"));
  EXPECT_THAT(MessageOf([&] { TcpStore{server.address()}; }),
              HasSubstr("serves run 'a', this client is of run ''"));
  // The token comes first: a client without one learns nothing.
  const TcpStoreServer secret({.run_id = "a", .token = "t"});
  EXPECT_THAT(MessageOf([&] { TcpStore(absl::StrCat("127.0.0.1:", secret.port()), {.run_id = "b"}); }),
              HasSubstr("none was given"));
}

TEST(TcpStoreTest, ListensToThisMachineAloneUnlessTold) {
  const TcpStoreServer server;
  EXPECT_EQ(server.address(), absl::StrCat("127.0.0.1:", server.port()));
  EXPECT_EQ(server.notice(), absl::StrCat("store: listens at ", server.address(),
                                          ", for this machine alone, since it has neither a token nor TLS"));
  const TcpStoreServer open({.host = "0.0.0.0"});
  EXPECT_THAT(open.notice(), HasSubstr("whoever reaches that port can join the job"));
  const TcpStoreServer token({.token = "t"});
  EXPECT_THAT(token.address(), StartsWith("0.0.0.0:"));
  EXPECT_THAT(token.notice(), HasSubstr("with a token but without TLS"));
  const TcpStoreServer local_token({.host = "localhost", .token = "t"});
  EXPECT_EQ(local_token.notice(), "");
  EXPECT_EQ(local_token.address(), absl::StrCat("127.0.0.1:", local_token.port()));
  TcpStore client(absl::StrCat("localhost:", local_token.port()), {.token = "t"});
  EXPECT_EQ(client.Add("n", 1), 1);
}

TEST(TcpStoreTest, AServerThatCannotListenSaysWhy) {
  const TcpStoreServer server;
  const int port = server.port();
  EXPECT_EQ(MessageOf([&] { TcpStoreServer({.port = port}); }),
            absl::StrCat("the store cannot listen at 127.0.0.1:", port,
                         ": Address already in use; is another program ", "on port ", port, "?"));
  EXPECT_EQ(MessageOf([&] { TcpStoreServer({.host = "192.0.2.1"}); }),
            "the store cannot listen at 192.0.2.1:0: Cannot assign requested address");
  EXPECT_EQ(InvalidArgumentMessage([&] { TcpStoreServer({.port = 70000}); }),
            "a store's port is 0 to 65535, got 70000");
  EXPECT_EQ(InvalidArgumentMessage([&] { TcpStoreServer({.max_bytes = 0}); }),
            "a store's max_bytes is at least 1, got 0");
}

TEST(TcpStoreTest, AServerWithoutADescriptorSaysSo) {
  const TcpStoreServer first;  // gRPC has what it needs
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string message = MessageOf([] { TcpStoreServer(); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(message, "the store cannot listen at 127.0.0.1:0: Too many open files");
}

TEST(TcpStoreTest, AnAddressWithoutAServerIsAnErrorInTime) {
  for (const char* address : {"", "host", ":80", "host:", "host:x", "host:0", "host:65536"}) {
    EXPECT_EQ(InvalidArgumentMessage([&] { TcpStore{address}; }),
              absl::StrCat("a store's address is HOST:PORT, got '", address, "'"));
  }
  int port = 0;
  {
    const TcpStoreServer server;
    port = server.port();
  }
  const Clock::time_point begin = Clock::now();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  try {
    TcpStore client(address, {.connect_timeout = kShort});
    ADD_FAILURE() << "connected to nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(error.message(),
                AllOf(StartsWith(absl::StrCat("no store answers at ", address, ", asked for 0.7 s")),
                      HasSubstr("Connection refused")));
  }
  EXPECT_GE(SecondsSince(begin), 0.69);
  EXPECT_LT(SecondsSince(begin), 30);
  // Longer than a name's parts may be, so that no name server is asked.
  const std::string no_host(64, 'x');
  EXPECT_THAT(MessageOf([&] { TcpStore(no_host + ":80", {.connect_timeout = milliseconds(1)}); }),
              AllOf(HasSubstr(", asked for 0.001 s (cannot resolve '"), HasSubstr(no_host + "': ")));
}

TEST(TcpStoreTest, AddressesOfBothFamilies) {
  EXPECT_EQ(ResolveTarget(ParseAddress("[::1]:80")), "ipv6:[::1]:80");
  EXPECT_EQ(ResolveTarget(ParseAddress("127.0.0.2:81")), "ipv4:127.0.0.2:81");
  EXPECT_EQ(ResolveTarget(ParseAddress("localhost:82")), "ipv4:127.0.0.1:82");
  EXPECT_EQ(JoinHostAndPort("::1", 80), "[::1]:80");
  EXPECT_EQ(JoinHostAndPort("[::1]", 80), "[::1]:80");
  EXPECT_EQ(JoinHostAndPort("node0", 80), "node0:80");
  const TcpStoreServer any({.host = "0.0.0.0"});
  EXPECT_EQ(TcpStore(absl::StrCat("127.0.0.2:", any.port())).Add("n", 3), 3);
}

TEST(TcpStoreTest, AClientMayStartBeforeTheServer) {
  int port = 0;
  {
    const TcpStoreServer server;
    port = server.port();
  }
  std::thread early([port] {
    TcpStore client(absl::StrCat("127.0.0.1:", port), {.connect_timeout = kLong});
    client.Set("early", "1");
    EXPECT_EQ(client.Get("late", kLong), "2");
  });
  std::this_thread::sleep_for(milliseconds(800));
  const TcpStoreServer server({.port = port});
  TcpStore client(server.address());
  EXPECT_EQ(client.Get("early", kLong), "1");
  client.Set("late", "2");
  early.join();
}

TEST(TcpStoreTest, MutualTls) {
  const Certificates ours;
  const Certificates theirs;
  const StoreTls server_tls = ours.Sign("server", "IP:127.0.0.1,DNS:node0");
  const StoreTls client_tls = ours.Sign("client", "DNS:node1");
  const StoreTls foreign_tls = theirs.Sign("client", "DNS:node1");
  const TcpStoreServer server({.host = "127.0.0.1", .token = "t", .tls = server_tls});
  EXPECT_EQ(server.notice(), "");
  {
    TcpStore client(server.address(), {.token = "t", .tls = client_tls});
    client.Set("k", std::string(Store::kMaxValueBytes, 'v'));
    EXPECT_EQ(client.Get("k", kLong).size(), static_cast<size_t>(Store::kMaxValueBytes));
  }
  const auto join = [&](const std::string& token, std::optional<StoreTls> tls, milliseconds timeout) {
    return MessageOf(
        [&] { TcpStore(server.address(), {.token = token, .tls = tls, .connect_timeout = timeout}); });
  };
  constexpr milliseconds kRefused = milliseconds(300);  // it tries as long as it may
  EXPECT_THAT(join("wrong", client_tls, kLong), HasSubstr("wrong token"));
  EXPECT_THAT(join("t", std::nullopt, kRefused), StartsWith("no store answers at"));
  // Its own authority has signed the server, but the server does not know the client's, and the other way
  // round.
  StoreTls unknown = foreign_tls;
  unknown.ca_file = client_tls.ca_file;
  EXPECT_THAT(join("t", unknown, kRefused), StartsWith("no store answers at"));
  StoreTls distrustful = client_tls;
  distrustful.ca_file = foreign_tls.ca_file;
  EXPECT_THAT(join("t", distrustful, kRefused), StartsWith("no store answers at"));
  StoreTls named = client_tls;
  named.server_name = "node0";
  EXPECT_EQ(join("t", named, kLong), "no error");
  named.server_name = "node7";
  EXPECT_THAT(join("t", named, kRefused), StartsWith("no store answers at"));
  StoreTls no_file = client_tls;
  no_file.key_file = "/nowhere/x.key";
  EXPECT_EQ(join("t", no_file, kLong),
            "the private key: cannot read '/nowhere/x.key': No such file or directory");
  no_file.key_file = "";
  EXPECT_EQ(join("t", no_file, kLong), "mutual TLS takes three files, and the private key is not given");
  no_file.key_file = testing::TempDir() + "/no.pem";
  std::ofstream(no_file.key_file) << "a text\n";
  EXPECT_EQ(join("t", no_file, kLong),
            absl::StrCat("the private key ", no_file.key_file, " is not a PEM file"));
}

TEST(TcpStoreTest, GenerationsOfAJobByPrefix) {
  const TcpStoreServer server;
  const auto client = std::make_shared<TcpStore>(server.address());
  PrefixStore first(client, "run/0/");
  PrefixStore second(client, "run/1/");
  first.Set("k", "old");
  EXPECT_EQ(second.TryGet("k"), std::nullopt);
  EXPECT_EQ(client->TryGet("run/0/k"), "old");
  std::vector<std::string> many(170, std::string(Store::kMaxKeyBytes, 'k'));
  EXPECT_EQ(InvalidArgumentMessage([&] { client->Wait(many, kLong); }),
            "the 170 keys of one call have together more than 2162688 bytes");
}

}  // namespace
}  // namespace weft
