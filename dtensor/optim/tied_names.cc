#include "dtensor/optim/tied_names.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace weft {

std::vector<Parameter*> WithoutTiedNames(const std::vector<Parameter*>& parameters) {
  const absl::flat_hash_set<const Parameter*> listed(parameters.begin(), parameters.end());
  const bool has_tied = std::any_of(parameters.begin(), parameters.end(), [](const Parameter* parameter) {
    return parameter->tied_to() != nullptr;
  });
  if (!has_tied && listed.size() == parameters.size()) return parameters;
  absl::flat_hash_set<const Parameter*> known;
  std::vector<Parameter*> own;
  own.reserve(parameters.size());
  for (Parameter* const parameter : parameters) {
    Parameter* const tied_to = parameter->tied_to();
    if (tied_to != nullptr && listed.count(tied_to) > 0) continue;  // it comes by itself
    Parameter* const named = tied_to != nullptr ? tied_to : parameter;
    if (known.insert(named).second) own.push_back(named);
  }
  return own;
}

}  // namespace weft
