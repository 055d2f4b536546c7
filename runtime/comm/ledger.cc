#include "runtime/comm/ledger.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "runtime/comm/flight_clock.h"

namespace weft {

struct Ledger::State {
  using Key = std::tuple<CollectiveKind, std::string, uint8_t, int32_t>;

  mutable std::mutex mutex;  // of the containers; the rows' words are atomic
  std::map<Key, Row> rows;
  std::vector<std::weak_ptr<Source>> sources;
  std::atomic<int64_t> num_begun = 0;  // rows that have a call
  std::mutex busy_mutex;               // of the rest
  int num_running = 0;
  int64_t busy_since_ns = 0;
  int64_t busy_ns = 0;
};

Ledger::Ledger() : state_(std::make_unique<State>()) {}
Ledger::~Ledger() = default;

void Ledger::Row::AddCall(int64_t num_bytes) {
  if (calls_.fetch_add(1, std::memory_order_relaxed) == 0) place_ = num_begun_->fetch_add(1);
  num_bytes_.fetch_add(num_bytes, std::memory_order_relaxed);
}

Ledger::Row* Ledger::RowOf(CollectiveKind kind, const std::string& group, const CommTag& tag) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto [row, is_new] = state_->rows.try_emplace({kind, group, tag.purpose, tag.path_id});
  if (is_new) row->second.num_begun_ = &state_->num_begun;
  return &row->second;
}

void Ledger::AddSource(std::weak_ptr<Source> source) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::erase_if(state_->sources, [](const std::weak_ptr<Source>& other) { return other.expired(); });
  state_->sources.push_back(std::move(source));
}

// Without the lock: a source may be let go of here, and waits for what it likes.
void Ledger::AskSources() const {
  std::vector<std::shared_ptr<Source>> sources;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    for (const std::weak_ptr<Source>& source : state_->sources) sources.push_back(source.lock());
  }
  for (const std::shared_ptr<Source>& source : sources) {
    if (source != nullptr) source->TellEnded();
  }
}

Ledger::Exposed Ledger::exposed() const {
  AskSources();
  return {.waiting_seconds = static_cast<double>(exposed_waiting_ns_) * 1e-9,
          .moving_seconds = static_cast<double>(exposed_moving_ns_) * 1e-9};
}

void Ledger::Begin(int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(state_->busy_mutex);
  if (state_->num_running++ == 0) state_->busy_since_ns = now_ns;
}

void Ledger::End(int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(state_->busy_mutex);
  if (--state_->num_running == 0) state_->busy_ns += std::max<int64_t>(0, now_ns - state_->busy_since_ns);
}

double Ledger::busy_seconds() const {
  const std::lock_guard<std::mutex> lock(state_->busy_mutex);
  const int64_t open_ns =
      state_->num_running > 0 ? std::max<int64_t>(0, FlightClock() - state_->busy_since_ns) : 0;
  return static_cast<double>(state_->busy_ns + open_ns) * 1e-9;
}

std::vector<LedgerEntry> Ledger::entries() const {
  AskSources();
  std::vector<std::pair<int64_t, const decltype(State::rows)::value_type*>> placed;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  placed.reserve(state_->rows.size());
  for (const auto& row : state_->rows) {
    if (row.second.calls_ != 0 || row.second.nanoseconds_ != 0) placed.push_back({row.second.place_, &row});
  }
  const auto is_before = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(placed.begin(), placed.end(), is_before);
  std::vector<LedgerEntry> entries;
  entries.reserve(placed.size());
  for (const auto& [place, entry] : placed) {
    const auto& [key, row] = *entry;
    const auto& [kind, group, purpose, path_id] = key;
    entries.push_back({.kind = kind,
                       .group = group,
                       .tag = {.purpose = purpose, .path_id = path_id},
                       .calls = row.calls_,
                       .num_bytes = row.num_bytes_,
                       .seconds = static_cast<double>(row.nanoseconds_) * 1e-9});
  }
  return entries;
}

int64_t Ledger::num_bytes() const {
  int64_t sum = 0;
  for (const LedgerEntry& entry : entries()) sum += entry.num_bytes;
  return sum;
}

double Ledger::seconds() const {
  double sum = 0;
  for (const LedgerEntry& entry : entries()) sum += entry.seconds;
  return sum;
}

void Ledger::Clear() {
  AskSources();
  const std::lock_guard<std::mutex> lock(state_->mutex);
  for (auto& [key, row] : state_->rows) {
    row.calls_ = 0;
    row.num_bytes_ = 0;
    row.nanoseconds_ = 0;
  }
  state_->num_begun = 0;
  exposed_waiting_ns_ = 0;
  exposed_moving_ns_ = 0;
  const std::lock_guard<std::mutex> busy_lock(state_->busy_mutex);
  state_->busy_ns = 0;
  state_->busy_since_ns = FlightClock();  // of what runs now, the rest counts
}

}  // namespace weft
