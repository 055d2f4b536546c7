#include "parallel/compression/communication_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "mesh/shard_math.h"
#include "parallel/compression/gradient_compression.h"
#include "parallel/compression/methods/values.h"
#include "parallel/scheduler/gradient_buckets.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

constexpr char kRound[] = "communication.round";

// Those of the model's buckets, each once.
std::vector<GradientCompression*> CompressionsOf(Module& model) {
  std::vector<GradientCompression*> found;
  const GradientSink* before = nullptr;  // of most of them it is the same
  for (const Parameter* parameter : model.AllParameters()) {
    GradientSink* const sink = parameter->leaf().sink();
    if (sink == std::exchange(before, sink)) continue;
    auto* const buckets = dynamic_cast<GradientBuckets*>(sink);
    if (buckets == nullptr || buckets->compression() == nullptr) continue;
    if (std::find(found.begin(), found.end(), buckets->compression()) == found.end()) {
      found.push_back(buckets->compression());
    }
  }
  return found;
}

// An i64 scalar that the ranks of this compression have, as its entries: a tensor on more ranks would have to be on the first of
// them, which may be another part's and compress nothing.
DTensor RoundOf(const GradientCompression& compression) {
  MeshContext& context = compression.context();
  const auto round = static_cast<int64_t>(compression.round());
  return DTensor::FromLocal(IntrusivePtr<MeshContext>(&context),
                            Tensor::FromValues<int64_t>({}, {round}, context.allocator()),
                            Layout(/*ndim=*/0, context.mesh().num_axes()), Shape());
}

// Adds rows of any number of ranks, dealt out in turn.
void AddRows(TensorSource& reader, const std::string& name, const DTensor& to, const TensorType& saved) {
  const ShardBox own = to.LocalBox();
  const Tensor& piece = to.ToLocal();
  ShardBox row = own;
  row.global_shape[0] = saved.shape[0];
  for (row.offset[0] = own.offset[0]; row.offset[0] < saved.shape[0]; row.offset[0] += own.global_shape[0]) {
    const Tensor read = reader.Read(name, row, to.context()->allocator());
    OnValues(piece, [&](auto values) {
      using T = typename decltype(values)::value_type;
      const T* const more = read.data<T>();
      // To nothing a row as it is: even -0 keeps its sign.
      for (size_t i = 0; i < values.size(); ++i) values[i] = values[i] == 0 ? more[i] : values[i] + more[i];
    });
  }
}

// Errors: InvalidArgument for what is no `tensor` but for its extent of dim 0.
void CheckRows(TensorSource& reader, const std::string& name, const DTensor& tensor,
               const TensorType& saved) {
  Shape rest = saved.shape;
  if (rest.ndim() > 0) rest[0] = tensor.shape()[0];
  WEFT_REQUIRE(saved.dtype == tensor.dtype() && rest == tensor.shape(), "'", reader.path(), "': tensor '",
               name, "' is ", saved.ToString(), ", expected ", tensor.type().ToString(),
               ", of any extent of dim 0");
}

// What there is of an entry.
std::vector<std::pair<std::string, TensorType>> SavedOf(TensorSource& reader,
                                                        const GradientCompression::StateEntry& entry) {
  std::vector<std::pair<std::string, TensorType>> found;
  for (const std::string& name : {entry.name, entry.of_replicas}) {
    const TensorType* const saved = name.empty() ? nullptr : reader.Find(name);
    if (saved == nullptr) continue;
    // Of so many parts of another size: it begins anew.
    if (entry.is_shared && saved->shape != entry.tensor.shape()) continue;
    found.push_back({name, *saved});
  }
  return found;
}

void LoadEntry(TensorSource& reader, const GradientCompression::StateEntry& entry) {
  const DTensor& tensor = entry.tensor;
  FillTensor(tensor.ToLocal(), 0);
  for (const auto& [name, saved] : SavedOf(reader, entry)) {
    if (entry.is_shared) {
      CopyTensor(reader.Read(name, tensor.LocalBox(), tensor.context()->allocator()), tensor.ToLocal());
    } else {
      AddRows(reader, name, tensor, saved);
    }
  }
}

// 0, if there is none.
uint64_t ReadRound(TensorSource& reader, Module& model) {
  const TensorType* const saved = reader.Find(kRound);
  if (saved == nullptr) return 0;
  const TensorType expected = {DType::kI64, Shape()};
  WEFT_REQUIRE(*saved == expected, "'", reader.path(), "': tensor '", kRound, "' is ", saved->ToString(),
               ", expected ", expected.ToString());
  const Tensor round = reader.Read(kRound, WholeBox(Shape()), model.context()->allocator());
  return static_cast<uint64_t>(round.ToVector<int64_t>()[0]);
}

class CommunicationPart final : public StatePart {
 public:
  explicit CommunicationPart(Module& model) : model_(model) {}

  std::vector<StateTensor> Tensors() override {
    std::vector<StateTensor> tensors;
    for (auto& [name, tensor] : CommunicationState(model_)) tensors.push_back({name, tensor});
    return tensors;
  }
  bool is_exact() const override { return false; }
  bool Knows(absl::string_view name) override { return absl::StartsWith(name, "communication."); }
  void Load(TensorSource& source) override { LoadCommunicationState(source, model_); }

 private:
  Module& model_;
};

}  // namespace

bool HasCompression(Module& model) { return !CompressionsOf(model).empty(); }

std::vector<std::pair<std::string, DTensor>> CommunicationState(Module& model) {
  std::vector<std::pair<std::string, DTensor>> state;
  for (GradientCompression* compression : CompressionsOf(model)) {
    if (model.context()->state().in_backward()) {
      Throw(absl::StatusCode::kFailedPrecondition, "CommunicationState within a backward pass");
    }
    if (state.empty()) state.push_back({kRound, RoundOf(*compression)});
    for (GradientCompression::StateEntry& entry : compression->State()) {
      state.push_back({entry.name, entry.tensor});
    }
  }
  return state;
}

void LoadCommunicationState(TensorSource& reader, Module& model) {
  const std::vector<GradientCompression*> compressions = CompressionsOf(model);
  if (compressions.empty()) return;
  std::vector<GradientCompression::StateEntry> entries;
  for (GradientCompression* compression : compressions) {
    for (GradientCompression::StateEntry& entry : compression->StateToLoad()) {
      entries.push_back(std::move(entry));
    }
  }
  // All of it, before any is written.
  for (const GradientCompression::StateEntry& entry : entries) {
    for (const auto& [name, saved] : SavedOf(reader, entry)) CheckRows(reader, name, entry.tensor, saved);
  }
  const uint64_t round = ReadRound(reader, model);
  for (const GradientCompression::StateEntry& entry : entries) LoadEntry(reader, entry);
  for (GradientCompression* compression : compressions) compression->set_round(round);
}

void BeginScaledStep(Module& model, double scale) {
  for (GradientCompression* compression : CompressionsOf(model)) compression->BeginScaledStep(scale);
}

void EndScaledStep(Module& model, bool applied) {
  for (GradientCompression* compression : CompressionsOf(model)) compression->EndScaledStep(applied);
}

std::shared_ptr<StatePart> MakeCommunicationState(Module& model) {
  return std::make_shared<CommunicationPart>(model);
}

}  // namespace weft
