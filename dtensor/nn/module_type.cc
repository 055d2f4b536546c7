#include "dtensor/nn/module_type.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace weft {

// Without what stands before the last "::", outside of template arguments.
std::string ModuleTypeName(const Module& module) {
  const char* const mangled = typeid(module).name();
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  const std::string name = status == 0 ? text.get() : mangled;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' || name[i] == '(';
    depth -= name[i] == '>' || name[i] == ')';
    if (depth == 0 && name[i] == ':') begin = i + 1;
  }
  return name.substr(begin);
}

}  // namespace weft
