#include "runtime/comm/mpi/transport.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/mpi/check.h"

namespace weft {
namespace {

MPI_Comm Duplicate(MPI_Comm comm) {
  MPI_Comm duplicate = MPI_COMM_NULL;
  CheckMpi(MPI_Comm_dup(comm, &duplicate), "MPI_Comm_dup");
  CheckMpi(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return duplicate;
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm parent, bool spin, const MpiOptions& options,
                           std::shared_ptr<MpiLeftovers> leftovers)
    : parent_(parent), spin_(spin), options_(options), leftovers_(std::move(leftovers)) {
  WEFT_REQUIRE(options.block_bytes >= 8 && options.max_count >= 1 &&
                   options.max_count <= std::numeric_limits<int>::max(),
               "MpiOptions: block_bytes ", options.block_bytes, " must be at least 8, max_count ",
               options.max_count, " from 1 to ", std::numeric_limits<int>::max());
  CheckMpi(MPI_Comm_rank(parent_, &rank_), "MPI_Comm_rank");
  CheckMpi(MPI_Comm_size(parent_, &size_), "MPI_Comm_size");
  packets_ = Duplicate(parent_);
  messages_ = Duplicate(parent_);
  std::fill_n(types_, 9, MPI_DATATYPE_NULL);
  for (const DType dtype : kAllDTypes) {
    MPI_Datatype& type = types_[ItemSize(dtype)];
    if (type != MPI_DATATYPE_NULL) continue;
    CheckMpi(MPI_Type_contiguous(static_cast<int>(ItemSize(dtype)), MPI_BYTE, &type), "MPI_Type_contiguous");
    CheckMpi(MPI_Type_commit(&type), "MPI_Type_commit");
  }
  answers_ = std::make_unique<std::atomic<uint64_t>[]>(size_);
  channel_ = std::make_unique<MpiChannel>(packets_, leftovers_);
}

MpiTransport::~MpiTransport() { Close(); }

// A communicator that MPI has forgotten may lend its number to another, which would then get what was still
// on its way to the first: so they stay, after a failure.
void MpiTransport::Close() {
  if (is_closed()) return;
  has_ended_.store(true);
  channel_ = nullptr;
  for (MPI_Datatype& type : types_) {
    if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);  // once its last operation is done
  }
  if (!quiet_.load() || !leftovers_->Pending().empty()) return;
  MPI_Comm comms[] = {packets_, messages_, parent_};
  for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
}

void MpiTransport::Poll() {
  const std::unique_lock<std::mutex> lock(poll_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || is_closed()) return;
  channel_->Poll([this](int from, absl::string_view packet) { Handle(from, MpiPacketReader(packet)); });
}

void MpiTransport::Handle(int from, MpiPacketReader packet) {
  if (packet.kind() == MpiPacketKind::kAsk) {
    if (has_ended()) return;
    MpiPacketWriter answer(MpiPacketKind::kAnswer);
    channel_->Send({from}, answer.Put(packet.Get<uint64_t>()).bytes());
  } else if (packet.kind() == MpiPacketKind::kAnswer) {
    answers_[from].store(packet.Get<uint64_t>());
  } else {
    handler_(from, packet);
  }
}

std::vector<int> MpiTransport::Silent(absl::Span<const int> ranks, std::chrono::milliseconds patience) {
  const uint64_t question = num_questions_.fetch_add(1) + 1;
  MpiPacketWriter ask(MpiPacketKind::kAsk);
  Send(ranks, ask.Put(question));
  std::vector<int> silent(ranks.begin(), ranks.end());
  const auto end = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < end && !silent.empty()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    Poll();
    std::erase_if(silent, [&](int rank) { return answers_[rank].load() >= question; });
  }
  return silent;
}

void MpiTransport::Send(absl::Span<const int> ranks, const MpiPacketWriter& packet) {
  if (has_ended()) Throw(absl::StatusCode::kFailedPrecondition, "this rank has ended");
  channel_->Send(ranks, packet.bytes());
}

void MpiTransport::SendLast(const MpiPacketWriter& packet) {
  if (has_ended_.exchange(true)) return;
  std::vector<int> others;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) others.push_back(rank);
  }
  channel_->Send(others, packet.bytes());
}

}  // namespace weft
