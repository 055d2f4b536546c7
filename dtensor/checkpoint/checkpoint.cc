#include "dtensor/checkpoint/checkpoint.h"

#include "dtensor/functions.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Reads this rank's piece of `name` over the elements of `into`.
void LoadInto(SafetensorsReader& reader, const std::string& name, const DTensor& into) {
  const Tensor piece = reader.Read(name, into.LocalBox(), into.context()->allocator());
  WEFT_REQUIRE(piece.dtype() == into.dtype(), "'", reader.path(), "': tensor '", name, "' is ",
               DTypeName(piece.dtype()), ", expected ", DTypeName(into.dtype()));
  CopyTensor(piece, into.ToLocal());
  into.impl()->MarkWritten("load");
}

}  // namespace

void SaveTensors(const std::string& path, const std::vector<std::pair<std::string, DTensor>>& tensors,
                 const SafetensorsMetadata& metadata) {
  WEFT_REQUIRE(!tensors.empty(), "checkpoint '", path, "': nothing to save");
  MeshContext& context = *tensors[0].second.context();
  const PurposeGuard purpose(context.state(), Purpose::kParam);
  std::optional<SafetensorsWriter> writer;
  if (context.world().rank() == context.mesh().ranks()[0]) {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.type()});
    writer.emplace(path, entries, metadata);
  }
  for (const auto& [name, tensor] : tensors) {
    const Tensor whole = tensor.FullTensor();
    if (writer) writer->Write(whole);
  }
  if (writer) writer->Finish();
}

std::vector<std::pair<std::string, DTensor>> CheckpointTensors(Module& model, const Optimizer& optimizer) {
  std::vector<std::pair<std::string, DTensor>> tensors;
  for (const Parameter* parameter : model.AllParameters()) {
    if (parameter->model_context()) {
      Throw(absl::StatusCode::kUnimplemented, "a checkpoint of a model that is cut into stages: parameter '",
            parameter->path(), "' is on some ranks alone, and a checkpoint is written by all");
    }
    tensors.push_back({parameter->path(), parameter->at_rest()});
  }
  for (auto& entry : optimizer.State())
    tensors.push_back({absl::StrCat("optimizer.", entry.first), entry.second});
  return tensors;
}

void LoadParameters(SafetensorsReader& reader, Module& model) {
  for (const Parameter* parameter : model.AllParameters())
    LoadInto(reader, parameter->path(), parameter->at_rest());
}

void LoadOptimizerState(SafetensorsReader& reader, const Optimizer& optimizer,
                        std::optional<int64_t> updates_of_older) {
  for (const auto& [name, tensor] : optimizer.State()) {
    const std::string saved = absl::StrCat("optimizer.", name);
    const bool is_count = tensor.impl() == optimizer.updates().impl();
    if (is_count && updates_of_older && reader.Find(saved) == nullptr) {
      const DTensor count = Full(tensor.context(), tensor.dtype(), tensor.shape(), *updates_of_older);
      CopyTensor(count.ToLocal(), tensor.ToLocal());
      tensor.impl()->MarkWritten("load");
    } else {
      LoadInto(reader, saved, tensor);
    }
  }
}

}  // namespace weft
