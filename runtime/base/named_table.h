#ifndef WEFT_RUNTIME_BASE_NAMED_TABLE_H_
#define WEFT_RUNTIME_BASE_NAMED_TABLE_H_

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"

namespace weft {

// Values that register themselves under a name, each from its own file, during static initialisation. Never written
// later, so reading it needs no lock; its owner keeps it in a function, so that it exists before the first registrar
// of whatever file, and never destroys it.
template <class T>
class NamedTable {
 public:
  // `kind`: what a value is called, in the singular: "style".
  explicit NamedTable(const char* kind) : kind_(kind) {}

  // A name that there is already ends the program with a message: it is a defect of the build, and nothing can catch
  // an exception before main.
  void Add(const std::string& name, T value) {
    if (values_.emplace(name, std::move(value)).second) return;
    std::fprintf(stderr, "weft: two %ss of the name '%s' are linked into this program\n", kind_,
                 name.c_str());
    std::abort();
  }

  // Null if there is none of that name.
  const T* Find(absl::string_view name) const {
    const auto found = values_.find(std::string(name));
    return found == values_.end() ? nullptr : &found->second;
  }

  // Errors: InvalidArgument that lists the names there are.
  const T& Get(absl::string_view name) const {
    if (const T* const value = Find(name)) return *value;
    ThrowInvalidArgument(
        "unknown ", kind_, " '", name, "': expected one of ",
        absl::StrJoin(values_, ", ", [](std::string* out, const auto& entry) { out->append(entry.first); }));
  }

  // By name, ascending.
  const std::map<std::string, T>& values() const { return values_; }

 private:
  const char* const kind_;
  std::map<std::string, T> values_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_NAMED_TABLE_H_
