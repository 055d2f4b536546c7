#include "dtensor/optim/tied_names.h"

#include <set>

namespace weft {

std::vector<Parameter*> WithoutTiedNames(const std::vector<Parameter*>& parameters) {
  std::set<const Parameter*> known(parameters.begin(), parameters.end());
  std::vector<Parameter*> own;
  own.reserve(parameters.size());
  for (Parameter* const parameter : parameters) {
    Parameter* const tied_to = parameter->tied_to();
    if (tied_to == nullptr) {
      own.push_back(parameter);
    } else if (known.insert(tied_to).second) {
      own.push_back(tied_to);
    }
  }
  return own;
}

}  // namespace weft
