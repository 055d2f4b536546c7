#include "runtime/comm/mpi/move_large.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "runtime/comm/mpi/check.h"
#include "runtime/comm/mpi/group_comm.h"
#include "runtime/comm/mpi/pending.h"
#include "runtime/comm/mpi/wait.h"
#include "runtime/comm/reduction.h"

namespace weft {
namespace {

// Of the messages that stand in for a collective.
constexpr int kPieceTag = 1;

// The pieces of a buffer, one for each member.
struct Pieces {
  char* base = nullptr;
  std::vector<int64_t> counts;
  std::vector<int64_t> offsets;
};

template <class Counts>
Pieces Adjacent(char* base, const Counts& counts) {
  Pieces pieces{base, {counts.begin(), counts.end()}, std::vector<int64_t>(counts.size())};
  for (size_t i = 1; i < counts.size(); ++i) pieces.offsets[i] = pieces.offsets[i - 1] + counts[i - 1];
  return pieces;
}

// The elements of each piece from `begin` on, `count` at most.
Pieces Part(const Pieces& pieces, int64_t begin, int64_t count) {
  Pieces part = pieces;
  for (size_t i = 0; i < part.counts.size(); ++i) {
    part.offsets[i] += std::min(begin, part.counts[i]);
    part.counts[i] = std::clamp<int64_t>(part.counts[i] - begin, 0, count);
  }
  return part;
}

// Cuts `count` elements into even pieces, which end on cache lines.
Pieces Slices(char* base, int64_t count, int64_t item, int size) {
  const int64_t line = 64 / item;
  const int64_t chunk = ((count + size - 1) / size + line - 1) / line * line;
  std::vector<int64_t> counts(size);
  for (int i = 0; i < size; ++i) counts[i] = std::clamp<int64_t>(count - chunk * i, 0, chunk);
  return Adjacent(base, counts);
}

class Large {
 public:
  Large(MpiGroup& group, const CollectiveCall& call, absl::Span<const MpiPosting> postings,
        absl::FunctionRef<std::string()> what)
      : group_(group),
        call_(call),
        what_(what),
        descriptor_(call.descriptor),
        n_(group.size()),
        me_(group.member()),
        item_(ItemSize(descriptor_.dtype)),
        input_(call.input.defined() ? static_cast<char*>(call.input.data()) : nullptr),
        output_(call.output.defined() ? static_cast<char*>(call.output.data()) : nullptr),
        comm_(GroupComm(group, Awaited(), call.timeout)),
        type_(group.transport().type(descriptor_.dtype)),
        pending_(group.transport().leftovers(), what) {
    pending_.Hold(call.input);
    pending_.Hold(call.output);
    // Alike on all members: they choose the same calls of MPI.
    for (const MpiPosting& posting : postings) {
      const auto& counts = posting.descriptor.counts;
      const auto& receive_counts = posting.receive_counts;
      largest_ = std::max({largest_, std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                           std::accumulate(receive_counts.begin(), receive_counts.end(), int64_t{0})});
    }
  }

  void Run();

 private:
  MpiAwaited Awaited() const {
    return {.what = what_, .missing = missing_, .moving = true, .patience = kMpiMoving};
  }
  bool Fits() const { return largest_ <= group_.transport().options().max_count; }
  // In one block of a reduction.
  int64_t BlockCount() const {
    const MpiOptions& options = group_.transport().options();
    return std::max<int64_t>(1, std::min(options.block_bytes / item_, options.max_count));
  }
  char* At(char* base, int64_t offset) const { return base + offset * item_; }

  void Wait(MpiBatch& batch);
  void WaitForAll();
  // Before and behind a block. Its pieces are under way already; its results and the next block's pieces are started once
  // others have gone first.
  void HoldTurn() const {
    if (call_.turn != nullptr) call_.turn->Hold();
  }
  void FillTurn(int64_t num_bytes) const {
    if (call_.turn != nullptr) call_.turn->Fill(num_bytes);
  }
  void CopyOwn(const char* from, char* to, int64_t count) const {
    if (count > 0 && from != to) std::memcpy(to, from, count * item_);
  }
  void StartMessages(MpiBatch& batch, const Pieces& send, const Pieces& receive);
  void StartAllToAll(MpiBatch& batch, const Pieces& send, const Pieces& receive, bool fits);
  void ReduceSlice(const char* own, const char* staged, char* output, int64_t count) const;

