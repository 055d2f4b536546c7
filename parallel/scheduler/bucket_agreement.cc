#include "parallel/scheduler/bucket_agreement.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "dtensor/redistribution/agreement.h"
#include "mesh/layout_words.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// What no rank has at a place.
constexpr int64_t kNever = INT64_MAX;

// Of each leaf, for AgreeOnReached: how its gradient lies, and minus the bytes of an element of it, so that the widest is the
// least.
constexpr size_t kReachedWords = kLayoutWords + 1;

// What any rank has at a place is the least of all.
std::vector<int64_t> LeastOfAll(MeshContext& context, const std::vector<int64_t>& mine) {
  const Tensor least = Tensor::FromValues<int64_t>({std::ssize(mine)}, mine, context.allocator());
  const CommOptions options = {.tag = {static_cast<uint8_t>(Purpose::kMetric), context.state().path_id()}};
  AllRanks(context).AllReduce(least, least, ReduceOp::kMin, options).Wait();
  return least.ToVector<int64_t>();
}

// The leaf's dtype, or one that is wider: those are told apart by their size.
DType OfSize(int64_t size, DType dtype) {
  if (size == ItemSize(dtype)) return dtype;
  return size == ItemSize(DType::kF32) ? DType::kF32 : DType::kF64;
}

}  // namespace

std::vector<int> AgreeOnOrder(MeshContext& context, const std::vector<int>& arrivals, int num_leaves) {
  if (context.mesh().num_ranks() == 1) return arrivals;
  const bool is_first = context.world().rank() == context.mesh().ranks()[0];
  std::vector<int64_t> places(num_leaves, kNever);
  for (int64_t i = 0; i < std::ssize(arrivals); ++i) places[arrivals[i]] = is_first ? i : num_leaves + i;
  const std::vector<int64_t> agreed = LeastOfAll(context, places);
  std::vector<std::pair<int64_t, int>> placed;
  for (int leaf = 0; leaf < num_leaves; ++leaf) {
    if (agreed[leaf] != kNever) placed.push_back({agreed[leaf], leaf});
  }
  std::sort(placed.begin(), placed.end());
  std::vector<int> order;
  for (const auto& [place, leaf] : placed) order.push_back(leaf);
  return order;
}

// The least and the largest step (as its complement) go along.
std::vector<std::optional<ReachedGradient>> AgreeOnReached(MeshContext& context,
                                                           absl::Span<const OwnGradient> own) {
  const size_t num_words = own.size() * kReachedWords;
  std::vector<int64_t> words(num_words, kNever);
  for (size_t i = 0; i < own.size(); ++i) {
    const auto& [gradient, dtype] = own[i];
    if (!gradient.defined()) continue;
    PutLayout(gradient.layout(), &words[i * kReachedWords]);
    words[i * kReachedWords + kLayoutWords] = -ItemSize(WiderOf(dtype, gradient.dtype()));
  }
  const auto step = static_cast<int64_t>(context.state().step());
  words.insert(words.end(), {step, ~step});
  const std::vector<int64_t> agreed = LeastOfAll(context, words);
  const int64_t first = agreed[num_words], last = ~agreed[num_words + 1];
  if (first != last) {
    Throw(absl::StatusCode::kFailedPrecondition, "find_unused: ranks have met at the end of passes of steps ",
          first, " to ", last, ", that of rank ", context.world().rank(), " is of step ", step,
          ": expected every pass to reach a parameter of the model on every rank");
  }
  std::vector<std::optional<ReachedGradient>> reached(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    const int64_t* const of_leaf = &agreed[i * kReachedWords];
    if (of_leaf[0] == kNever) continue;
    reached[i] = {.layout = GetLayout(of_leaf), .dtype = OfSize(-of_leaf[kLayoutWords], own[i].dtype)};
  }
  return reached;
}

}  // namespace weft
