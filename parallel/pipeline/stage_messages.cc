#include "parallel/pipeline/stage_messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/device_mesh.h"
#include "mesh/layout_words.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"
#include "runtime/comm/queued_communicator.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// How many tensors a stage may hand on; what tells of them has room for so many, since the receiver has to know how
// long it is.
constexpr int kMostTensors = 8;
// Of each: dtype, what is said of it, number of dims, dims, layout.
constexpr int kTensorWords = 3 + Layout::kMaxDims + kLayoutWords;
constexpr int kWords = 1 + kMostTensors * kTensorWords;
enum Said : int64_t { kPlain, kWantsGradient, kUndefined };

Said SaidOf(const HandedTensor& each) {
  if (each.is_undefined) return kUndefined;
  return each.wants_gradient ? kWantsGradient : kPlain;
}

std::vector<int64_t> ToWords(const HandedTensors& handed) {
  WEFT_REQUIRE(handed.size() <= kMostTensors, "pipeline: a stage hands on ", handed.size(),
               " tensors, expected at most ", kMostTensors);
  std::vector<int64_t> words(kWords);
  words[0] = std::ssize(handed);
  int64_t* next = &words[1];
  for (const HandedTensor& each : handed) {
    next[0] = static_cast<int64_t>(each.type.dtype);
    next[1] = SaidOf(each);
    next[2] = each.type.ndim();
    for (int dim = 0; dim < each.type.ndim(); ++dim) next[3 + dim] = each.type.shape[dim];
    PutLayout(each.layout, next + 3 + Layout::kMaxDims);
    next += kTensorWords;
  }
  return words;
}

HandedTensors FromWords(const std::vector<int64_t>& words) {
  HandedTensors handed;
  const int64_t* next = &words[1];
  for (int64_t i = 0; i < words[0]; ++i) {
    handed.push_back({
        .type = TensorType{static_cast<DType>(next[0]), Shape(absl::MakeConstSpan(next + 3, next[2]))},
        .layout = GetLayout(next + 3 + Layout::kMaxDims),
        .wants_gradient = next[1] == kWantsGradient,
        .is_undefined = next[1] == kUndefined,
    });
    next += kTensorWords;
  }
  return handed;
}

std::string TextOf(const HandedTensors& handed, const DeviceMesh& mesh) {
  return absl::StrJoin(handed, ", ", [&](std::string* out, const HandedTensor& each) {
    if (each.is_undefined) return absl::StrAppend(out, "undefined");
    absl::StrAppend(out, each.type.ToString(), " ", each.layout.ToString(mesh),
                    each.wants_gradient ? " with gradient" : "");
  });
}

Tensor Contiguous(const Tensor& piece, const std::shared_ptr<Allocator>& allocator) {
  return piece.IsContiguous() ? piece : CloneTensor(piece, allocator);
}

}  // namespace

void Arrival::Wait() {
  for (const Work& work : std::exchange(works, {})) work.Wait();
}

StageMessages::StageMessages(const ModelStages& stages, const IntrusivePtr<MeshContext>& part,
                             bool tells_always)
    : stages_(stages), part_(part), tells_always_(tells_always) {
  stages_.data = nullptr;
  // The same list on every rank: forward edges and backward edges, in the order of the stages.
  std::map<std::pair<int, int>, int> num_tags;
  std::vector<std::pair<int, int>> order;
  const auto add = [&](int from, int to, int tag) {
    if (from == to) return;
    int& tags = num_tags[{from, to}];
    if (tags == 0) order.push_back({from, to});
    tags = std::max(tags, tag + 1);
  };
  for (int stage = 0; stage + 1 < stages.num_stages(); ++stage) {
    add(PlaceOf(stage), PlaceOf(stage + 1), kForward);
    add(PlaceOf(stage + 1), PlaceOf(stage), kBackward);
  }
  if (order.empty()) return;
  World& world = stages.context->world();
  std::vector<Edge> edges;
  for (const auto& [from, to] : order) edges.push_back({from, to, num_tags[{from, to}]});
  edges_ = std::make_unique<Edges>(
      "pipeline", stages.context->mesh().GroupOf(world.rank(), {stages.axis}), world.rank(), edges,
      [&](const std::string& name, const std::vector<int>& ranks) {
        std::shared_ptr<Communicator> group = world.NewGroup(name, ranks);
        group->SetInBackground();
        TakeTurns(*group, stages.context->state().link_turns(), LanePriority(Lane::kInline));
        return group;
      });
}

