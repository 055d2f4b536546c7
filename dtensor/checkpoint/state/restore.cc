#include "dtensor/checkpoint/state/restore.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/checkpoint/state/state_table.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

std::string NameOutside(const RestoreOptions& options, const std::string& name) {
  return options.rename != nullptr ? options.rename(name) : name;
}

bool IsKnown(const State& state, const std::string& name) {
  return std::any_of(state.parts().begin(), state.parts().end(),
                     [&](const auto& part) { return part.second->Knows(name); });
}

// Errors: InvalidArgument that lists all that does not fit.
RestoreResult Match(const TensorSource& source, const State& state, const StateTable& table,
                    const RestoreOptions& options) {
  RestoreResult result;
  std::vector<std::string> problems;
  std::set<std::string> taken;
  for (const auto& [name, entry] : table) {
    const std::string outside = NameOutside(options, name);
    if (outside.empty()) continue;
    taken.insert(outside);
    if (!entry.is_exact) continue;
    const TensorType* const saved = source.Find(outside);
    if (saved == nullptr) {
      result.missing.push_back(name);
      if (options.strict) problems.push_back(absl::StrCat("it has no '", outside, "'"));
      continue;
    }
    const TensorType& own = entry.place.type;
    const bool is_cast = options.cast && IsFloating(saved->dtype) && IsFloating(own.dtype);
    if (saved->shape != own.shape || (saved->dtype != own.dtype && !is_cast)) {
      problems.push_back(
          absl::StrCat("'", outside, "' is ", saved->ToString(), ", expected ", own.ToString()));
    }
  }
  for (const std::string& name : options.parts.empty() ? source.Names() : std::vector<std::string>()) {
    if (taken.count(name) > 0 || IsKnown(state, name)) continue;
    result.unexpected.push_back(name);
    if (options.strict) problems.push_back(absl::StrCat("'", name, "' is of no part of the state"));
  }
  WEFT_REQUIRE(problems.empty(), "'", source.path(), "' does not fit: ", absl::StrJoin(problems, "; "));
  return result;
}

void Read(TensorSource& source, const LocalStateTensor& local, const RestoreOptions& options) {
  const std::string outside = NameOutside(options, local.tensor.name);
  if (outside.empty() || source.Find(outside) == nullptr) return;
  const DTensor& own = local.tensor.tensor;
  const std::shared_ptr<Allocator>& allocator = own.context()->allocator();
  const Tensor& in_place = own.ToLocal();
  const bool fits = local.tensor.set == nullptr && source.Find(outside)->dtype == own.dtype() &&
                    in_place.IsContiguous() && in_place.device().type == DeviceType::kCpu;
  if (fits) {
    source.ReadInto(outside, own.LocalBox(), in_place);
    own.impl()->MarkWritten("load");
    return;
  }
  Tensor piece = source.Read(outside, own.LocalBox(), allocator);
  if (local.tensor.set == nullptr) {
    CopyTensor(piece, own.ToLocal());
    own.impl()->MarkWritten("load");
    return;
  }
  if (piece.dtype() != own.dtype()) piece = CastTensor(piece, own.dtype(), allocator);
  local.tensor.set(piece);
}

}  // namespace

RestoreResult Restore(Agreement& agreement, const std::function<std::unique_ptr<TensorSource>()>& open,
                      const State& state, const RestoreOptions& options) {
  const std::vector<LocalStateTensor> tensors = TensorsOf(state, options.parts);
  const StateTable table = GatherStateTable(agreement, tensors);
  std::unique_ptr<TensorSource> source;
  RestoreResult result;
  agreement.Agree({.part = [&] {
    source = open();
    result = Match(*source, state, table, options);
    return std::string();
  }});
  agreement.Agree({.part = [&] {
    for (const LocalStateTensor& local : tensors) {
      if (local.is_exact) Read(*source, local, options);
    }
    for (const auto& [name, part] : state.parts()) {
      const bool is_wanted =
          options.parts.empty() || std::count(options.parts.begin(), options.parts.end(), name) > 0;
      if (is_wanted && !part->is_exact()) part->Load(*source);
    }
    return std::string();
  }});
  return result;
}

}  // namespace weft
