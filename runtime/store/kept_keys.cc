#include "runtime/store/kept_keys.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"
#include "runtime/base/random_id.h"
#include "runtime/store/store_rules.h"

namespace weft {
namespace {

using tcp_store::JournalRecord;
using tcp_store::KnownClient;

// Nobody asks again after so long.
constexpr std::chrono::minutes kForgetAfter{10};

void SetEntry(const std::string& key, const std::string& value, tcp_store::Entry* entry) {
  entry->set_key(key);
  entry->set_value(value);
}

KeptKeysOptions WithGraceOfAClock(KeptKeysOptions options) {
  options.grace = ClampTimeout(options.grace);
  return options;
}

}  // namespace

KeptKeys::KeptKeys(const KeptKeysOptions& options) : options_(WithGraceOfAClock(options)) {
  // All that was acknowledged is taken, without the cap: on the way a last will counts twice, as one and as the key that it
  // became; and the cap may have been higher.
  if (options_.journal.has_value()) {
    journal_ = std::make_unique<StoreJournal>(*options_.journal,
                                              [this](absl::string_view record) { Replay(record); });
  }
  space_.set_max_bytes(options_.max_bytes);
  if (!id_.empty()) {
    Compact();
    return;
  }
  id_ = RandomId();
  JournalRecord first;
  first.set_store(id_);
  Keep(first);
}

void KeptKeys::Set(const StoreCall& call, const std::string& key, const std::string& value) {
  RequireKey(key);
  RequireValue(key, value);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Known(call) == nullptr) Write(call, key, value);
}

int64_t KeptKeys::Add(const StoreCall& call, const std::string& key, int64_t amount) {
  RequireKey(key);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const KeySpace::Value* const known = Known(call)) return SumOf(key, **known, 0);
  const KeySpace::Value held = space_.TryGet(key);
  const int64_t sum = SumOf(key, held == nullptr ? "0" : absl::string_view(*held), amount);
  Write(call, key, absl::StrCat(sum));
  return sum;
}

std::string KeptKeys::CompareSet(const StoreCall& call, const std::string& key, const std::string& expected,
                                 const std::string& desired) {
  RequireKey(key);
  RequireValue(key, expected);
  RequireValue(key, desired);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const KeySpace::Value* const known = Known(call)) return **known;
  const KeySpace::Value held = space_.TryGet(key);
  if (held == nullptr && !expected.empty()) return expected;
  if (held != nullptr && *held != expected) return *held;
  Write(call, key, desired);
  return desired;
}

bool KeptKeys::Delete(const StoreCall& call, const std::string& key) {
  RequireKey(key);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Known(call) != nullptr) return true;
  const KeySpace::Value held = space_.TryGet(key);
  if (held == nullptr) return false;
  JournalRecord record;
  SetCaller(call, &record);
  record.mutable_erased()->set_key(key);
  Keep(record);
  space_.Delete(key);
  Remember(call, held);
  return true;
}

uint64_t KeptKeys::Attach(const std::string& client) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Client& known = clients_[client];
  if (known.is_dead) {
    Throw(absl::StatusCode::kAborted, "counts this client as dead: it was away for too long");
  }
  known.stream = ++num_streams_;
  known.said_farewell = false;
  return known.stream;
}

void KeptKeys::LeaveWill(const std::string& client, const std::string& key, const std::string& value) {
  RequireKey(key);
  RequireValue(key, value);
  const std::lock_guard<std::mutex> lock(mutex_);
  Client& known = clients_[client];
  Client changed = known;
  space_.Reserve(KeySpace::BytesOf(key, value));
  int64_t replaced = 0;
  std::erase_if(changed.wills, [&](const Will& will) {
    if (will.key == key) replaced = KeySpace::BytesOf(will.key, will.value);
    return will.key == key;
  });
  changed.wills.push_back({.key = key, .value = value});
  changed.said_farewell = false;
  changed.owes_farewell = false;
  try {
    Keep(RecordOf(client, changed));
  } catch (...) {
    space_.Reserve(-KeySpace::BytesOf(key, value));
    throw;
  }
  space_.Reserve(-replaced);
  known = std::move(changed);
}

void KeptKeys::Farewell(const std::string& client) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Client& known = clients_[client];
  known.said_farewell = true;
  for (const Will& will : known.wills) space_.Reserve(-KeySpace::BytesOf(will.key, will.value));
  known.owes_farewell |= !known.wills.empty();
  known.wills.clear();
  if (!known.owes_farewell) return;
  Keep(RecordOf(client, known));
  known.owes_farewell = false;
}

void KeptKeys::Detach(const std::string& client, uint64_t stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = clients_.find(client);
  if (found == clients_.end() || found->second.stream != stream) return;
  Client& known = found->second;
  known.stream = 0;
  known.away_since = Clock::now();
  if (!known.wills.empty()) SetWills(client, known);
  if (journal_ == nullptr || (known.said_farewell && KeepForgotten(client))) clients_.erase(found);
}

// False: the disk is full.
bool KeptKeys::KeepForgotten(const std::string& client) noexcept {
  try {
    JournalRecord record;
    record.mutable_forgotten()->set_key(client);
    Keep(record);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void KeptKeys::Expire(Clock::time_point now) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = clients_.begin(); at != clients_.end();) {
    auto& [id, client] = *at;
    const auto away = client.stream != 0 ? Clock::duration::zero() : now - client.away_since;
    if (away >= options_.grace && client.stream == 0 && !client.wills.empty()) SetWills(id, client);
    // One that said farewell is still here if the disk was full then.
    const bool is_over =
        away >= options_.grace + kForgetAfter || (client.stream == 0 && client.said_farewell);
    at = is_over && KeepForgotten(id) ? clients_.erase(at) : std::next(at);
  }
}

