#include "parallel/replicas.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/redistribution/agreement.h"
#include "runtime/tensor/copy.h"

namespace weft {

// FNV-1a by words in four chains, so that it reads as fast as memory gives: no defence against anybody.
uint64_t HashOfPiece(const Tensor& piece) {
  constexpr uint64_t kPrime = 0x100000001b3;
  constexpr int kChains = 4;
  uint64_t chains[kChains] = {0xcbf29ce484222325, 1, 2, 3};
  const Tensor host = OnHost(piece);
  const int64_t num_bytes = host.num_bytes();
  const char* bytes = static_cast<const char*>(host.data());
  int chain = 0;
  for (int64_t i = 0; i < num_bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min<int64_t>(8, num_bytes - i));
    chains[chain] = (chains[chain] ^ word) * kPrime;
    chains[chain] ^= chains[chain] >> 29;  // the upper bits' share reaches the lower
    chain = (chain + 1) % kChains;
  }
  uint64_t hash = static_cast<uint64_t>(num_bytes);
  for (const uint64_t part : chains) hash = (hash ^ part) * kPrime, hash ^= hash >> 31;
  return hash;
}

namespace {

// Which of a tensor's pieces a coordinate has, and of how many.
struct PieceNumber {
  int64_t number = 0;
  int64_t count = 1;

  bool operator==(const PieceNumber&) const = default;
};

PieceNumber PieceOf(const AxisList& split, const DeviceMesh& mesh, absl::Span<const int64_t> coordinate) {
  PieceNumber piece;
  for (const int axis : split) {
    piece.number = piece.number * mesh.axis_size(axis) + coordinate[axis];
    piece.count *= mesh.axis_size(axis);
  }
  return piece;
}

class Comparison {
 public:
  Comparison(MeshContext& context, absl::Span<const NamedValue> values) : context_(context), values_(values) {
    everyone_ = &AllRanks(context);
  }

  std::optional<ReplicaDifference> Run() {
    const PurposeGuard purpose(context_.state(), Purpose::kMetric);
    const std::vector<int64_t> least = LeastOfPieces();
    int64_t at = 0;
    for (const NamedValue& value : values_) {
      const ReplicaAxes axes = ReplicaAxesOf(value.tensor.layout(), context_.mesh());
      if (axes.replicas.empty()) continue;
      const int64_t count = PieceOf(axes.split, context_.mesh(), context_.coordinate()).count;
      for (int64_t piece = 0; piece < count; ++piece, at += 2) {
        if (least[at] != ~least[at + 1]) return DifferenceOf(value, axes.split, {piece, count});
      }
    }
    return std::nullopt;
  }

 private:
  // Of each piece of each value with replicas: the least hash, and the least of the hashes' complements, which is
  // the complement of the greatest. Who lacks a piece says nothing of it.
  std::vector<int64_t> LeastOfPieces() {
    std::vector<int64_t> words;
    for (const NamedValue& value : values_) {
      const ReplicaAxes axes = ReplicaAxesOf(value.tensor.layout(), context_.mesh());
      if (axes.replicas.empty()) continue;
      const PieceNumber mine = PieceOf(axes.split, context_.mesh(), context_.coordinate());
      const size_t begin = words.size();
      words.resize(begin + 2 * mine.count, std::numeric_limits<int64_t>::max());
      const auto hash = static_cast<int64_t>(HashOfPiece(value.tensor.ToLocal()));
      words[begin + 2 * mine.number] = hash;
      words[begin + 2 * mine.number + 1] = ~hash;
    }
    if (words.empty()) return words;
    const Tensor tensor = Tensor::FromValues<int64_t>({std::ssize(words)}, words, context_.allocator());
    everyone_->AllReduce(tensor, tensor, ReduceOp::kMin, {.tag = context_.state().tag()}).Wait();
    return tensor.ToVector<int64_t>();
  }

  // Asks everyone, so that it says who.
  ReplicaDifference DifferenceOf(const NamedValue& value, const AxisList& split, const PieceNumber& piece) {
    const auto mine = static_cast<int64_t>(HashOfPiece(value.tensor.ToLocal()));
    const Tensor hash = Tensor::FromValues<int64_t>({1}, {mine}, context_.allocator());
    const Tensor all = Tensor::Empty(context_.allocator(), DType::kI64, {everyone_->size()});
    const std::vector<int64_t> counts(everyone_->size(), 1);
    everyone_->AllGather(hash, all, counts, {.tag = context_.state().tag()}).Wait();
    const std::vector<int64_t> hashes = all.ToVector<int64_t>();
    ReplicaDifference difference = {.name = value.name};
    int first = -1;
    for (int i = 0; i < everyone_->size(); ++i) {
      const int rank = everyone_->ranks()[i];
      if (!(PieceOf(split, context_.mesh(), context_.mesh().CoordinateOf(rank)) == piece)) continue;
      if (first < 0) first = i;
      if (hashes[i] != hashes[first]) difference.others.push_back(rank);
    }
    difference.first = everyone_->ranks()[first];
    return difference;
  }

  MeshContext& context_;
  const absl::Span<const NamedValue> values_;
  Communicator* everyone_ = nullptr;
};

}  // namespace

ReplicaAxes ReplicaAxesOf(const Layout& layout, const DeviceMesh& mesh) {
  ReplicaAxes axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.axis_size(axis) == 1) continue;
    (layout.IsShard(axis) ? axes.split : axes.replicas).push_back(axis);
  }
  return axes;
}

std::string ReplicaDifference::ToString() const {
  return absl::StrCat(others.size() == 1 ? "rank " : "ranks ", absl::StrJoin(others, ", "), " than on rank ",
                      first);
}

std::optional<ReplicaDifference> CompareReplicas(MeshContext& context, absl::Span<const NamedValue> values) {
  if (context.mesh().num_ranks() == 1 || values.empty()) return std::nullopt;
  return Comparison(context, values).Run();
}

}  // namespace weft
