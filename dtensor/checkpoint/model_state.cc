#include "dtensor/checkpoint/model_state.h"

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/safetensors_header.h"
#include "dtensor/functions.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/nn/segmented_module.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A parameter, or a buffer, of the module.
struct Slot {
  std::string name;     // from the module on
  std::string outside;  // empty: not to be saved or loaded
  bool is_here = true;
  Parameter* parameter = nullptr;
  ModuleBuffer* buffer = nullptr;

  const DTensor& value() const { return parameter != nullptr ? parameter->at_rest() : buffer->Value(); }
};

std::vector<Slot> SlotsOf(Module& module, const StateNames& names) {
  const std::string own = module.path();
  const size_t skipped = own.empty() ? 0 : own.size() + 1;
  std::vector<Slot> slots;
  for (Parameter* parameter : module.RegisteredParameters()) {
    slots.push_back({.name = parameter->path().substr(skipped),
                     .outside = "",
                     .is_here = parameter->is_here(),
                     .parameter = parameter});
  }
  for (ModuleBuffer* buffer : module.RegisteredBuffers()) {
    if (!buffer->spec().persistent) continue;
    slots.push_back({.name = buffer->path().substr(skipped),
                     .outside = "",
                     .is_here = buffer->is_here(),
                     .buffer = buffer});
  }
  std::set<std::string> known;
  for (Slot& slot : slots) {
    const std::string renamed = names.rename != nullptr ? names.rename(slot.name) : slot.name;
    if (renamed.empty()) continue;
    slot.outside = absl::StrCat(names.prefix, renamed);
    WEFT_REQUIRE(known.insert(slot.outside).second, "state of module '", own,
                 "': two of its tensors are named '", slot.outside, "'; the second is '", slot.name, "'");
  }
  return slots;
}

std::string Listed(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

void CheckFits(const Slot& slot, const TensorType& type, bool cast) {
  const TensorType& own = slot.value().type();
  const bool may_cast = IsFloating(type.dtype) && IsFloating(own.dtype);
  const bool dtype_fits = type.dtype == own.dtype || (cast && may_cast);
  WEFT_REQUIRE(type.shape == own.shape && dtype_fits, "load state: '", slot.outside, "' is ", type.ToString(),
               ", expected ", own.ToString(), " for '", slot.name, "'",
               type.shape == own.shape && may_cast ? " (LoadStateOptions::cast takes it)" : "");
}

// Which slots there is something for. `types`: of the tensors outside, by name; `of_all`: of those of other stages and parts,
// too.
LoadStateResult Match(const Module& module, const std::vector<Slot>& slots,
                      const std::map<std::string, TensorType>& types, bool of_all,
                      const LoadStateOptions& options) {
  LoadStateResult result;
  std::set<std::string> known;
  std::set<std::string> missing;
  for (const Slot& slot : slots) {
    if (slot.outside.empty()) continue;
    known.insert(slot.outside);
    if ((slot.is_here || of_all) && types.count(slot.outside) == 0) missing.insert(slot.name);
  }
  result.missing.assign(missing.begin(), missing.end());
  for (const auto& [name, type] : types) {
    if (absl::StartsWith(name, options.names.prefix) && known.count(name) == 0) {
      result.unexpected.push_back(name);
    }
  }
  const bool is_whole = result.missing.empty() && result.unexpected.empty();
  WEFT_REQUIRE(!options.strict || is_whole, "load state of module '", module.path(),
               "': missing: ", Listed(result.missing), "; unexpected: ", Listed(result.unexpected),
               "; expected the same names on both sides, or strict = false");
  for (const Slot& slot : slots) {
    const auto found = slot.is_here ? types.find(slot.outside) : types.end();
    if (found != types.end()) CheckFits(slot, found->second, options.cast);
  }
  return result;
}

// That each value can be brought to its slot's mesh.
void CheckMeshes(const std::vector<Slot>& slots, const StateMap& state) {
  for (const Slot& slot : slots) {
    const auto found = slot.is_here ? state.find(slot.outside) : state.end();
    if (found == state.end()) continue;
    const DeviceMesh &given = found->second.context()->mesh(), &own = slot.value().context()->mesh();
    WEFT_REQUIRE(HaveSameRanks(given, own), "load state: '", slot.outside, "' lies on mesh (",
                 given.ToString(), "), expected mesh (", own.ToString(),
                 ") or another of the same ranks for '", slot.name, "'");
  }
}

}  // namespace

