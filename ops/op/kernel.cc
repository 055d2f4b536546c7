#include "ops/op/kernel.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Key = std::pair<const OpDef*, DeviceType>;

// Written during static initialisation only, so reading it needs no lock. In a function, so that it exists
// before the first registrar of whatever file; never destroyed, since other static destructors may still look
// a kernel up.
template <class Kernel>
absl::flat_hash_map<Key, Kernel>& Table() {
  static auto* const table = new absl::flat_hash_map<Key, Kernel>();
  return *table;
}

template <class Kernel>
void Add(const OpDef& op, DeviceType device, Kernel kernel, const char* what) {
  if (Table<Kernel>().emplace(Key(&op, device), kernel).second) return;
  // Nothing can catch an exception before main.
  std::fprintf(stderr, "weft: two %s of op '%s' for one device are linked into this program\n", what,
               op.name());
  std::abort();
}

template <class Kernel>
Kernel Find(const OpDef& op, DeviceType device) {
  const auto found = Table<Kernel>().find(Key(&op, device));
  return found == Table<Kernel>().end() ? nullptr : found->second;
}

}  // namespace

void RegisterKernel::Add(const OpDef& op, DeviceType device, ErasedKernel kernel) {
  weft::Add(op, device, kernel, "kernels");
}

ErasedKernel FindKernel(const OpDef& op, DeviceType device) { return Find<ErasedKernel>(op, device); }

ErasedKernel KernelFor(const OpDef& op, const Device& device) {
  // A meta tensor has no elements: only views, which compute shapes, run their kernel on it.
  if (device.type == DeviceType::kMeta && !op.is_view()) return nullptr;
  // A view's kernel computes strides, or copies by calls that know every device.
  const DeviceType type = op.is_view() ? DeviceType::kCpu : device.type;
  const ErasedKernel kernel = FindKernel(op, type);
  if (kernel == nullptr) {
    Throw(absl::StatusCode::kUnimplemented, op.name(), ": no kernel on device ", DeviceTypeName(type));
  }
  return kernel;
}

RegisterBatchKernel::RegisterBatchKernel(const OpDef& op, DeviceType device, BatchKernel kernel) {
  Add(op, device, kernel, "batch kernels");
}

BatchKernel FindBatchKernel(const OpDef& op, DeviceType device) { return Find<BatchKernel>(op, device); }

std::vector<const OpDef*> RegisteredOps() {
  std::vector<const OpDef*> ops;
  for (const auto& [key, kernel] : Table<ErasedKernel>()) ops.push_back(key.first);
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
