#ifndef WEFT_RUNTIME_LAUNCH_HANGS_HANG_VERDICT_H_
#define WEFT_RUNTIME_LAUNCH_HANGS_HANG_VERDICT_H_

#include <optional>
#include <string>
#include <vector>

#include "runtime/launch/hangs/rank_status.h"

namespace weft {

// What is known of one rank when a collective is late.
struct RankReport {
  int rank = 0;
  std::optional<RankStatus> status = {};  // nullopt: it has not answered
  std::string gone = {};                  // "exited with code 9"; empty: not known to be gone
  double silent_seconds = 0;              // how long it has not answered, if it has not
};

// Why a collective is late.
struct HangVerdict {
  std::string text = {};
  // The ranks wait for each other in a circle, so none of it can ever end.
  bool deadlock = false;

  bool operator==(const HangVerdict&) const = default;
};

// Explains what the operation that `rank` waits in (RankStatus::waits_in) waits for, as far as the reports
// tell; nullopt if it waits in none. One report per rank of the world, by rank.
//
// A member is missing if it has issued fewer collectives on the group than the late one's number, or has it
// queued. A circle is sought along blocking collectives that members have not issued: messages, asynchronous
// work and what is queued may still go on, unless a rank's own thread waits for it.
//
// The text, for example: "rank 3 is at all_gather(f32, count 8) #41 on axis tp (blocks.2.attn.qkv, param)
// while ranks 0-2 wait in all_reduce(f32, sum, count 4) #41 on axis dp (blocks.2.mlp, grad)", "rank 2 has not
// entered (last seen: data loader, 4.2 s ago)", "rank 2 has it queued behind other work (issued 4.2 s ago)",
// "rank 1 exited with code 9". Through asynchronous work: "rank 2 waits for all_reduce(f32, sum, count 9) #3 on axis
// dp (gradient bucket 3, from blocks.1.mlp.up to blocks.0.ln_1, grad), issued 4.0 s ago; rank 1 has not issued it: it is
// in forward of blocks.4"; what is queued adds what holds it up: "..., issued 4.0 s ago, queued behind all_reduce(f32,
// sum, count 8) #2 on axis dp; ... has not issued that: ...". Of a message, what both ends do: "rank 1, in RECV_F of stage
// 2, microbatch 3, waits for send_recv(...), issued 4.0 s ago; rank 0 is in W of stage 1, microbatch 2".
std::optional<HangVerdict> ExplainHang(const std::vector<RankReport>& reports, int rank);

// "rank 3", "ranks 0-2", "ranks 0-2, 5". Ascending ranks, at least one.
std::string RankList(const std::vector<int>& ranks);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_HANGS_HANG_VERDICT_H_