  void ReduceBlocks(bool to_all);
  void ReduceScatter();
  void AllGather();
  void AllToAll();
  void Broadcast();
  void Gather();
  void Scatter();

  MpiGroup& group_;
  const CollectiveCall& call_;
  const absl::FunctionRef<std::string()> what_;
  const CollectiveDescriptor& descriptor_;
  const int n_;
  const int me_;
  const int64_t item_;
  char* const input_;
  char* const output_;
  std::vector<int> others_ = [this] {
    std::vector<int> others;
    for (int peer = 0; peer < n_; ++peer) {
      if (peer != me_) others.push_back(peer);
    }
    return others;
  }();
  const std::function<std::vector<int>()> missing_ = [this] { return others_; };
  const MPI_Comm comm_;
  const MPI_Datatype type_;
  int64_t largest_ = 0;  // elements of the largest buffer of any member
  MpiPending pending_;
};

void Large::Wait(MpiBatch& batch) {
  if (batch.Done()) return;
  MpiWait wait(group_, call_.timeout);
  do {
    wait.Turn(Awaited());
  } while (!batch.Done());
}

void Large::WaitForAll() {
  for (int i = 0; i < MpiPending::kNumBatches; ++i) Wait(pending_.batch(i));
}

// Every pair's piece in as many messages as MPI's ints ask for; the two ends cut it alike.
void Large::StartMessages(MpiBatch& batch, const Pieces& send, const Pieces& receive) {
  const int64_t most = group_.transport().options().max_count;
  const auto for_each = [&](const Pieces& pieces, const auto& start) {
    for (const int peer : others_) {
      for (int64_t begin = 0; begin < pieces.counts[peer]; begin += most) {
        const int count = static_cast<int>(std::min(most, pieces.counts[peer] - begin));
        start(peer, At(pieces.base, pieces.offsets[peer] + begin), count);
      }
    }
  };
  for_each(receive, [&](int peer, char* data, int count) {
    CheckMpi(MPI_Irecv(data, count, type_, peer, kPieceTag, comm_, batch.NewReceive()), "MPI_Irecv");
  });
  for_each(send, [&](int peer, char* data, int count) {
    CheckMpi(MPI_Isend(data, count, type_, peer, kPieceTag, comm_, batch.NewRequest()), "MPI_Isend");
  });
}

// This member's own piece is not moved.
void Large::StartAllToAll(MpiBatch& batch, const Pieces& send, const Pieces& receive, bool fits) {
  if (!fits) return StartMessages(batch, send, receive);
  std::vector<int64_t> sent = send.counts;
  std::vector<int64_t> received = receive.counts;
  sent[me_] = received[me_] = 0;
  CheckMpi(
      MPI_Ialltoallv(send.base, batch.Ints(sent), batch.Ints(send.offsets), type_, receive.base,
                     batch.Ints(received), batch.Ints(receive.offsets), type_, comm_, batch.NewRequest()),
      "MPI_Ialltoallv");
}

// `staged`: the peers' inputs, `count` elements each, in rank order; this member's place among them is not
// read.
void Large::ReduceSlice(const char* own, const char* staged, char* output, int64_t count) const {
  if (count == 0) return;
  absl::InlinedVector<const void*, 8> inputs;
  for (int peer = 0; peer < n_; ++peer) {
    inputs.push_back(peer == me_ ? own : staged + peer * count * item_);
  }
  void* const result = output;
  ReduceInOrder(descriptor_.dtype, descriptor_.op, inputs, {&result, 1}, count);
}

// All-reduce and reduce. Batches 0 and 1 bring the slices of even and odd blocks, 2 and 3 take the results
// away. In place too: what is written of a block has been sent.
void Large::ReduceBlocks(bool to_all) {
  const int64_t total = descriptor_.counts[0];
  const int64_t block = std::min(total, BlockCount());
  const int64_t num_blocks = (total + block - 1) / block;
  const int64_t slice_bytes = Slices(nullptr, block, item_, n_).counts[0] * item_;
  const bool keeps_result = to_all || me_ == descriptor_.root;
  const std::shared_ptr<char[]> staging = group_.Staging(2 * (n_ + 1) * slice_bytes);
  pending_.Hold(staging);
  const auto staged = [&](int64_t b) { return staging.get() + b % 2 * (n_ + 1) * slice_bytes; };
  const auto slices_of = [&](int64_t b, char* base) {
    return Slices(base == nullptr ? nullptr : At(base, b * block), std::min(block, total - b * block), item_,
                  n_);
  };
  const auto start = [&](int64_t b) {
    const Pieces send = slices_of(b, input_);
    Pieces receive{staged(b), std::vector<int64_t>(n_, send.counts[me_]), std::vector<int64_t>(n_)};
    for (int peer = 0; peer < n_; ++peer) receive.offsets[peer] = peer * send.counts[me_];
    StartAllToAll(pending_.batch(b % 2), send, receive, /*fits=*/true);
  };
  start(0);
  for (int64_t b = 0; b < num_blocks; ++b) {
    HoldTurn();
    if (b + 1 < num_blocks) start(b + 1);
    Wait(pending_.batch(b % 2));
    MpiBatch& results = pending_.batch(2 + b % 2);
    Wait(results);  // of the last block but one
    const Pieces from = slices_of(b, input_);
    const Pieces to = slices_of(b, output_);
    char* const result = keeps_result ? At(to.base, to.offsets[me_]) : staged(b) + n_ * slice_bytes;
    ReduceSlice(At(from.base, from.offsets[me_]), staged(b), result, from.counts[me_]);
    const int* const counts = results.Ints(to.counts);
    const int* const offsets = results.Ints(to.offsets);
    if (to_all) {
      CheckMpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, to.base, counts, offsets, type_, comm_,
                               results.NewRequest()),
               "MPI_Iallgatherv");
    } else {
      CheckMpi(MPI_Igatherv(keeps_result ? MPI_IN_PLACE : result, counts[me_], type_, to.base, counts,
                            offsets, type_, descriptor_.root, comm_, results.NewRequest()),
               "MPI_Igatherv");
    }
    FillTurn(from.counts[me_] * item_ * n_);
  }
  WaitForAll();
}