Work StageMessages::Send(int to, Tag tag, const DTensor& tensor) {
  const Tensor piece = Contiguous(tensor.ToLocal(), part_->allocator());
  return edges_->Send(piece, to, tag, {.async = true, .tag = part_->state().tag()});
}

void StageMessages::Keep(int to, Tag tag, std::vector<Work> works) {
  std::deque<std::vector<Work>>& sent = sent_[{to, tag}];
  sent.push_back(std::move(works));
  if (std::ssize(sent) <= stages_.num_stages()) return;
  const std::vector<Work> oldest = std::move(sent.front());
  sent.pop_front();
  for (const Work& work : oldest) work.Wait();
}

Arrival StageMessages::Recv(int from, Tag tag, const HandedTensors& handed) {
  Arrival arrival;
  const MemoryKindGuard kind(*part_->allocator(), MemoryKind::kSaved);
  for (const HandedTensor& each : handed) {
    arrival.wants_gradient.push_back(each.wants_gradient);
    if (each.is_undefined) {
      arrival.tensors.emplace_back();
      continue;
    }
    const ShardBox box = LocalBox(each.type.shape, each.layout, part_->mesh(), part_->coordinate());
    const Tensor piece = Tensor::Empty(part_->allocator(), each.type.dtype, box.shape);
    arrival.works.push_back(edges_->Recv(piece, from, tag, {.async = true, .tag = part_->state().tag()}));
    arrival.tensors.push_back(DTensor::FromLocal(part_, piece, each.layout, each.type.shape));
  }
  return arrival;
}

void StageMessages::SendForward(int stage, const std::string& kind, const HandedTensors& handed,
                                absl::Span<const DTensor> outputs) {
  const int to = PlaceOf(stage + 1);
  const auto [told, is_new] = told_.try_emplace({stage, kind}, handed);
  std::vector<Work> works;
  if (is_new || tells_always_) {
    works.push_back(Tell(to, handed));
  } else if (told->second != handed) {
    const DeviceMesh& mesh = part_->mesh();
    Throw(absl::StatusCode::kFailedPrecondition, "pipeline: stage ", stage, " hands on ",
          TextOf(handed, mesh), ", and before, of inputs alike, ", TextOf(told->second, mesh),
          ": expected the same, which the next stage waits for; where a hook has changed it, make another "
          "PipelineExecutor");
  }
  for (const DTensor& output : outputs) {
    if (output.defined()) works.push_back(Send(to, kForward, output));
  }
  Keep(to, kForward, std::move(works));
}

Arrival StageMessages::RecvForward(int stage, const std::string& kind) {
  const int from = PlaceOf(stage - 1);
  const auto [found, is_new] = heard_.try_emplace({stage, kind});
  if (is_new || tells_always_) found->second = Hear(from);
  return Recv(from, kForward, found->second);
}

void StageMessages::SendBackward(int stage, absl::Span<const DTensor> gradients) {
  const int to = PlaceOf(stage - 1);
  std::vector<Work> works;
  for (const DTensor& gradient : gradients) works.push_back(Send(to, kBackward, gradient));
  Keep(to, kBackward, std::move(works));
}

Arrival StageMessages::RecvBackward(int stage, const HandedTensors& handed) {
  HandedTensors gradients = handed;
  std::erase_if(gradients, [](const HandedTensor& each) { return !each.wants_gradient; });
  return Recv(PlaceOf(stage + 1), kBackward, gradients);
}