StateMap StateOf(Module& module, const StateNames& names) {
  StateMap state;
  for (const Slot& slot : SlotsOf(module, names)) {
    if (slot.is_here && !slot.outside.empty()) state[slot.outside] = slot.value().Detach();
  }
  return state;
}

StateMap CloneState(Module& module, const StateNames& names) {
  StateMap state = StateOf(module, names);
  for (auto& [name, value] : state) {
    value = DTensor::FromLocal(value.context(), CloneTensor(value.ToLocal(), value.context()->allocator()),
                               value.layout(), value.shape());
  }
  return state;
}

LoadStateResult LoadState(Module& module, const StateMap& state, const LoadStateOptions& options) {
  const std::vector<Slot> slots = SlotsOf(module, options.names);
  std::map<std::string, TensorType> types;
  for (const auto& [name, value] : state) {
    WEFT_REQUIRE(value.defined(), "load state: '", name, "' is undefined (default-constructed)");
    types[name] = value.type();
  }
  const LoadStateResult result = Match(module, slots, types, /*of_all=*/false, options);
  CheckMeshes(slots, state);
  for (const Slot& slot : slots) {
    const auto found = slot.is_here ? state.find(slot.outside) : state.end();
    if (found == state.end()) continue;
    const NoGradGuard no_grad(slot.value().context()->state());
    const DTensor value = Cast(found->second.Detach(), slot.value().dtype());
    slot.parameter != nullptr ? slot.parameter->Load(value) : slot.buffer->Set(value);
  }
  return result;
}

LoadStateResult LoadWeights(SafetensorsReader& reader, Module& module, const LoadStateOptions& options) {
  const std::vector<Slot> slots = SlotsOf(module, options.names);
  std::map<std::string, TensorType> types;
  std::set<std::string> wanted;
  for (const Slot& slot : slots) wanted.insert(slot.outside);
  const auto add = [&](const std::string& name, const TensorType& type) {
    // A module may be named optimizer itself.
    const bool is_optimizers = absl::StartsWith(name, "optimizer.") && wanted.count(name) == 0;
    if (!is_optimizers) types[name] = type;
  };
  for (const SafetensorsEntry& entry : reader.entries()) add(entry.name, entry.type);
  for (const auto& [name, dtype] : reader.Skipped()) {
    if (wanted.count(name) > 0) ThrowLacksDType(reader.path(), absl::StrCat("tensor '", name, "'"), dtype);
    add(name, TensorType());
  }
  // Otherwise the ranks of one stage would end, and the others wait for them.
  const LoadStateResult result = Match(module, slots, types, /*of_all=*/true, options);
  for (const Slot& slot : slots) {
    if (!slot.is_here || types.count(slot.outside) == 0) continue;
    const DTensor& value = slot.value();
    const std::shared_ptr<Allocator>& allocator = value.context()->allocator();
    const Tensor piece = reader.Read(slot.outside, value.LocalBox(), allocator);
    if (slot.parameter != nullptr) {
      CopyTensor(piece, value.ToLocal());
      value.impl()->MarkWritten("load");
    } else {
      const Tensor own = Tensor::Empty(allocator, value.dtype(), piece.shape());
      CopyTensor(piece, own);
      slot.buffer->Set(DTensor::FromLocal(value.context(), own, value.layout(), value.shape()));
    }
  }
  return result;
}

void SaveWeights(const std::string& path, Module& module, const StateNames& names,
                 const SafetensorsMetadata& metadata, const ModelParts* parts) {
  std::vector<std::pair<std::string, DTensor>> tensors;
  for (const Slot& slot : SlotsOf(module, names)) {
    if (slot.is_here && !slot.outside.empty()) tensors.push_back({slot.outside, slot.value()});
  }
  SaveTensors(path, tensors, metadata, parts != nullptr ? parts : PartsOf(module.root()));
}

}  // namespace weft
