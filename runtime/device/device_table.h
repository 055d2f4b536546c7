#ifndef WEFT_RUNTIME_DEVICE_DEVICE_TABLE_H_
#define WEFT_RUNTIME_DEVICE_DEVICE_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>

#include "runtime/device/device.h"

namespace weft {

// What each kind of device adds to a program that links it, at most one T a kind. Written during static
// initialisation only, so reading it needs no lock; its owner keeps it in a function, so that it exists
// before the first registrar.
template <class T>
class DeviceTable {
 public:
  // `subject`: "device cuda is". A kind that has one ends the program with "weft: SUBJECT linked into this
  // program twice": a defect of the build, and nothing can catch an exception before main.
  void Add(DeviceType type, const T& value, const std::string& subject) {
    std::optional<T>& entry = entries_[static_cast<size_t>(type)];
    if (entry.has_value()) {
      std::fprintf(stderr, "weft: %s linked into this program twice\n", subject.c_str());
      std::abort();
    }
    entry = value;
  }

  // Null if this program has been built without.
  const T* Find(DeviceType type) const {
    const std::optional<T>& entry = entries_[static_cast<size_t>(type)];
    return entry.has_value() ? &*entry : nullptr;
  }

 private:
  std::array<std::optional<T>, std::size(kAllDeviceTypes)> entries_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_DEVICE_TABLE_H_
