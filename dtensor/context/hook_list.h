// Hooks: functions that a user hangs on something, and the handles that take them off again.

#ifndef WEFT_DTENSOR_CONTEXT_HOOK_LIST_H_
#define WEFT_DTENSOR_CONTEXT_HOOK_LIST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace weft {

// What a handle knows of the list that its hook is in.
class HookTable {
 public:
  virtual ~HookTable() = default;
  virtual void Erase(int64_t id) noexcept = 0;
};

// Takes a hook off. A value; dropping it leaves the hook where it is.
// Threads: the rank's.
class HookHandle {
 public:
  HookHandle() = default;
  HookHandle(std::weak_ptr<HookTable> table, int64_t id) : table_(std::move(table)), id_(id) {}

  // Nothing happens if the hook is off already, or what it hung on is gone. Not for the call that runs.
  void Remove() noexcept {
    if (const std::shared_ptr<HookTable> table = table_.lock()) table->Erase(id_);
    table_.reset();
  }

 private:
  std::weak_ptr<HookTable> table_;
  int64_t id_ = 0;
};

// Hooks of one signature, in the order in which they were hung. Costs two words until the first is. Does not copy.
template <class Signature>
class HookList {
 public:
  using Hook = std::function<Signature>;

  HookList() = default;
  HookList(const HookList&) = delete;
  HookList& operator=(const HookList&) = delete;

  HookHandle Add(Hook hook) {
    if (table_ == nullptr) table_ = std::make_shared<Table>();
    const int64_t id = table_->next++;
    table_->hooks.emplace(id, std::move(hook));
    return HookHandle(table_, id);
  }

  bool empty() const { return table_ == nullptr || table_->hooks.empty(); }

  // Those that hang now: a hook may hang or take off others meanwhile.
  std::vector<Hook> hooks() const {
    std::vector<Hook> all;
    if (table_ == nullptr) return all;
    for (const auto& [id, hook] : table_->hooks) all.push_back(hook);
    return all;
  }

 private:
  struct Table final : HookTable {
    void Erase(int64_t id) noexcept override { hooks.erase(id); }
    std::map<int64_t, Hook> hooks;
    int64_t next = 0;
  };

  std::shared_ptr<Table> table_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_HOOK_LIST_H_
