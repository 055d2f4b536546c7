#ifndef WEFT_TOOLS_RULES_DELIBERATE_H_
#define WEFT_TOOLS_RULES_DELIBERATE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// Strategies that are left out on purpose, as data: regular expressions (ECMAScript) over the op's name, its
// rule's text and the strategy's ("[-, -] P{a:max} -> [-, -] P{a:max}"), each to be found somewhere in it.
struct Deliberate {
  const char* op;
  const char* rule;
  const char* strategy;
  const char* reason;
};

const std::vector<Deliberate>& DeliberateList();

// The reason of the first entry that fits; empty if none does.
std::string DeliberateReason(absl::string_view op, absl::string_view rule, absl::string_view strategy);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_DELIBERATE_H_