void StageMessages::Finish() {
  for (const auto& [to, sent] : std::exchange(sent_, {})) {
    for (const std::vector<Work>& works : sent) {
      for (const Work& work : works) work.Wait();
    }
  }
}

DTensors StageMessages::SpreadOutputs(const DTensors& outputs) {
  Communicator& along = stages_.context->Group({stages_.axis});
  const int last = stages_.stage_ranks.back();
  const bool is_last = along.rank() == last;
  const std::shared_ptr<Allocator>& allocator = part_->allocator();
  const CommOptions options = {.tag = part_->state().tag()};
  const Tensor message =
      is_last ? Tensor::FromValues<int64_t>({kWords}, ToWords(DescribeHanded(outputs)), allocator)
              : Tensor::Empty(allocator, DType::kI64, {kWords});
  along.Broadcast(message, last, options).Wait();
  const HandedTensors handed = FromWords(message.ToVector<int64_t>());
  DTensors spread;
  for (size_t i = 0; i < handed.size(); ++i) {
    const auto& [type, layout, wants_gradient, is_undefined] = handed[i];
    if (is_undefined) {
      spread.emplace_back();
      continue;
    }
    const ShardBox box = LocalBox(type.shape, layout, part_->mesh(), part_->coordinate());
    const Tensor piece = is_last ? Contiguous(outputs[i].ToLocal(), allocator)
                                 : Tensor::Empty(allocator, type.dtype, box.shape);
    along.Broadcast(piece, last, options).Wait();
    spread.push_back(DTensor::FromLocal(part_, piece, layout, type.shape));
  }
  return spread;
}

Work StageMessages::Tell(int to, const HandedTensors& handed) {
  const Tensor message = Tensor::FromValues<int64_t>({kWords}, ToWords(handed), part_->allocator());
  return edges_->Send(message, to, kForward, {.async = true, .tag = part_->state().tag()});
}

HandedTensors StageMessages::Hear(int from) {
  const Tensor message = Tensor::Empty(part_->allocator(), DType::kI64, {kWords});
  edges_->Recv(message, from, kForward, {.async = true, .tag = part_->state().tag()}).Wait();
  return FromWords(message.ToVector<int64_t>());
}

std::string KindOf(absl::Span<const DTensor> inputs, bool records) {
  const auto append = [](std::string* out, const DTensor& x) {
    absl::StrAppend(out, x.ToString(), x.requires_grad() ? " with gradient" : "");
  };
  return absl::StrCat(records ? "" : "no history, ", absl::StrJoin(inputs, " ", append));
}

std::string ProductText(const std::optional<DType>& autocast) {
  return autocast ? absl::StrCat(", products in ", DTypeName(*autocast), " ") : "";
}

std::string FrozenText(Module& model) {
  std::string text;
  bool any = false;
  for (const Parameter* parameter : model.RegisteredParameters()) {
    text.push_back(parameter->trainable() ? ' ' : 'x');
    any |= !parameter->trainable();
  }
  return any ? text : "";
}

DTensors ToHand(absl::Span<const DTensor> outputs) {
  DTensors handed;
  for (const DTensor& output : outputs) {
    if (!output.defined()) {
      handed.emplace_back();
      continue;
    }
    handed.push_back(output.Redistribute(WithoutPartial(output.layout())));
    // A leaf has a node, whether a history is recorded or not.
    if (!output.context()->state().grad_enabled()) handed.back() = handed.back().Detach();
  }
  return handed;
}

HandedTensors DescribeHanded(absl::Span<const DTensor> outputs) {
  HandedTensors handed;
  for (const DTensor& output : outputs) {
    handed.push_back(output.defined() ? HandedTensor{output.type(), output.layout(), output.requires_grad()}
                                      : HandedTensor{.is_undefined = true});
  }
  return handed;
}

}  // namespace weft
