// Strangers at a store's port: whatever they send, they are refused, and the job's own clients notice
// nothing.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store.pb.h"
#include "runtime/store/tcp_store_server.h"
#include "runtime/store/tcp_wire.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr char kToken[] = "the token";
constexpr char kRun[] = "the run";
constexpr char kService[] = "/weft.tcp_store.StoreService/";
constexpr int kSeed = 4711;

std::string RandomBytes(std::mt19937& random, size_t most) {
  std::string bytes(random() % (most + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// How a connection of HTTP/2 begins: a greeting and empty settings.
std::string Preface() {
  return absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", std::string("\0\0\0\4\0\0\0\0\0", 9));
}

// Bytes that get further than noise: whole frames of HTTP/2, of any type, flags and stream, and of lengths
// that are not always theirs.
std::string RandomFrames(std::mt19937& random) {
  std::string bytes = Preface();
  for (int frame = static_cast<int>(random() % 6); frame >= 0; --frame) {
    const std::string payload = RandomBytes(random, 60);
    const size_t length = random() % 4 == 0 ? random() & 0xffffff : payload.size();
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(length >> shift));
    bytes.push_back(static_cast<char>(random() % 11));
    bytes.push_back(static_cast<char>(random()));
    bytes.append({'\0', '\0', '\0', static_cast<char>(random() % 5)});
    bytes += payload;
  }
  return bytes;
}

// A connection without gRPC.
class RawConnection {
 public:
  explicit RawConnection(int port) : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int failure = connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    WEFT_CHECK(failure == 0, "cannot connect");
  }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;
  ~RawConnection() { close(descriptor_); }

  void Send(const std::string& bytes) { send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

  // The end comes to the peer as a reset.
  void ResetAtEnd() {
    const linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }

  // Whether the server closes it in time.
  bool IsClosedWithin(milliseconds timeout) {
    const Clock::time_point deadline = Clock::now() + timeout;
    while (true) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
      pollfd waited = {.fd = descriptor_, .events = POLLIN, .revents = 0};
      if (left <= 0 || poll(&waited, 1, static_cast<int>(left)) <= 0) return false;
      char chunk[4096];
      if (recv(descriptor_, chunk, sizeof(chunk), 0) <= 0) return true;
    }
  }

 private:
  const int descriptor_;
};

// A stranger who speaks gRPC.
class GrpcStranger {
 public:
  explicit GrpcStranger(int port)
      : stub_(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials())) {}

  // Calls `method` with these bytes as its message.
  grpc::Status Call(const std::string& method, const std::string& message, const char* token,
                    const char* run) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (token != nullptr) context.AddMetadata(kTokenHeader, token);
    if (run != nullptr) context.AddMetadata(kRunHeader, run);
    const grpc::Slice slice(message);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::CompletionQueue queue;
    const auto call = stub_.PrepareUnaryCall(&context, kService + method, request, &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, /*tag=*/this);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

 private:
  grpc::GenericStub stub_;
};

// A client of the job at work, in a thread, until it is told to stop; it counts its own wrong results.
class Worker {
 public:
  Worker(const std::string& address, std::string name) : thread_([=, this] { Work(address, name); }) {}
  ~Worker() { Stop(); }

  void Stop() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int64_t num_rounds() const { return num_rounds_; }
  const std::string& failure() const { return failure_; }  // after Stop

 private:
  void Work(const std::string& address, const std::string& name) {
    try {
      TcpStore store(address, {.run_id = kRun, .token = kToken});
      while (!done_) {
        const int64_t round = num_rounds_ + 1;
        const std::string value = absl::StrCat(name, " in round ", round);
        store.Set(name, value);
        WEFT_CHECK(store.Get(name, std::chrono::seconds(30)) == value, "another value");
        WEFT_CHECK(store.Add(name + "/n", 1) == round, "another number");
        WEFT_CHECK(store.CompareSet(name, value, "next") == "next", "another exchange");
        WEFT_CHECK(store.Delete(name) && !store.Check({name}), "not deleted");
        num_rounds_ = round;
      }
    } catch (const Error& error) {
      failure_ = error.message();
    }
  }

