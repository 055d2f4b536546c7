#ifndef WEFT_TESTS_RUNTIME_STORE_CONFORMANCE_H_
#define WEFT_TESTS_RUNTIME_STORE_CONFORMANCE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "runtime/store/store.h"

namespace weft {

// One store under test, fresh and empty, and those who use it.
class StoreSite {
 public:
  virtual ~StoreSite() = default;

  // One more user of the store: a client of its own where the store has clients.
  virtual std::shared_ptr<Store> Join() = 0;

  // How the program store_client reaches the store from a process of its own; "" if it cannot.
  virtual std::string address() const { return ""; }
};

struct StoreBackend {
  std::string name;
  std::function<std::unique_ptr<StoreSite>()> make;
};
inline void PrintTo(const StoreBackend& backend, std::ostream* out) { *out << backend.name; }

// The cases that every store passes. A store's own test program instantiates them:
//   INSTANTIATE_TEST_SUITE_P(Hash, StoreConformance, testing::Values(StoreBackend{"hash", make}));
class StoreConformance : public testing::TestWithParam<StoreBackend> {
 protected:
  StoreConformance() : site_(GetParam().make()), store_(site_->Join()) {}

  const std::unique_ptr<StoreSite> site_;
  const std::shared_ptr<Store> store_;
};

// Those of a store that processes share.
class StoreAcrossProcesses : public StoreConformance {};

// Longer than anything here takes on a busy machine: what waits for it has failed.
inline constexpr std::chrono::milliseconds kLong = std::chrono::seconds(60);

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_STORE_CONFORMANCE_H_
