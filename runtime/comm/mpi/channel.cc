#include "runtime/comm/mpi/channel.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/comm/mpi/check.h"

namespace weft {
namespace {

constexpr int kTag = 0;
// Packets that one Poll delivers at most: its caller has a deadline to keep.
constexpr int kMostAtOnce = 64;

}  // namespace

bool MpiChannel::Sending::Done() {
  int sent = 0;
  CheckMpi(MPI_Test(&request, &sent, MPI_STATUS_IGNORE), "MPI_Test");
  return sent != 0;
}

struct MpiChannel::Unsent final : MpiLeftover {
  explicit Unsent(std::list<Sending> frames) : frames(std::move(frames)) {}
  bool Done() override {
    frames.remove_if([](Sending& sending) { return sending.Done(); });
    return frames.empty();
  }
  std::string What() const override { return absl::StrCat(frames.size(), " packets"); }
  std::list<Sending> frames;
};

MpiChannel::MpiChannel(MPI_Comm comm, std::shared_ptr<MpiLeftovers> leftovers)
    : comm_(comm), leftovers_(std::move(leftovers)) {
  CheckMpi(MPI_Recv_init(&received_, kFrameBytes, MPI_BYTE, MPI_ANY_SOURCE, kTag, comm_, &receive_),
           "MPI_Recv_init");
  CheckMpi(MPI_Start(&receive_), "MPI_Start");
}

MpiChannel::~MpiChannel() {
  MPI_Cancel(&receive_);
  MPI_Wait(&receive_, MPI_STATUS_IGNORE);
  MPI_Request_free(&receive_);
  if (!sending_.empty()) leftovers_->Keep(std::make_unique<Unsent>(std::move(sending_)));
}

void MpiChannel::SendFrame(int to, absl::string_view bytes, bool more) {
  if (free_.empty()) free_.emplace_back();
  Sending& sending = free_.front();
  sending.frame.more = more;
  std::memcpy(sending.frame.bytes, bytes.data(), bytes.size());
  CheckMpi(MPI_Isend(&sending.frame, static_cast<int>(bytes.size()) + 1, MPI_BYTE, to, kTag, comm_,
                     &sending.request),
           "MPI_Isend");
  if (sending.Done()) return;  // as a rule: the frame serves again
  sending_.splice(sending_.end(), free_, free_.begin());
  is_sending_.store(true, std::memory_order_relaxed);
}

void MpiChannel::ReapSent() {
  for (auto sending = sending_.begin(); sending != sending_.end();) {
    const auto next = std::next(sending);
    if (sending->Done()) free_.splice(free_.begin(), sending_, sending);
    sending = next;
  }
  is_sending_.store(!sending_.empty(), std::memory_order_relaxed);
}

void MpiChannel::Send(absl::Span<const int> ranks, absl::string_view packet) {
  const std::lock_guard<std::mutex> lock(send_mutex_);
  for (const int rank : ranks) {
    absl::string_view rest = packet;
    do {
      const absl::string_view part = rest.substr(0, sizeof(Frame::bytes));
      rest.remove_prefix(part.size());
      SendFrame(rank, part, /*more=*/!rest.empty());
    } while (!rest.empty());
  }
}

void MpiChannel::Poll(absl::FunctionRef<void(int from, absl::string_view packet)> deliver) {
  if (is_sending_.load(std::memory_order_relaxed)) {
    const std::lock_guard<std::mutex> lock(send_mutex_);
    ReapSent();
  }
  for (int i = 0; i < kMostAtOnce; ++i) {
    int arrived = 0;
    MPI_Status status;
    CheckMpi(MPI_Test(&receive_, &arrived, &status), "MPI_Test");
    if (!arrived) return;
    int num_bytes = 0;
    CheckMpi(MPI_Get_count(&status, MPI_BYTE, &num_bytes), "MPI_Get_count");
    const int from = status.MPI_SOURCE;
    const absl::string_view part(received_.bytes, num_bytes - 1);
    if (received_.more) {
      begun_[from].append(part.data(), part.size());
    } else if (const auto begun = begun_.empty() ? begun_.end() : begun_.find(from); begun != begun_.end()) {
      std::string packet = std::move(begun->second);
      begun_.erase(begun);
      packet.append(part.data(), part.size());
      deliver(from, packet);
    } else {
      deliver(from, part);
    }
    CheckMpi(MPI_Start(&receive_), "MPI_Start");
  }
}

}  // namespace weft
