#ifndef WEFT_RUNTIME_COMM_GLOO_STORE_ADAPTER_H_
#define WEFT_RUNTIME_COMM_GLOO_STORE_ADAPTER_H_

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gloo/rendezvous/store.h"

namespace weft {

// Gloo's meeting in the keys below `prefix` of Weft's store. What has to wait goes through `get`, which knows
// how long.
class GlooStoreAdapter final : public gloo::rendezvous::Store {
 public:
  using Set = std::function<void(const std::string& key, const std::string& value)>;
  using Get = std::function<std::string(const std::string& key)>;
  GlooStoreAdapter(std::string prefix, Set set, Get get)
      : prefix_(std::move(prefix)), set_(std::move(set)), get_(std::move(get)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    set_(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = get_(prefix_ + key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get_(prefix_ + key);
  }
  // Gloo's timeout is of its own making: `get` has the caller's.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  const std::string prefix_;
  const Set set_;
  const Get get_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_STORE_ADAPTER_H_
