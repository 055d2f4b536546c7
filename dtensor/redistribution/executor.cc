#include "dtensor/redistribution/executor.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "runtime/tensor/copy.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

std::vector<int64_t> Counts(const std::vector<Region>& regions) {
  std::vector<int64_t> counts;
  counts.reserve(regions.size());
  for (const Region& region : regions) counts.push_back(region.shape.num_elements());
  return counts;
}

Tensor Flat(const Tensor& tensor) { return tensor.Reshape({tensor.num_elements()}); }

class StepExecutor {
 public:
  StepExecutor(MeshContext& context, const LoweredStep& step) : context_(context), step_(step) {}

  Tensor Run(const Tensor& local) {
    switch (step_.kind) {
      case StepKind::kAllGather:
        return AllGather(local);
      case StepKind::kReduceScatter:
        return ReduceScatter(local);
      case StepKind::kAllReduce:
        return AllReduce(local);
      case StepKind::kAllToAll:
        return AllToAll(local);
      case StepKind::kPermute:
      case StepKind::kSendRegions:
        return Exchange(local);
      case StepKind::kSlice:
        // An empty piece may lie anywhere.
        return step_.sent[0].empty() ? Empty(local, step_.result_shape) : ViewOf(local, step_.sent[0]);
      case StepKind::kToPartial:
        return ToPartial(local);
    }
    WEFT_CHECK(false, "unknown redistribution step");
  }

 private:
  Tensor Empty(const Tensor& like, const Shape& shape) const {
    return Tensor::Empty(context_.allocator(), like.dtype(), shape);
  }
  Tensor Contiguous(const Tensor& tensor) const {
    return tensor.IsContiguous() ? tensor : CloneTensor(tensor, context_.allocator());
  }
  Communicator& group() const { return context_.Group(step_.axes); }
  CommOptions Options() const { return {.tag = context_.state().tag()}; }

  // Lays regions one after another in a flat buffer, and back. Where they already lie so, no element moves.
  Tensor Pack(const Tensor& whole) const {
    if (step_.sent_in_order && whole.IsContiguous()) return Flat(whole);
    int64_t size = 0;
    for (const Region& region : step_.sent) size += region.shape.num_elements();
    const Tensor flat = Empty(whole, {size});
    int64_t begin = 0;
    for (const Region& region : step_.sent) {
      const int64_t count = region.shape.num_elements();
      if (count > 0) CopyTensor(ViewOf(whole, region), flat.Slice(0, begin, count).Reshape(region.shape));
      begin += count;
    }
    return flat;
  }
  Tensor ReceiveBuffer(const Tensor& result) const {
    return step_.received_in_order ? Flat(result) : Empty(result, {result.num_elements()});
  }
  void Unpack(const Tensor& flat, const Tensor& result) const {
    if (step_.received_in_order) return;
    int64_t begin = 0;
    for (const Region& region : step_.received) {
      const int64_t count = region.shape.num_elements();
      if (count > 0) CopyTensor(flat.Slice(0, begin, count).Reshape(region.shape), ViewOf(result, region));
      begin += count;
    }
  }

  Tensor AllGather(const Tensor& local) {
    const Tensor result = Empty(local, step_.result_shape);
    const Tensor gathered = ReceiveBuffer(result);
    group().AllGather(Pack(local), gathered, Counts(step_.received), Options()).Wait();
    Unpack(gathered, result);
    return result;
  }

  Tensor ReduceScatter(const Tensor& local) {
    const Tensor result = Empty(local, step_.result_shape);
    group().ReduceScatter(Pack(local), Flat(result), Counts(step_.sent), step_.op, Options()).Wait();
    return result;
  }

  Tensor AllReduce(const Tensor& local) {
    const Tensor result = Empty(local, local.shape());
    group().AllReduce(Flat(Contiguous(local)), Flat(result), step_.op, Options()).Wait();
    return result;
  }

