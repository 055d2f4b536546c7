#include "parallel/stage_replicas.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "dtensor/context/mesh_context.h"
#include "dtensor/redistribution/agreement.h"

namespace weft {
namespace {

constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();

class Comparison {
 public:
  Comparison(const ModelStages& stages, absl::Span<const StagedValue> values)
      : context_(*stages.context), axis_(stages.axis), values_(values) {
    everyone_ = &AllRanks(context_);
  }

  std::optional<ReplicaDifference> Run() {
    const PurposeGuard purpose(context_.state(), Purpose::kMetric);
    const int64_t first = Least(*everyone_, {FirstAlongTheAxis()})[0];
    if (first == std::ssize(values_)) return std::nullopt;
    return DifferenceOf(values_[first]);
  }

 private:
  std::vector<int64_t> Least(Communicator& group, const std::vector<int64_t>& words) {
    const Tensor tensor = Tensor::FromValues<int64_t>({std::ssize(words)}, words, context_.allocator());
    group.AllReduce(tensor, tensor, ReduceOp::kMin, {.tag = context_.state().tag()}).Wait();
    return tensor.ToVector<int64_t>();
  }

  // The first value that differs among the ranks along the axis that this one is among; behind the last, if none does.
  int64_t FirstAlongTheAxis() {
    std::vector<int64_t> words;  // as in CompareReplicas
    for (const StagedValue& value : values_) {
      const int64_t hash = HashOf(value);
      words.push_back(value.tensors.empty() ? kNothing : hash);
      words.push_back(value.tensors.empty() ? kNothing : ~hash);
    }
    const std::vector<int64_t> least = Least(context_.Group({axis_}), words);
    int64_t first = 0;
    for (; first < std::ssize(values_); ++first) {
      const int64_t hash = least[2 * first], complement = least[2 * first + 1];
      const bool nobody_has = hash == kNothing && complement == kNothing;
      if (!nobody_has && hash != ~complement) break;
    }
    return first;
  }

  int64_t HashOf(const StagedValue& value) const {
    uint64_t hash = 0;
    for (const DTensor& tensor : value.tensors) {
      hash = hash * 0x100000001b3 + HashOfPiece(tensor.ToLocal());
    }
    return static_cast<int64_t>(hash);
  }

  // Asks everyone, so that it says who: along the first line of ranks that do not agree.
  ReplicaDifference DifferenceOf(const StagedValue& value) {
    const DeviceMesh& mesh = context_.mesh();
    const std::vector<int64_t> mine = {value.tensors.empty() ? 0 : 1, HashOf(value)};
    const Tensor words = Tensor::FromValues<int64_t>({2}, mine, context_.allocator());
    const Tensor all = Tensor::Empty(context_.allocator(), DType::kI64, {2 * everyone_->size()});
    const std::vector<int64_t> counts(everyone_->size(), 2);
    everyone_->AllGather(words, all, counts, {.tag = context_.state().tag()}).Wait();
    const std::vector<int64_t> gathered = all.ToVector<int64_t>();
    std::map<std::vector<int64_t>, ReplicaDifference> lines;  // by the coordinates along the other axes
    std::map<std::vector<int64_t>, int64_t> hashes;
    for (int i = 0; i < everyone_->size(); ++i) {
      if (gathered[2 * i] == 0) continue;
      const int rank = everyone_->ranks()[i];
      std::vector<int64_t> line = mesh.CoordinateOf(rank);
      line[axis_] = 0;
      const auto [found, is_first] = lines.try_emplace(line);
      ReplicaDifference& difference = found->second;
      if (is_first) {
        difference = {.name = value.name, .first = rank};
        hashes[line] = gathered[2 * i + 1];
      } else if (gathered[2 * i + 1] != hashes[line]) {
        difference.others.push_back(rank);
      }
    }
    for (const auto& [line, difference] : lines) {
      if (!difference.others.empty()) return difference;
    }
    return {.name = value.name};
  }

  MeshContext& context_;
  const int axis_;
  const absl::Span<const StagedValue> values_;
  Communicator* everyone_ = nullptr;
};

}  // namespace

std::vector<SharedParameter> ParametersOfSeveralStages(SegmentedModule& model, const ModelStages& stages) {
  std::map<const Parameter*, std::set<int>> indices;
  for (int stage = 0; stage < stages.num_stages(); ++stage) {
    for (int i = stages.first_segments[stage]; i < stages.first_segments[stage + 1]; ++i) {
      const Segment& segment = model.segments()[i];
      for (Module* module : segment.modules) {
        for (const Parameter* parameter : module->RegisteredParameters()) {
          indices[parameter].insert(stages.stage_ranks[stage]);
        }
      }
      for (const Parameter* parameter : segment.parameters) {
        indices[parameter].insert(stages.stage_ranks[stage]);
      }
    }
  }
  std::vector<SharedParameter> shared;
  for (Parameter* parameter : model.RegisteredParameters()) {
    const std::set<int>& of = indices[parameter];
    if (of.size() > 1) shared.push_back({parameter, {of.begin(), of.end()}});
  }
  return shared;
}

std::vector<int> RanksAlongPipeline(const ModelStages& stages, absl::Span<const int> indices) {
  MeshContext& context = *stages.context;
  const std::vector<int> along = context.mesh().GroupOf(context.world().rank(), {stages.axis});
  std::vector<int> ranks;
  for (const int index : indices) ranks.push_back(along[index]);
  return ranks;
}

std::optional<ReplicaDifference> CompareAcrossStages(const ModelStages& stages,
                                                     absl::Span<const StagedValue> values) {
  if (stages.context->mesh().axis_size(stages.axis) == 1 || values.empty()) return std::nullopt;
  return Comparison(stages, values).Run();
}

}  // namespace weft