// A block is the same number of elements of every piece.
void Large::ReduceScatter() {
  const Pieces whole = Adjacent(input_, descriptor_.counts);
  const int64_t most = *std::max_element(whole.counts.begin(), whole.counts.end());
  const int64_t block = std::min(most, std::max<int64_t>(1, BlockCount() / n_));
  const std::shared_ptr<char[]> staging = group_.Staging(2 * n_ * block * item_);
  pending_.Hold(staging);
  const auto staged = [&](int64_t b) { return staging.get() + b % 2 * n_ * block * item_; };
  const auto start = [&](int64_t b) {
    const Pieces send = Part(whole, b * block, block);
    const int64_t mine = send.counts[me_];
    Pieces receive{staged(b), std::vector<int64_t>(n_, mine), std::vector<int64_t>(n_)};
    for (int peer = 0; peer < n_; ++peer) receive.offsets[peer] = peer * mine;
    StartAllToAll(pending_.batch(b % 2), send, receive, Fits());
  };
  const int64_t num_blocks = (most + block - 1) / block;
  start(0);
  for (int64_t b = 0; b < num_blocks; ++b) {
    HoldTurn();
    Wait(pending_.batch(b % 2));
    if (b + 1 < num_blocks) start(b + 1);
    const Pieces send = Part(whole, b * block, block);
    ReduceSlice(At(input_, send.offsets[me_]), staged(b), At(output_, std::min(b * block, whole.counts[me_])),
                send.counts[me_]);
    FillTurn(send.counts[me_] * item_ * n_);
  }
}

void Large::AllGather() {
  const Pieces pieces = Adjacent(output_, descriptor_.counts);
  char* const place = At(output_, pieces.offsets[me_]);
  CopyOwn(input_, place, pieces.counts[me_]);
  MpiBatch& batch = pending_.batch(0);
  if (Fits()) {
    CheckMpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, output_, batch.Ints(pieces.counts),
                             batch.Ints(pieces.offsets), type_, comm_, batch.NewRequest()),
             "MPI_Iallgatherv");
  } else {
    const std::vector<int64_t> mine(n_, pieces.counts[me_]);
    StartMessages(batch, {place, mine, std::vector<int64_t>(n_)}, pieces);
  }
  WaitForAll();
}

