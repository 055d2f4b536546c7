#include "runtime/comm/issue_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Entries = std::vector<IssueLog::Entry>;

bool Holds(const IssueLog::Entry& entry, int rank) {
  return std::find(entry.ranks.begin(), entry.ranks.end(), rank) != entry.ranks.end();
}

// FNV-1a.
uint64_t Mix(uint64_t hash, absl::string_view text) {
  for (const char letter : text) hash = (hash ^ static_cast<uint8_t>(letter)) * 1099511628211u;
  return (hash ^ 0xff) * 1099511628211u;  // between texts
}

Entries SharedWith(const Entries& entries, int peer) {
  Entries shared;
  for (const IssueLog::Entry& entry : entries) {
    if (Holds(entry, peer)) shared.push_back(entry);
  }
  return shared;
}

}  // namespace

void IssueLog::Add(Entry entry) {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.push_back(std::move(entry));
}

void IssueLog::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.clear();
}

Entries IssueLog::entries() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_;
}

std::vector<uint64_t> IssueLog::HashesByPeer(int world_size) const {
  std::vector<uint64_t> hashes(world_size, 14695981039346656037u);
  for (const Entry& entry : entries()) {
    for (const int rank : entry.ranks) hashes[rank] = Mix(Mix(hashes[rank], entry.group), entry.call);
  }
  return hashes;
}

std::string IssueLog::Encode() const {
  nlohmann::json json = nlohmann::json::array();
  for (const Entry& entry : entries()) json.push_back({entry.group, entry.ranks, entry.call});
  return json.dump();
}

Entries IssueLog::Decode(absl::string_view bytes) {
  try {
    Entries entries;
    for (const nlohmann::json& item : nlohmann::json::parse(bytes.begin(), bytes.end())) {
      entries.push_back(
          {item.at(0).get<std::string>(), item.at(1).get<std::vector<int>>(), item.at(2).get<std::string>()});
    }
    return entries;
  } catch (const nlohmann::json::exception& error) {
    ThrowInvalidArgument("not a log of issues: ", error.what());
  }
}

std::optional<std::string> FirstDifference(absl::Span<const Entries> by_rank) {
  const int size = static_cast<int>(by_rank.size());
  std::vector<std::vector<int>> others(size);  // by rank: those that it disagrees with
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      if (a != b && SharedWith(by_rank[a], b) != SharedWith(by_rank[b], a)) others[a].push_back(b);
    }
  }
  int rank = 0;
  for (int other = 1; other < size; ++other) {
    // Of two that only disagree with each other the later one: rank 0 is what one compares with.
    if (!others[other].empty() && others[other].size() >= others[rank].size()) rank = other;
  }
  if (size == 0 || others[rank].empty()) return std::nullopt;
  const int peer = others[rank][0];
  const Entries mine = SharedWith(by_rank[rank], peer);
  const Entries theirs = SharedWith(by_rank[peer], rank);
  const size_t at = static_cast<size_t>(
      std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end()).first - mine.begin());
  const auto call = [at](const Entries& entries) {
    return at < entries.size() ? entries[at].call : std::string("nothing");
  };
  return absl::StrCat("rank ", rank, " issued ", call(mine), " as collective ", at + 1,
                      " of those that it shares with rank ", peer, ", which issued ", call(theirs));
}

}  // namespace weft
