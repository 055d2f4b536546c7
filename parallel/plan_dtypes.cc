// Of a plan that is being resolved: in which dtypes a model computes, and in which memory its parameters lie.

#include <vector>

#include "parallel/resolved_plan.h"
#include "parallel/style.h"

namespace weft {
namespace {

StyleDTypes DTypesOf(const std::vector<Style>& styles) {
  StyleDTypes all;
  for (const Style& style : styles) {
    const StyleRules& rules = FindStyle(style.name);
    if (rules.dtypes == nullptr) continue;
    const StyleDTypes given = rules.dtypes(style);
    if (given.param) all.param = given.param;
    if (given.reduce) all.reduce = given.reduce;
    if (given.output) all.output = given.output;
    if (given.buffer) all.buffer = given.buffer;
  }
  return all;
}

}  // namespace

void ResolvedPlan::TakeDTypes() {
  for (ResolvedModule& module : modules) {
    const StyleDTypes dtypes = DTypesOf(module.styles);
    module.border.input_dtype = dtypes.param;
    module.border.output_dtype = dtypes.output;
  }
  for (ResolvedBuffer& buffer : buffers) {
    buffer.dtype = DTypesOf(modules[buffer.module].styles).buffer;
  }
  for (ResolvedParameter& parameter : parameters) {
    const StyleDTypes dtypes = DTypesOf(parameter.styles);
    parameter.compute_dtype = dtypes.param;
    parameter.reduce_dtype = dtypes.reduce;
    for (const Style& style : parameter.styles) {
      const StyleRules& rules = FindStyle(style.name);
      if (rules.memory != nullptr) parameter.memory = rules.memory(style);
    }
  }
}

}  // namespace weft