const KeySpace::Value* KeptKeys::Known(const StoreCall& call) {
  if (journal_ == nullptr || call.client.empty()) return nullptr;
  const auto found = clients_.find(call.client);
  if (found == clients_.end()) return nullptr;
  const Client& client = found->second;
  if (client.is_dead) {
    Throw(absl::StatusCode::kAborted, "counts this client as dead: it was away for too long");
  }
  if (const auto answer = client.answers.find(call.number); answer != client.answers.end()) {
    return &answer->second;
  }
  // It went round by an old connection, and its client has long had the answer by a new one.
  if (call.number < client.answered) Throw(absl::StatusCode::kAborted, "has answered this call already");
  return nullptr;
}

void KeptKeys::Write(const StoreCall& call, const std::string& key, const std::string& value) {
  space_.RequireRoomFor(key, value);
  JournalRecord record;
  SetCaller(call, &record);
  SetEntry(key, value, record.mutable_set());
  Keep(record);
  space_.Set(key, value);
  Remember(call, space_.TryGet(key));
}

void KeptKeys::Remember(const StoreCall& call, KeySpace::Value answer) {
  if (!options_.journal.has_value() || call.client.empty()) return;
  Client& client = clients_[call.client];
  client.answered = std::max(client.answered, call.answered);
  client.answers.erase(client.answers.begin(), client.answers.lower_bound(client.answered));
  client.answers.emplace(call.number, std::move(answer));
}

void KeptKeys::SetCaller(const StoreCall& call, JournalRecord* record) {
  if (call.client.empty()) return;
  record->mutable_caller()->set_client(call.client);
  record->mutable_caller()->set_number(call.number);
  record->mutable_caller()->set_answered(call.answered);
}

void KeptKeys::Keep(const JournalRecord& record) {
  if (journal_ == nullptr) return;
  // Before this record: it is not applied yet.
  const int64_t num_bytes = journal_->num_bytes();
  if (num_bytes > std::max(options_.compact_bytes, 4 * space_.num_bytes()) &&
      num_bytes > 2 * compacted_bytes_) {
    Compact();
  }
  journal_->Append(record.SerializeAsString());
}

JournalRecord KeptKeys::RecordOf(const std::string& id, const Client& client) {
  JournalRecord record;
  KnownClient* const known = record.mutable_client();
  known->set_id(id);
  known->set_is_dead(client.is_dead);
  known->set_answered(client.answered);
  for (const Will& will : client.wills) SetEntry(will.key, will.value, known->add_wills());
  for (const auto& [number, value] : client.answers) {
    tcp_store::Answer* const answer = known->add_answers();
    answer->set_number(number);
    answer->set_value(*value);
  }
  return record;
}

void KeptKeys::SetWills(const std::string& id, Client& client) {
  // The client keeps them until they are keys: what writes the journal anew in between writes them, too.
  for (const Will& will : client.wills) {
    try {
      JournalRecord record;
      SetEntry(will.key, will.value, record.mutable_set());
      Keep(record);
    } catch (const std::exception&) {
      // Those who wait for it hear of it all the same.
    }
    space_.Set(will.key, will.value, KeySpace::BytesOf(will.key, will.value));
  }
  client.wills.clear();
  client.is_dead = true;
  try {
    Keep(RecordOf(id, client));
  } catch (const std::exception&) {
    // It is dead as long as this process lives.
  }
}

void KeptKeys::Compact() {
  if (journal_->num_bytes() <= options_.compact_bytes) return;
  try {
    journal_->Rewrite([this](const StoreJournal::Emit& emit) {
      JournalRecord first;
      first.set_store(id_);
      emit(first.SerializeAsString());
      space_.ForEach([&](const std::string& key, const KeySpace::Value& value) {
        JournalRecord record;
        SetEntry(key, *value, record.mutable_set());
        emit(record.SerializeAsString());
      });
      for (const auto& [id, client] : clients_) {
        emit(RecordOf(id, client).SerializeAsString());
      }
    });
  } catch (const Error&) {
    // The old one goes on, and the next attempt comes when it has doubled.
  }
  compacted_bytes_ = journal_->num_bytes();
}

void KeptKeys::Replay(absl::string_view bytes) {
  JournalRecord record;
  if (!record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    Throw(absl::StatusCode::kDataLoss, "the store's journal in ", options_.journal->folder,
          " has a record of another kind: was it written by another version?");
  }
  if (!record.store().empty()) id_ = record.store();
  const StoreCall call = {.client = record.caller().client(),
                          .number = record.caller().number(),
                          .answered = record.caller().answered()};
  if (record.has_set()) {
    space_.Set(record.set().key(), record.set().value());
    Remember(call, space_.TryGet(record.set().key()));
  }
  if (record.has_erased()) {
    Remember(call, std::make_shared<const std::string>());
    space_.Delete(record.erased().key());
  }
  if (record.has_client()) ReplayClient(record.client());
  if (!record.has_forgotten()) return;
  KnownClient nothing;
  nothing.set_id(record.forgotten().key());
  ReplayClient(nothing);
  clients_.erase(nothing.id());
}

void KeptKeys::ReplayClient(const KnownClient& known) {
  Client& client = clients_[known.id()];
  for (const Will& will : client.wills) space_.Reserve(-KeySpace::BytesOf(will.key, will.value));
  client = Client{.is_dead = known.is_dead(), .answered = known.answered()};
  for (const tcp_store::Entry& will : known.wills()) {
    space_.Reserve(KeySpace::BytesOf(will.key(), will.value()));
    client.wills.push_back({.key = will.key(), .value = will.value()});
  }
  for (const tcp_store::Answer& answer : known.answers()) {
    client.answers[answer.number()] = std::make_shared<const std::string>(answer.value());
  }
}

}  // namespace weft
