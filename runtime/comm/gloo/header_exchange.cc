#include "runtime/comm/gloo/header_exchange.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

void HeaderExchange::Expect() {
  for (int peer : group_.ring_peers()) {
    GlooHeader& header = group_.header_from(peer);
    group_.channel(peer, GlooLane::kCollective).Receive(header.bytes(), header.line_bytes());
  }
  group_.ExpectHeaders();
}

// Takes the next step with what has come; true once the header has.
bool HeaderExchange::FromRing(int peer, absl::FunctionRef<void(int peer)> behind) {
  GlooHeader& header = group_.header_from(peer);
  PeerChannel& channel = group_.channel(peer, GlooLane::kCollective);
  char& stage = stage_[peer];
  const auto is_there = [&] { return channel.num_received() == channel.num_receives(); };
  if (stage == 0 && is_there()) {
    const int64_t rest = header.num_bytes() - header.line_bytes();
    channel.Receive(header.bytes() + header.line_bytes(), rest);
    stage = 1;
    if (rest > 0) group_.Pump();
  }
  if (stage == 1 && is_there()) {
    stage = 2;
    ++num_come_;
    behind(peer);
  }
  return stage == 2;
}

void HeaderExchange::Await(GlooWait& wait, absl::FunctionRef<void(int peer)> behind) {
  if (!group_.ring_peers().empty()) {
    const int num_rings = static_cast<int>(group_.ring_peers().size());
    group_.Await(
        [&] {
          for (int peer : group_.ring_peers()) {
            if (stage_[peer] != 2) FromRing(peer, behind);
          }
          return num_come_ == num_rings;
        },
        wait);
  }
  for (int peer : group_.tcp_peers()) {
    group_.AwaitTcpReceives(
        peer, GlooLane::kCollective, [&] { return HasCome(peer); }, wait);
    ++num_come_;
  }
}

void HeaderExchange::Disagree(int a, int b, const std::string& what) {
  const auto called = [&](int member) {
    return absl::StrCat("rank ", group_.ranks()[member], " called ",
                        HeaderOf(member).Descriptor().ToString());
  };
  group_.Fail(absl::StatusCode::kInvalidArgument,
              absl::StrCat(group_.Where(HeaderOf(a).Descriptor().kind, HeaderOf(a).sequence()), ": ",
                           called(a), ", ", called(b), what));
  group_.Leave();
}

void HeaderExchange::Agree() {
  const GlooHeader& first = HeaderOf(0);
  for (int peer = 1; peer < group_.size(); ++peer) {
    if (!first.AgreesWith(HeaderOf(peer))) Disagree(0, peer, "");
  }
  if (first.Descriptor().kind != CollectiveKind::kAllToAll) return;
  for (int from = 0; from < group_.size(); ++from) {
    for (int to = 0; to < group_.size(); ++to) {
      const int64_t sent = HeaderOf(from).counts()[to];
      const int64_t expected = HeaderOf(to).receive_counts()[from];
      if (sent == expected) continue;
      Disagree(from, to,
               absl::StrCat(": rank ", group_.ranks()[from], " sends ", sent, " elements to rank ",
                            group_.ranks()[to], ", which expects ", expected));
    }
  }
}

}  // namespace weft
