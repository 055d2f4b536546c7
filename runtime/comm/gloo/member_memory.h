#ifndef WEFT_RUNTIME_COMM_GLOO_MEMBER_MEMORY_H_
#define WEFT_RUNTIME_COMM_GLOO_MEMBER_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/comm/gloo/doorbell.h"
#include "runtime/comm/gloo/peer_channel.h"
#include "runtime/comm/gloo/ring.h"
#include "runtime/comm/gloo/shared_segment.h"

namespace weft {

// What a member of a group shows the peers on its host, in a segment that it has made: whether it is still in
// the group and why not, its doorbell, and the rings in which it sends.
class MemberMemory {
 public:
  enum State : uint32_t { kPresent, kDeparted, kFailed };
  static constexpr int64_t kReasonBytes = 3000;

  // Seen by all; written by the maker, but for the doorbell.
  struct Board {
    std::atomic<uint32_t> state;
    int32_t code;  // of the error; with the reason, there once the state is kFailed
    char reason[kReasonBytes];
    Doorbell bell;
  };

  // `hosted`: the group ranks that share memory, ascending; `maker` is one of them.
  // Errors: as SharedSegment.
  static std::unique_ptr<MemberMemory> Make(absl::string_view folder, const std::vector<int>& hosted,
                                            int maker);
  static std::unique_ptr<MemberMemory> Open(const std::string& address, absl::string_view folder,
                                            const std::vector<int>& hosted, int maker);

  Board& board() const { return *reinterpret_cast<Board*>(segment_->data()); }
  const std::string& address() const { return segment_->address(); }
  bool MakerIsAlive() const { return segment_->MakerIsAlive(); }

  // The ends of the ring in which the maker sends to `peer`, each for one of the two.
  RingWriter Writer(int peer, GlooLane lane) const;
  RingReader Reader(int peer, GlooLane lane) const;

 private:
  struct Place;

  MemberMemory(std::unique_ptr<SharedSegment> segment, std::vector<int> hosted, int maker)
      : segment_(std::move(segment)), hosted_(std::move(hosted)), maker_(maker) {}
  Place PlaceOf(int peer, GlooLane lane) const;

  const std::unique_ptr<SharedSegment> segment_;
  const std::vector<int> hosted_;
  const int maker_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_MEMBER_MEMORY_H_