  std::atomic<bool> done_ = false;
  std::atomic<int64_t> num_rounds_ = 0;
  std::string failure_;
  std::thread thread_;
};

class TcpStoreFuzzTest : public testing::Test {
 protected:
  TcpStoreFuzzTest() : a_(server_.address(), "a"), b_(server_.address(), "b") {}

  // That both clients worked on, and a new one can join.
  void ExpectUndisturbed() {
    const int64_t before[] = {a_.num_rounds(), b_.num_rounds()};
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(20);
    const auto have_gone_on = [&] { return a_.num_rounds() > before[0] && b_.num_rounds() > before[1]; };
    while (!have_gone_on() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(2));
    EXPECT_TRUE(have_gone_on());
    a_.Stop();
    b_.Stop();
    EXPECT_EQ(a_.failure(), "");
    EXPECT_EQ(b_.failure(), "");
    TcpStore late(server_.address(), {.run_id = kRun, .token = kToken});
    EXPECT_EQ(late.Add("a/n", 0), a_.num_rounds());
    EXPECT_EQ(late.Add("b/n", 0), b_.num_rounds());
    EXPECT_EQ(late.TryGet("stranger"), std::nullopt);
  }

  const TcpStoreServer server_{{.host = "127.0.0.1", .run_id = kRun, .token = kToken}};
  Worker a_;
  Worker b_;
};

TEST_F(TcpStoreFuzzTest, BytesThatAreNotGrpc) {
  std::mt19937 random(kSeed);
  const std::string tls_hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  TcpStore quiet(server_.address(), {.run_id = kRun, .token = kToken});
  std::vector<std::unique_ptr<RawConnection>> half_open;
  for (int i = 0; i < 20; ++i) {
    half_open.push_back(std::make_unique<RawConnection>(server_.port()));
    // Nothing, part of a preface, or all of it and then nothing.
    if (i % 4 == 1) half_open.back()->Send(Preface().substr(0, i));
    if (i % 4 == 2) half_open.back()->Send(Preface());
  }
  for (int i = 0; i < 400; ++i) {
    RawConnection stranger(server_.port());
    switch (i % 6) {
      case 0:
        stranger.Send(RandomBytes(random, 2000));
        break;
      case 1:
      case 2:
        stranger.Send(RandomFrames(random));
        break;
      case 3:
        stranger.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        break;
      case 4:
        stranger.Send(tls_hello + RandomBytes(random, 300));
        break;
      default:
        stranger.Send(RandomFrames(random).substr(0, random() % 80));
    }
    if (random() % 3 == 0) stranger.ResetAtEnd();
    if (random() % 8 == 0) std::this_thread::sleep_for(milliseconds(2));
  }
  RawConnection plain(server_.port());
  plain.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(plain.IsClosedWithin(std::chrono::seconds(10)));
  // Those who say nothing are let wait for some seconds, not longer.
  for (const auto& stranger : half_open) EXPECT_TRUE(stranger->IsClosedWithin(std::chrono::seconds(15)));
  // A client may be as silent, and as long.
  EXPECT_EQ(quiet.Add("quiet", 1), 1);
  ExpectUndisturbed();
}

