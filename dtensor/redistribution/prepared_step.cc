#include "dtensor/redistribution/prepared_step.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ops/op/absent.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Memory for a while, beside what is moved.
Tensor Scratch(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape) {
  const MemoryKind kind = allocator->kind();
  const MemoryKindGuard guard(*allocator, kind == MemoryKind::kGrad ? MemoryKind::kBucket : kind);
  return Tensor::Empty(allocator, dtype, shape);
}

// Of a contiguous one.
Tensor Flat(const Tensor& tensor) {
  return tensor.ndim() == 1 ? tensor : tensor.Reshape({tensor.num_elements()});
}

// Lays the regions of `whole` one after another in a flat buffer. Where they already lie so, no element moves.
Tensor Pack(const LoweredStep& step, const Tensor& whole, const std::shared_ptr<Allocator>& allocator,
            LocalWorks* works) {
  if (step.sent_in_order && whole.IsContiguous()) return Flat(whole);
  int64_t size = 0;
  for (const Region& region : step.sent) size += region.shape.num_elements();
  Tensor flat = Scratch(allocator, whole.dtype(), {size});
  int64_t begin = 0;
  for (const Region& region : step.sent) {
    const int64_t count = region.shape.num_elements();
    if (count > 0) {
      works->push_back(
          {.from = ViewOf(whole, region), .to = flat.Slice(0, begin, count).Reshape(region.shape)});
    }
    begin += count;
  }
  return flat;
}

// Where a collective delivers its parts, one after another; they are laid in `result` afterwards, unless they
// lie there so.
Tensor Delivery(const LoweredStep& step, const Tensor& result, const std::shared_ptr<Allocator>& allocator,
                LocalWorks* works) {
  if (step.received_in_order) return Flat(result);
  Tensor flat = Scratch(allocator, result.dtype(), {result.num_elements()});
  int64_t begin = 0;
  for (const Region& region : step.received) {
    const int64_t count = region.shape.num_elements();
    if (count > 0) {
      works->push_back(
          {.from = flat.Slice(0, begin, count).Reshape(region.shape), .to = ViewOf(result, region)});
    }
    begin += count;
  }
  return flat;
}

// One term of a sum or product whose other terms are neutral; of an average, a least or a largest, which equal terms have for
// themselves, every term.
PreparedStep PrepareTerm(const LoweredStep& step, const Tensor& local, const Tensor& into,
                         const std::shared_ptr<Allocator>& allocator) {
  PreparedStep prepared;
  const bool same_on_all = step.op != ReduceOp::kSum && step.op != ReduceOp::kProduct;
  if (!into.defined() && (same_on_all || step.first_in_group)) {
    prepared.result = local;
    return prepared;
  }
  prepared.result = into.defined() ? into : Tensor::Empty(allocator, local.dtype(), local.shape());
  const Tensor& result = prepared.result;
  if (!same_on_all && !step.first_in_group) {
    const double neutral = step.op == ReduceOp::kProduct ? 1 : kAbsent;
    prepared.before.push_back({.kind = LocalWork::Kind::kFill, .to = result, .value = neutral});
    return prepared;
  }
  prepared.before.push_back({.from = local, .to = result});
  return prepared;
}

Tensor ResultOf(const Tensor& local, const Tensor& into, const Shape& shape,
                const std::shared_ptr<Allocator>& allocator) {
  return into.defined() ? into : Tensor::Empty(allocator, local.dtype(), shape);
}

// To or from every member: an all-gather, an all-to-all or a reduce-scatter.
PreparedStep PreparePieces(const LoweredStep& step, const Tensor& local, const Tensor& into,
                           const std::shared_ptr<Allocator>& allocator) {
  PreparedStep prepared;
  prepared.result = ResultOf(local, into, step.result_shape, allocator);
  prepared.output = step.kind == StepKind::kReduceScatter
                        ? Flat(prepared.result)
                        : Delivery(step, prepared.result, allocator, &prepared.after);
  prepared.input = Pack(step, local, allocator, &prepared.before);
  return prepared;
}

PreparedStep PrepareAllReduce(const Tensor& local, const Tensor& into,
                              const std::shared_ptr<Allocator>& allocator) {
  PreparedStep prepared;
  if (local.IsContiguous()) {
    prepared.input = Flat(local);
  } else {
    const Tensor dense = Scratch(allocator, local.dtype(), local.shape());
    prepared.before.push_back({.from = local, .to = dense});
    prepared.input = Flat(dense);
  }
  prepared.result = ResultOf(local, into, local.shape(), allocator);
  prepared.output = Flat(prepared.result);
  return prepared;
}

PreparedStep PrepareSlice(const LoweredStep& step, const Tensor& local, const Tensor& into,
                          const std::shared_ptr<Allocator>& allocator) {
  PreparedStep prepared;
  const Tensor slice = SliceOf(step, local, allocator);
  prepared.result = into.defined() ? into : slice;
  if (into.defined() && slice.num_elements() > 0) prepared.before.push_back({.from = slice, .to = into});
  return prepared;
}

}  // namespace

Tensor ViewOf(const Tensor& tensor, const Region& region) {
  Tensor view = tensor;
  for (int dim = 0; dim < tensor.ndim(); ++dim) {
    if (region.shape[dim] == view.shape()[dim]) continue;
    view = view.Slice(dim, region.offset[dim], region.shape[dim]);
  }
  return view;
}