void Large::AllToAll() {
  const Pieces send = Adjacent(input_, descriptor_.counts);
  const Pieces receive = Adjacent(output_, call_.receive_counts);
  CopyOwn(At(input_, send.offsets[me_]), At(output_, receive.offsets[me_]), send.counts[me_]);
  StartAllToAll(pending_.batch(0), send, receive, Fits());
  WaitForAll();
}

void Large::Broadcast() {
  const int64_t most = group_.transport().options().max_count;
  for (int64_t begin = 0; begin < descriptor_.counts[0]; begin += most) {
    const int count = static_cast<int>(std::min(most, descriptor_.counts[0] - begin));
    CheckMpi(
        MPI_Ibcast(At(output_, begin), count, type_, descriptor_.root, comm_, pending_.batch(0).NewRequest()),
        "MPI_Ibcast");
  }
  WaitForAll();
}

void Large::Gather() {
  const bool is_root = me_ == descriptor_.root;
  const Pieces pieces = Adjacent(output_, descriptor_.counts);
  if (is_root) CopyOwn(input_, At(output_, pieces.offsets[me_]), pieces.counts[me_]);
  MpiBatch& batch = pending_.batch(0);
  if (Fits()) {
    const int* const counts = batch.Ints(pieces.counts);
    CheckMpi(MPI_Igatherv(is_root ? MPI_IN_PLACE : input_, counts[me_], type_, output_, counts,
                          batch.Ints(pieces.offsets), type_, descriptor_.root, comm_, batch.NewRequest()),
             "MPI_Igatherv");
  } else {
    Pieces send{input_, std::vector<int64_t>(n_), std::vector<int64_t>(n_)};
    send.counts[descriptor_.root] = pieces.counts[me_];
    const Pieces nothing{nullptr, std::vector<int64_t>(n_), std::vector<int64_t>(n_)};
    StartMessages(batch, is_root ? nothing : send, is_root ? pieces : nothing);
  }
  WaitForAll();
}

void Large::Scatter() {
  const bool is_root = me_ == descriptor_.root;
  const Pieces pieces = Adjacent(input_, descriptor_.counts);
  if (is_root) CopyOwn(At(input_, pieces.offsets[me_]), output_, pieces.counts[me_]);
  MpiBatch& batch = pending_.batch(0);
  if (Fits()) {
    const int* const counts = batch.Ints(pieces.counts);
    CheckMpi(
        MPI_Iscatterv(input_, counts, batch.Ints(pieces.offsets), type_, is_root ? MPI_IN_PLACE : output_,
                      counts[me_], type_, descriptor_.root, comm_, batch.NewRequest()),
        "MPI_Iscatterv");
  } else {
    Pieces receive{output_, std::vector<int64_t>(n_), std::vector<int64_t>(n_)};
    receive.counts[descriptor_.root] = pieces.counts[me_];
    const Pieces nothing{nullptr, std::vector<int64_t>(n_), std::vector<int64_t>(n_)};
    StartMessages(batch, is_root ? pieces : nothing, is_root ? nothing : receive);
  }
  WaitForAll();
}

void Large::Run() {
  switch (descriptor_.kind) {
    case CollectiveKind::kAllReduce:
      return ReduceBlocks(/*to_all=*/true);
    case CollectiveKind::kReduce:
      return ReduceBlocks(/*to_all=*/false);
    case CollectiveKind::kReduceScatter:
      return ReduceScatter();
    case CollectiveKind::kAllGather:
      return AllGather();
    case CollectiveKind::kAllToAll:
      return AllToAll();
    case CollectiveKind::kBroadcast:
      return Broadcast();
    case CollectiveKind::kGather:
      return Gather();
    case CollectiveKind::kScatter:
      return Scatter();
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kBarrier:
      return;
  }
}

}  // namespace

void MoveLarge(MpiGroup& group, const CollectiveCall& call, absl::Span<const MpiPosting> postings,
               absl::FunctionRef<std::string()> what) {
  Large(group, call, postings, what).Run();
}

}  // namespace weft
