#include "dtensor/checkpoint/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <set>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "dtensor/functions.h"
#include "dtensor/redistribution/agreement.h"
#include "runtime/base/error.h"
#include "runtime/base/error_text.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/gather_texts.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// What the writer may take longer for than the others do, which wait for it.
constexpr std::chrono::milliseconds kWriting = std::chrono::hours(1);

// This rank's piece of `name`, as `into` lies.
Tensor ReadPiece(SafetensorsReader& reader, const std::string& name, const DTensor& into) {
  Tensor piece = reader.Read(name, into.LocalBox(), into.context()->allocator());
  WEFT_REQUIRE(piece.dtype() == into.dtype(), "'", reader.path(), "': tensor '", name, "' is ",
               DTypeName(piece.dtype()), ", expected ", DTypeName(into.dtype()));
  return piece;
}

// Reads it over the elements of `into`.
void LoadInto(SafetensorsReader& reader, const std::string& name, const DTensor& into) {
  CopyTensor(ReadPiece(reader, name, into), into.ToLocal());
  into.impl()->MarkWritten("load");
}

// One tensor of the file.
struct SpreadEntry {
  SafetensorsEntry entry;
  int giver = 0;   // the index along the axis of stages or parts of who gives it
  DTensor tensor;  // defined on the ranks that have it
};

std::vector<SpreadEntry> EntriesHere(const std::vector<std::pair<std::string, DTensor>>& tensors) {
  std::vector<SpreadEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({.entry = {name, tensor.type()}, .giver = 0, .tensor = tensor});
  }
  return entries;
}

// What a rank tells of its tensors, each: the bytes of its name, dtype and extents, with blanks between, on a line; then the name,
// which may have any bytes.
std::string Told(const std::vector<std::pair<std::string, DTensor>>& tensors) {
  std::string told;
  for (const auto& [name, tensor] : tensors) {
    absl::StrAppend(&told, name.size(), " ", DTypeName(tensor.dtype()));
    for (int dim = 0; dim < tensor.ndim(); ++dim) absl::StrAppend(&told, " ", tensor.shape()[dim]);
    absl::StrAppend(&told, "\n", name);
  }
  return told;
}

// The first entry of what Told has returned, which is taken off.
SafetensorsEntry TakeEntry(absl::string_view* told) {
  const size_t begin = told->find('\n') + 1;  // of the name
  WEFT_CHECK(begin > 0, *told);
  const std::vector<std::string> words = absl::StrSplit(told->substr(0, begin - 1), ' ');
  size_t num_bytes = 0;
  WEFT_CHECK(words.size() >= 2 && absl::SimpleAtoi(words[0], &num_bytes) && num_bytes <= told->size() - begin,
             *told);
  std::vector<int64_t> extents;
  for (size_t i = 2; i < words.size(); ++i) {
    WEFT_CHECK(absl::SimpleAtoi(words[i], &extents.emplace_back()), "extent ", words[i]);
  }
  const std::string name(told->substr(begin, num_bytes));
  told->remove_prefix(begin + num_bytes);
  return {name, {ParseDType(words[1]), Shape(extents)}};
}

// Of all stages or parts: each rank tells what it has. `path`: for errors, which all ranks have alike.
std::vector<SpreadEntry> EntriesOfParts(const std::string& path, const ModelParts& parts,
                                        const std::vector<std::pair<std::string, DTensor>>& tensors) {
  MeshContext& context = *parts.context;
  std::map<std::string, DTensor> here(tensors.begin(), tensors.end());
  Communicator& along = context.Group({parts.axis});
  const std::vector<std::string> texts =
      AllGatherTexts(along, Told(tensors), context.allocator(), {.tag = context.state().tag()});
  std::vector<SpreadEntry> entries;
  std::set<std::string> known;
  for (int rank = 0; rank < along.size(); ++rank) {
    std::set<std::string> of_rank;
    for (absl::string_view told = texts[rank]; !told.empty();) {
      const SafetensorsEntry entry = TakeEntry(&told);
      // What several ranks have is one tensor; what a rank has twice are two.
      WEFT_REQUIRE(of_rank.insert(entry.name).second, "checkpoint '", path, "': tensor '", entry.name,
                   "' stands twice");
      if (!known.insert(entry.name).second) continue;
      entries.push_back({.entry = entry, .giver = rank, .tensor = here[entry.name]});
    }
  }
  return entries;
}

// Brings the whole tensor of one of those that have it to the mesh's first rank, which returns it; the others return their own.
//
// A rank that fails by itself, for lack of memory, ends the group: its peer would wait for it.
Tensor BringToWriter(const ModelParts& parts, const SpreadEntry& entry, Tensor whole) {
  MeshContext& context = *parts.context;
  Communicator& along = context.Group({parts.axis});
  const CommOptions options = {.tag = context.state().tag()};
  const absl::Span<const int64_t> coordinate = context.coordinate();
  const bool is_beside_writer = std::all_of(coordinate.begin(), coordinate.end(), [&](const int64_t& index) {
    return index == 0 || &index - coordinate.data() == parts.axis;
  });
  if (entry.giver == 0 || !is_beside_writer) return whole;
  try {
    if (along.rank() == entry.giver) {
      along.Send(whole.IsContiguous() ? whole : CloneTensor(whole, context.allocator()), 0, options).Wait();
    } else if (along.rank() == 0) {
      whole = Tensor::Empty(context.allocator(), entry.entry.type.dtype, entry.entry.type.shape);
      along.Recv(whole, entry.giver, options).Wait();
    }
  } catch (...) {
    const Error error = AsError(std::current_exception());
    along.Fail(error.code(), absl::StrCat("group '", along.name(), "': world rank ", context.world().rank(),
                                          " failed: ", error.message()));
    throw;
  }
  return whole;
}