  Tensor AllToAll(const Tensor& local) {
    const Tensor result = Empty(local, step_.result_shape);
    const Tensor received = ReceiveBuffer(result);
    group().AllToAll(Pack(local), Counts(step_.sent), received, Counts(step_.received), Options()).Wait();
    Unpack(received, result);
    return result;
  }

  Tensor Exchange(const Tensor& local) {
    const Tensor result = Empty(local, step_.result_shape);
    ExchangeRegions(group(), local, result, step_.exchange, context_.allocator(), Options());
    return result;
  }

  Tensor ToPartial(const Tensor& local) {
    if (step_.op == ReduceOp::kMin || step_.op == ReduceOp::kMax) return local;
    const bool scaled = step_.op == ReduceOp::kAvg && step_.group_size > 1;
    if (step_.first_in_group && !scaled) return local;
    const Tensor result = Empty(local, local.shape());
    if (!step_.first_in_group) {
      FillTensor(result, step_.op == ReduceOp::kProduct ? 1 : 0);
      return result;
    }
    // The average of {n * value, 0, ..., 0} is the value; n copies add up to n * value exactly for n a power
    // of two, and otherwise up to rounding.
    CopyTensor(local, result);
    for (int64_t i = 1; i < step_.group_size; ++i) AccumulateTensor(local, result, ReduceOp::kSum);
    return result;
  }

  MeshContext& context_;
  const LoweredStep& step_;
};

}  // namespace

void ExchangeRegions(Communicator& group, const Tensor& input, const Tensor& output,
                     const LoweredExchange& exchange, const std::shared_ptr<Allocator>& allocator,
                     const CommOptions& options) {
  std::vector<Message> sends, receives;
  for (const RegionMessage& send : exchange.sends) {
    // Several members may get the same part: packed once.
    const auto same = std::find_if(exchange.sends.begin(), exchange.sends.begin() + std::ssize(sends),
                                   [&](const RegionMessage& other) { return other.region == send.region; });
    const size_t packed = static_cast<size_t>(same - exchange.sends.begin());
    if (packed < sends.size()) {
      sends.push_back({send.peer, sends[packed].tensor});
      continue;
    }
    const Tensor part = ViewOf(input, send.region);
    sends.push_back({send.peer, part.IsContiguous() ? part : CloneTensor(part, allocator)});
  }
  for (const RegionMessage& receive : exchange.receives) {
    const Tensor place = ViewOf(output, receive.region);
    receives.push_back({receive.peer, place.IsContiguous()
                                          ? place
                                          : Tensor::Empty(allocator, place.dtype(), place.shape())});
  }
  Work work = group.SendRecv(sends, receives, options);
  if (!exchange.kept_from.empty()) {
    CopyTensor(ViewOf(input, exchange.kept_from), ViewOf(output, exchange.kept_to));
  }
  work.Wait();
  for (size_t i = 0; i < receives.size(); ++i) {
    const Tensor place = ViewOf(output, exchange.receives[i].region);
    if (!place.IsContiguous()) CopyTensor(receives[i].tensor, place);
  }
}

Tensor ViewOf(const Tensor& tensor, const Region& region) {
  Tensor view = tensor;
  for (int dim = 0; dim < tensor.ndim(); ++dim) {
    if (region.shape[dim] == view.shape()[dim]) continue;
    view = view.Slice(dim, region.offset[dim], region.shape[dim]);
  }
  return view;
}

Tensor RunRedistribution(MeshContext& context, const Tensor& local, const LoweredRedistribution& lowered) {
  Tensor current = local;
  for (const LoweredStep& step : lowered.steps) {
    const Span span(context.world().tracer(), context.world().rank(), "comm", StepKindName(step.kind));
    current = StepExecutor(context, step).Run(current);
  }
  const bool is_view = !lowered.steps.empty() && lowered.steps.back().kind == StepKind::kSlice;
  const bool of_an_earlier_step = is_view && current.buffer() != local.buffer();
  return of_an_earlier_step ? CloneTensor(current, context.allocator()) : current;
}

}  // namespace weft
