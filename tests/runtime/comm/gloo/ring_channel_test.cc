// Rings between two threads: the two ends share memory as two processes do, and a race is seen.

#include "runtime/comm/gloo/ring_channel.h"

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

// Two members and the memory between them.
class Pair {
 public:
  explicit Pair(int64_t capacity)
      : bytes_{std::vector<Line>(capacity / 64), std::vector<Line>(capacity / 64)} {
    for (int i = 0; i < 2; ++i) {
      ends_[i].written = 0;
      ends_[i].read = 0;
    }
    for (int i = 0; i < 2; ++i) {
      channels_[i] = std::make_unique<RingChannel>(
          RingWriter(&ends_[i], bytes_[i][0].bytes, capacity),
          RingReader(&ends_[1 - i], bytes_[1 - i][0].bytes, capacity), &bells_[1 - i]);
    }
  }
  RingChannel& operator[](int i) { return *channels_[i]; }
  Doorbell& bell(int i) { return bells_[i]; }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };
  RingEnds ends_[2];
  std::vector<Line> bytes_[2];
  Doorbell bells_[2];
  std::unique_ptr<RingChannel> channels_[2];
};

char ByteOf(int64_t message, int64_t i) { return static_cast<char>(message * 31 + i * 7 + (i >> 8)); }

std::vector<char> MessageOfSize(int64_t message, int64_t num_bytes) {
  std::vector<char> bytes(num_bytes);
  for (int64_t i = 0; i < num_bytes; ++i) bytes[i] = ByteOf(message, i);
  return bytes;
}

constexpr int64_t kSizes[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 100003};

// Both send and receive all the while, sleeping when there is nothing to do; messages are many times a ring.
TEST(RingChannelTest, MessagesOfAnySizePassBothWaysWholeAndInOrder) {
  Pair pair(4096);
  const auto run = [&](int me) {
    std::vector<std::vector<char>> sent, received;
    for (int round = 0; round < 20; ++round) {
      for (int64_t size : kSizes) {
        sent.push_back(MessageOfSize(static_cast<int64_t>(sent.size()) + me, size));
        received.emplace_back(size);
      }
    }
    RingChannel& channel = pair[me];
    for (size_t i = 0; i < sent.size(); ++i) {
      channel.Send(sent[i].data(), static_cast<int64_t>(sent[i].size()));
      channel.Receive(received[i].data(), static_cast<int64_t>(received[i].size()));
    }
    while (channel.sending() || channel.receiving()) {
      if (channel.Pump()) continue;
      pair.bell(me).sleeping.store(1);
      const uint32_t seen = pair.bell(me).count.load();
      if (!channel.Pump()) pair.bell(me).Sleep(seen, std::chrono::milliseconds(1000));
      pair.bell(me).sleeping.store(0);
    }
    for (size_t i = 0; i < sent.size(); ++i) {
      ASSERT_EQ(received[i], MessageOfSize(static_cast<int64_t>(i) + 1 - me, received[i].size()))
          << "message " << i;
    }
    ASSERT_EQ(channel.num_received(), channel.num_receives());
    ASSERT_EQ(channel.num_unsent(), 0);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

// What is read in place is aligned, whole lines but for the end, and never wraps around.
TEST(RingChannelTest, BytesAreReadInPlace) {
  Pair pair(256);
  for (int64_t size : {1, 64, 100, 200, 256}) {
    const std::vector<char> message = MessageOfSize(size, size);
    pair[0].Send(message.data(), size);
    EXPECT_FALSE(pair[0].sending()) << "the ring had room for " << size;
    for (int64_t at = 0; at < size;) {
      const absl::Span<const char> front = pair[1].Front(size - at);
      ASSERT_GT(front.size(), 0u);
      ASSERT_TRUE(pair[1].IsWhole(front, size - at));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(front.data()) % 64, 0u);
      for (size_t i = 0; i < front.size(); ++i) ASSERT_EQ(front[i], message[at + i]);
      pair[1].Consume(front.size());
      at += static_cast<int64_t>(front.size());
    }
    EXPECT_TRUE(pair[1].Front(1).empty());
  }
}

TEST(RingChannelTest, AFullRingTakesTheRestLater) {
  Pair pair(128);
  const std::vector<char> message = MessageOfSize(1, 200);
  pair[0].Send(message.data(), 200);
  EXPECT_EQ(pair[0].num_unsent(), 72);
  EXPECT_FALSE(pair[0].Pump());
  std::vector<char> received(200);
  pair[1].Receive(received.data(), 200);
  EXPECT_TRUE(pair[1].Pump());
  EXPECT_TRUE(pair[1].receiving());
  EXPECT_TRUE(pair[0].Pump());
  EXPECT_TRUE(pair[1].Pump());
  EXPECT_FALSE(pair[1].receiving());
  EXPECT_EQ(received, message);
}

}  // namespace
}  // namespace weft