// What the ranks do for one file. What one fails in is kept until Agree: the others wait for it in the gathers.
class FileWork {
 public:
  explicit FileWork(MeshContext& context) : context_(context) {}

  // On every rank, whatever has failed before.
  void Do(absl::FunctionRef<void()> work) {
    try {
      work();
    } catch (...) {
      if (!error_) error_ = AsError(std::current_exception());
    }
  }

  // On the writer alone, and not behind an error of its own.
  void DoAsWriter(absl::FunctionRef<void()> work) {
    if (!error_ && context_.world().rank() == context_.mesh().ranks()[0]) Do(work);
  }

  // All ranks come here, and throw the first error that a rank has, in the mesh's order. Behind it their devices have done what
  // they had been given before it. `timeout`: 0 for that of other calls.
  void Agree(std::chrono::milliseconds timeout) {
    if (context_.mesh().num_ranks() == 1) {
      if (error_) throw *error_;
      return;
    }
    const std::string told = error_ ? ErrorText(error_->code(), error_->message()) : "";
    const CommOptions options = {.tag = context_.state().tag(), .timeout = timeout};
    for (const std::string& text : AllGatherTexts(AllRanks(context_), told, context_.allocator(), options)) {
      if (text.empty()) continue;
      const std::optional<Error> error = ErrorFromText(text);
      WEFT_CHECK(error.has_value(), text);
      throw *error;
    }
  }

 private:
  MeshContext& context_;
  std::optional<Error> error_;
};

}  // namespace

void SaveTensors(const std::string& path, const std::vector<std::pair<std::string, DTensor>>& tensors,
                 const SafetensorsMetadata& metadata, const ModelParts* parts) {
  // Of stages or parts one may have none.
  WEFT_REQUIRE(parts != nullptr || !tensors.empty(), "checkpoint '", path, "': nothing to save");
  for (const auto& [name, tensor] : tensors) {
    WEFT_REQUIRE(
        parts != nullptr || !tensor.context()->has_part_of_model(), "checkpoint '", path, "': tensor '", name,
        "' is of a model of which other ranks have other stages or parts: give SaveTensors PartsOf(model)");
  }
  MeshContext& context = parts != nullptr ? *parts->context : *tensors[0].second.context()->DeviceSide();
  const PurposeGuard purpose(context.state(), Purpose::kParam);
  const std::vector<SpreadEntry> entries =
      parts != nullptr ? EntriesOfParts(path, *parts, tensors) : EntriesHere(tensors);
  WEFT_REQUIRE(!entries.empty(), "checkpoint '", path, "': nothing to save");
  std::optional<SafetensorsWriter> writer;
  FileWork work(context);
  work.DoAsWriter([&] {
    std::vector<SafetensorsEntry> types;
    for (const SpreadEntry& entry : entries) types.push_back(entry.entry);
    writer.emplace(path, types, metadata);
  });
  // Before a file of that name is replaced, which others may still read.
  work.Agree(/*timeout=*/{});
  for (const SpreadEntry& entry : entries) {
    Tensor whole = entry.tensor.defined() ? entry.tensor.FullTensor() : Tensor();
    if (parts != nullptr) work.Do([&] { whole = BringToWriter(*parts, entry, whole); });
    work.DoAsWriter([&] { writer->Write(whole); });
  }
  work.Agree(kWriting);
  // A collective that was cut off may leave anything in its tensors. Each rank asks: what the writer has may come from another. And
  // they ask behind an agreement, since until then a host may be ahead of its device.
  work.Do([&] { context.world().ThrowIfCutOff(); });
  work.Agree(/*timeout=*/{});
  work.DoAsWriter([&] { writer->Finish(); });
  work.Agree(kWriting);
}

std::vector<std::pair<std::string, DTensor>> CheckpointTensors(Module& model, const Optimizer& optimizer) {
  std::vector<std::pair<std::string, DTensor>> tensors;
  for (const Parameter* parameter : model.AllParameters()) {
    tensors.push_back({parameter->path(), parameter->at_rest()});
  }
  for (const ModuleBuffer* buffer : model.AllBuffers()) {
    if (buffer->spec().persistent) tensors.push_back({buffer->path(), buffer->Value()});
  }
  for (auto& entry : optimizer.State())
    tensors.push_back({absl::StrCat("optimizer.", entry.first), entry.second});
  return tensors;
}

void LoadParameters(SafetensorsReader& reader, Module& model) {
  for (const Parameter* parameter : model.AllParameters())
    LoadInto(reader, parameter->path(), parameter->at_rest());
  for (ModuleBuffer* buffer : model.AllBuffers()) {
    if (!buffer->spec().persistent) continue;
    const DTensor& value = buffer->Value();
    buffer->Set(DTensor::FromLocal(value.context(), ReadPiece(reader, buffer->path(), value), value.layout(),
                                   value.shape()));
  }
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

void LoadTensors(SafetensorsReader& reader, const std::vector<std::pair<std::string, DTensor>>& tensors) {
  for (const auto& [name, tensor] : tensors) LoadInto(reader, name, tensor);
}

}  // namespace weft
