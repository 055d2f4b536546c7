#include "dtensor/checkpoint/state/step_contents.h"

#include <string>

#include "runtime/base/error.h"
#include "runtime/base/version.h"

namespace weft {
namespace {

// Errors: InvalidArgument for what is no UTF-8, which JSON cannot hold, and for two texts of one name.
void AddTexts(const State& state, Manifest* manifest) {
  for (const auto& [name, part] : state.parts()) {
    RequireUtf8("part", name, name);
    manifest->parts.push_back(name);
    for (const auto& [key, text] : part->Texts()) {
      RequireUtf8("text", key, key);
      RequireUtf8("text", key, text);
      WEFT_REQUIRE(manifest->texts.emplace(key, text).second, "state: text '", key, "' of part '", name,
                   "' stands twice");
    }
  }
}

}  // namespace

StepContents ContentsOf(int64_t step, int64_t generation, const State& state, Agreement& agreement) {
  StepContents contents;
  contents.manifest.weft = kVersion;
  contents.manifest.step = step;
  contents.manifest.generation = generation;
  contents.manifest.world = agreement.size();
  try {
    AddTexts(state, &contents.manifest);
    contents.tensors = TensorsOf(state, {});
    for (const LocalStateTensor& local : contents.tensors) {
      RequireUtf8("tensor", local.tensor.name, local.tensor.name);
    }
  } catch (...) {
    contents.failure = std::current_exception();
    contents.tensors.clear();
  }
  for (const auto& [name, entry] : GatherStateTable(agreement, contents.tensors)) {
    contents.manifest.tensors[name] = entry.place;
  }
  return contents;
}

}  // namespace weft
