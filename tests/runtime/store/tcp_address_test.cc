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

TEST(TcpAddressTest, TargetsAreComparedWithoutTheOrderOfTheirAddresses) {
  const char* const both = "ipv4:10.0.0.1:80,10.0.0.2:80";
  EXPECT_TRUE(SameAddresses(both, both));
  EXPECT_TRUE(SameAddresses(both, "ipv4:10.0.0.2:80,10.0.0.1:80"));
  EXPECT_TRUE(SameAddresses("ipv6:[::1]:80,[::2]:80", "ipv6:[::2]:80,[::1]:80"));
  for (const char* const other : {"", "ipv4:10.0.0.1:80", "ipv4:10.0.0.2:80", "ipv4:10.0.0.1:80,10.0.0.3:80",
                                  "ipv4:10.0.0.1:80,10.0.0.2:81", "ipv4:10.0.0.1:80,10.0.0.2:80,10.0.0.3:80",
                                  "ipv6:[::1]:80,[::2]:80"}) {
    EXPECT_FALSE(SameAddresses(both, other)) << other;
    EXPECT_FALSE(SameAddresses(other, both)) << other;
  }
}

}  // namespace
}  // namespace weft
