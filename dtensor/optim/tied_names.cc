#include "dtensor/optim/tied_names.h"

#include <set>

namespace weft {

std::vector<Parameter*> WithoutTiedNames(const std::vector<Parameter*>& parameters) {
  const std::set<const Parameter*> listed(parameters.begin(), parameters.end());
  std::set<const Parameter*> known;
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