TEST_F(TcpStoreFuzzTest, CallsOfStrangersKeepNothing) {
  GrpcStranger stranger(server_.port());
  tcp_store::Entry entry;
  entry.set_key("stranger");
  entry.set_value("was here");
  const std::string message = entry.SerializeAsString();  // a Key, an Exchange and Keys too
  const auto code = [&](const char* method, const char* token, const char* run) {
    return stranger.Call(method, message, token, run).error_code();
  };
  for (const char* method :
       {"Set", "TryGet", "Add", "CompareSet", "Delete", "Missing", "Get", "Wait", "Session"}) {
    SCOPED_TRACE(method);
    EXPECT_EQ(code(method, nullptr, kRun), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code(method, "the tokeN", kRun), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(code(method, kToken, "another"), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(code(method, kToken, nullptr), grpc::StatusCode::PERMISSION_DENIED);
  }
  EXPECT_EQ(code("Steal", kToken, kRun), grpc::StatusCode::UNIMPLEMENTED);
  ExpectUndisturbed();
}

TEST_F(TcpStoreFuzzTest, OversizedMessagesAreRefused) {
  GrpcStranger stranger(server_.port());
  const std::string large(kMaxMessageBytes + 1, 'x');
  for (const char* token : {"wrong", kToken}) {
    const grpc::Status status = stranger.Call("Set", large, token, kRun);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("larger than max"));
  }
  // Within the message's limit and over the value's: the server checks for clients that do not.
  tcp_store::Entry entry;
  entry.set_key("stranger");
  entry.set_value(std::string(Store::kMaxValueBytes + 1, 'x'));
  const grpc::Status status = stranger.Call("Set", entry.SerializeAsString(), kToken, kRun);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("a store's value has at most 1048576 bytes"));
  ExpectUndisturbed();
}

// From a client that has the token, and a defect.
TEST_F(TcpStoreFuzzTest, MalformedMessagesAreRefused) {
  GrpcStranger stranger(server_.port());
  std::mt19937 random(kSeed);
  int num_refused = 0;
  for (int i = 0; i < 300; ++i) {
    const char* const methods[] = {"Set", "TryGet", "Add", "CompareSet", "Delete", "Missing"};
    const std::string bytes = i % 10 == 0 ? std::string(i, '\xff') : RandomBytes(random, 40);
    const grpc::Status status = stranger.Call(methods[i % 6], bytes, kToken, kRun);
    num_refused += !status.ok();
    // Unimplemented is gRPC's word for a message that does not decode.
    EXPECT_THAT(status.error_code(), testing::AnyOf(grpc::StatusCode::OK, grpc::StatusCode::UNIMPLEMENTED,
                                                    grpc::StatusCode::INVALID_ARGUMENT))
        << status.error_message();
  }
  EXPECT_GT(num_refused, 200);
  ExpectUndisturbed();
}

// What decodes at all decodes to something that keeps its meaning when it is written and read again.
template <class Message>
int NumDecoded(std::mt19937& random, const Message& sample) {
  int num_decoded = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = i % 2 == 0 ? RandomBytes(random, 50) : sample.SerializeAsString();
    if (i % 2 == 1) {
      for (int flips = static_cast<int>(random() % 4); flips >= 0; --flips) {
        bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
      }
      if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    }
    Message message;
    if (!message.ParseFromString(bytes)) continue;
    ++num_decoded;
    Message again;
    EXPECT_TRUE(again.ParseFromString(message.SerializeAsString()));
    EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
  }
  return num_decoded;
}

TEST(TcpStoreMessagesTest, RandomBytes) {
  std::mt19937 random(kSeed);
  tcp_store::Exchange exchange;
  exchange.set_key("key");
  exchange.set_expected("expected");
  exchange.set_desired("desired");
  tcp_store::Amount amount;
  amount.set_key("key");
  amount.set_amount(-5);
  tcp_store::Keys keys;
  for (const char* key : {"a", "b", "c"}) keys.add_keys(key);
  tcp_store::SessionRequest request;
  request.mutable_last_will()->set_key("key");
  request.mutable_last_will()->set_value("value");
  for (const int num_decoded : {NumDecoded(random, exchange), NumDecoded(random, amount),
                                NumDecoded(random, keys), NumDecoded(random, request)}) {
    EXPECT_GT(num_decoded, 100);
    EXPECT_LT(num_decoded, 3900);
  }
}

}  // namespace
}  // namespace weft
