#include "runtime/comm/ledger.h"

#include <mutex>
#include <utility>

namespace weft {

struct Ledger::State {
  mutable std::mutex mutex;
  std::vector<LedgerEntry> entries;
};

Ledger::Ledger() : state_(std::make_unique<State>()) {}
Ledger::~Ledger() = default;

void Ledger::Record(LedgerEntry entry) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->entries.push_back(std::move(entry));
}

std::vector<LedgerEntry> Ledger::entries() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->entries;
}

int64_t Ledger::num_bytes() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  int64_t sum = 0;
  for (const LedgerEntry& entry : state_->entries) sum += entry.num_bytes;
  return sum;
}

double Ledger::seconds() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  double sum = 0;
  for (const LedgerEntry& entry : state_->entries) sum += entry.seconds;
  return sum;
}

void Ledger::Clear() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->entries.clear();
}

}  // namespace weft
