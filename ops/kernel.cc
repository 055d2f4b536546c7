#include "ops/kernel.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace weft {
namespace {

using Key = std::pair<const OpDef*, DeviceType>;

// Written during static initialisation only, so reading it needs no lock. In a function, so that it exists
// before the first registrar of whatever file; never destroyed, since other static destructors may still look
// a kernel up.
absl::flat_hash_map<Key, ErasedKernel>& Table() {
  static auto* const table = new absl::flat_hash_map<Key, ErasedKernel>();
  return *table;
}

}  // namespace

void RegisterKernel::Add(const OpDef& op, DeviceType device, ErasedKernel kernel) {
  if (Table().emplace(Key(&op, device), kernel).second) return;
  // Nothing can catch an exception before main.
  std::fprintf(stderr, "weft: two kernels of op '%s' for one device are linked into this program\n",
               op.name());
  std::abort();
}

ErasedKernel FindKernel(const OpDef& op, DeviceType device) {
  const auto found = Table().find(Key(&op, device));
  return found == Table().end() ? nullptr : found->second;
}

std::vector<const OpDef*> RegisteredOps() {
  std::vector<const OpDef*> ops;
  for (const auto& [key, kernel] : Table()) ops.push_back(key.first);
  // By name, and by address where two ops (of tests) share one: a total order, so that `unique` sees equals
  // together.
  std::sort(ops.begin(), ops.end(), [](const OpDef* a, const OpDef* b) {
    const int order = absl::string_view(a->name()).compare(b->name());
    return order != 0 ? order < 0 : std::less<const OpDef*>()(a, b);
  });
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  return ops;
}

}  // namespace weft