void RunLocalWorks(const LocalWorks& works) {
  for (const LocalWork& work : works) {
    switch (work.kind) {
      case LocalWork::Kind::kCopy:
        CopyTensor(work.from, work.to);
        break;
      case LocalWork::Kind::kFill:
        FillTensor(work.to, work.value);
        break;
    }
  }
}

PreparedStep PrepareExchange(const LoweredExchange& exchange, const Tensor& input, const Tensor& output,
                             const std::shared_ptr<Allocator>& allocator) {
  PreparedStep prepared;
  for (const RegionMessage& send : exchange.sends) {
    // Several members may get the same part: packed once.
    const auto end = exchange.sends.begin() + std::ssize(prepared.sends);
    const auto same = std::find_if(exchange.sends.begin(), end,
                                   [&](const RegionMessage& other) { return other.region == send.region; });
    if (same != end) {
      prepared.sends.push_back({send.peer, prepared.sends[same - exchange.sends.begin()].tensor});
      continue;
    }
    const Tensor part = ViewOf(input, send.region);
    Tensor packed = part;
    if (!part.IsContiguous()) {
      packed = Scratch(allocator, part.dtype(), part.shape());
      prepared.before.push_back({.from = part, .to = packed});
    }
    prepared.sends.push_back({send.peer, std::move(packed)});
  }
  for (const RegionMessage& receive : exchange.receives) {
    const Tensor place = ViewOf(output, receive.region);
    Tensor arriving = place;
    if (!place.IsContiguous()) {
      arriving = Scratch(allocator, place.dtype(), place.shape());
      prepared.after.push_back({.from = arriving, .to = place});
    }
    prepared.receives.push_back({receive.peer, std::move(arriving)});
  }
  if (!exchange.kept_from.empty()) {
    prepared.before.push_back(
        {.from = ViewOf(input, exchange.kept_from), .to = ViewOf(output, exchange.kept_to)});
  }
  prepared.result = output;
  return prepared;
}

// An empty piece may lie anywhere.
Tensor SliceOf(const LoweredStep& step, const Tensor& local, const std::shared_ptr<Allocator>& allocator) {
  return step.sent[0].empty() ? Tensor::Empty(allocator, local.dtype(), step.result_shape)
                              : ViewOf(local, step.sent[0]);
}

PreparedStep PrepareStep(const LoweredStep& step, const Tensor& local, const Tensor& into,
                         const std::shared_ptr<Allocator>& allocator) {
  switch (step.kind) {
    case StepKind::kAllGather:
    case StepKind::kAllToAll:
    case StepKind::kReduceScatter:
      return PreparePieces(step, local, into, allocator);
    case StepKind::kAllReduce:
      return PrepareAllReduce(local, into, allocator);
    case StepKind::kPermute:
    case StepKind::kSendRegions:
      return PrepareExchange(step.exchange, local, ResultOf(local, into, step.result_shape, allocator),
                             allocator);
    case StepKind::kSlice:
      return PrepareSlice(step, local, into, allocator);
    case StepKind::kToPartial:
      return PrepareTerm(step, local, into, allocator);
  }
  Throw(absl::StatusCode::kInternal, "unknown redistribution step");
}

Work IssueStep(Communicator& group, const LoweredStep& step, const PreparedStep& prepared,
               const CommOptions& options) {
  switch (step.kind) {
    case StepKind::kAllGather:
      return group.AllGather(prepared.input, prepared.output, step.received_counts, options);
    case StepKind::kReduceScatter:
      return group.ReduceScatter(prepared.input, prepared.output, step.sent_counts, step.op, options);
    case StepKind::kAllReduce:
      return group.AllReduce(prepared.input, prepared.output, step.op, options);
    case StepKind::kAllToAll:
      return group.AllToAll(prepared.input, step.sent_counts, prepared.output, step.received_counts, options);
    case StepKind::kPermute:
    case StepKind::kSendRegions:
      return group.SendRecv(prepared.sends, prepared.receives, options);
    case StepKind::kSlice:
    case StepKind::kToPartial:
      return Work();
  }
  Throw(absl::StatusCode::kInternal, "unknown redistribution step");
}

bool Merges(StepKind kind) {
  return kind == StepKind::kAllGather || kind == StepKind::kReduceScatter || kind == StepKind::kAllReduce;
}

CollectivePart PartOf(const LoweredStep& step, PreparedStep&& prepared) {
  CollectivePart part = {.input = std::move(prepared.input), .output = std::move(prepared.output)};
  const bool gathers = step.kind == StepKind::kAllGather;
  const std::vector<int64_t>& counts = gathers ? step.received_counts : step.sent_counts;
  if (step.kind != StepKind::kAllReduce) part.counts.assign(counts.begin(), counts.end());
  return part;
}

Work IssueParts(Communicator& group, const LoweredStep& first, absl::Span<const CollectivePart> parts,
                const CommOptions& options) {
  switch (first.kind) {
    case StepKind::kAllGather:
      return group.AllGatherEach(parts, options);
    case StepKind::kReduceScatter:
      return group.ReduceScatterEach(parts, first.op, options);
    case StepKind::kAllReduce:
      return group.AllReduceEach(parts, first.op, options);
    default:
      Throw(absl::StatusCode::kInternal, "steps of this kind are not merged");
  }
}

}  // namespace weft
