#include "runtime/store/tcp_address.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(TcpAddressTest, TheLoopbackHasSeveralNames) {
  for (const char* const host : {"localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* const host : {"", "0.0.0.0", "10.127.0.1", "1127.0.0.1", "node0", "::", "127.example.org",
                                 "127.example.org.", "127.0.0.x"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace weft
