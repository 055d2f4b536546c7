#include "parallel/parameter_claims.h"

#include <algorithm>

namespace weft {

void ParameterClaims::Mark(const ModelTree::Matches& matches, const Wrapping& wrapping) {
  for (int module : matches.modules) areas_[module].wrapping = wrapping;
  marked_alone_.insert(matches.parameters.begin(), matches.parameters.end());
}

int ParameterClaims::MarkedAbove(int module) const {
  while (module >= 0 && !areas_.contains(module)) module = tree_.parent(module);
  return module;
}

void ParameterClaims::Divide(const std::function<bool(int parameter)>& leaves_out) {
  units_.assign(tree_.parameters().size(), -1);
  for (int parameter = 0; parameter < std::ssize(units_); ++parameter) {
    if (leaves_out(parameter)) continue;
    const int marked = MarkedAbove(tree_.owner(parameter));
    if (marked >= 0) {
      areas_.at(marked).parameters.push_back(parameter);
      units_[parameter] = marked;
    } else if (marked_alone_.contains(parameter)) {
      units_[parameter] = tree_.owner(parameter);  // no unit around it
    }
  }
  for (const auto& [module, area] : areas_) {
    if (area.wrapping.wrap_from > 0) WrapBySize(module, area);
    if (!area.wrapping.wrap.empty()) WrapByType(module, area);
  }
}

void ParameterClaims::WrapBySize(int marked, const Area& area) {
  absl::flat_hash_map<int, int64_t> elements;  // below each module that lies below the marked one
  for (int parameter : area.parameters) {
    for (int module = tree_.owner(parameter); module != marked; module = tree_.parent(module)) {
      elements[module] += tree_.parameters()[parameter]->spec().shape.num_elements();
    }
  }
  absl::flat_hash_map<int, bool> is_unit;
  for (const auto& [module, count] : elements) {
    if (count < area.wrapping.wrap_from) continue;
    is_unit.try_emplace(module, true);
    is_unit[tree_.parent(module)] = false;  // a child is large enough
  }
  GiveToUnits(marked, area, [&](int module) {
    const auto found = is_unit.find(module);
    return found != is_unit.end() && found->second;
  });
}

void ParameterClaims::WrapByType(int marked, const Area& area) {
  GiveToUnits(marked, area, [&](int module) { return tree_.module_type(module) == area.wrapping.wrap; });
}

// Each parameter of the area to the innermost unit around it; otherwise it stays the marked module's.
void ParameterClaims::GiveToUnits(int marked, const Area& area,
                                  const std::function<bool(int module)>& is_unit) {
  for (int parameter : area.parameters) {
    int module = tree_.owner(parameter);
    while (module != marked && !is_unit(module)) module = tree_.parent(module);
    units_[parameter] = module;
  }
}

std::vector<ParameterClaims::Claim> ParameterClaims::Of(const ModelTree::Matches& matches) const {
  std::vector<Claim> claims;
  for (int module : matches.modules) {
    for (int parameter : areas_.at(module).parameters) {
      if (!marked_alone_.contains(parameter)) claims.push_back({parameter, units_[parameter]});
    }
  }
  for (int parameter : matches.parameters) {
    if (units_[parameter] >= 0) claims.push_back({parameter, units_[parameter]});
  }
  std::sort(claims.begin(), claims.end(),
            [](const Claim& a, const Claim& b) { return a.parameter < b.parameter; });
  return claims;
}

}  // namespace weft
