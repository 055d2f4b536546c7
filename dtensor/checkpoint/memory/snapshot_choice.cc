#include "dtensor/checkpoint/memory/snapshot_choice.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// A piece per source, the best; nothing, if one is missing or two differ.
std::optional<SnapshotChoice> WholeOf(const SnapshotKey& key, std::vector<HeldPiece> held) {
  const auto rank_of = [](const HeldPiece& piece) {
    return std::make_tuple(piece.stamp.source, piece.holder != piece.stamp.source, piece.holder,
                           piece.segment);
  };
  std::sort(held.begin(), held.end(),
            [&](const HeldPiece& a, const HeldPiece& b) { return rank_of(a) < rank_of(b); });
  SnapshotChoice choice = {.key = key, .pieces = {}};
  for (const HeldPiece& piece : held) {
    if (choice.pieces.empty() || choice.pieces.back().stamp.source != piece.stamp.source) {
      if (piece.stamp.source != std::ssize(choice.pieces)) return std::nullopt;
      choice.pieces.push_back(piece);
    } else if (choice.pieces.back().stamp.header_crc32c != piece.stamp.header_crc32c) {
      return std::nullopt;
    }
  }
  if (std::ssize(choice.pieces) != key.world) return std::nullopt;
  return choice;
}

}  // namespace

std::optional<SnapshotChoice> ChooseSnapshot(const std::vector<HeldPiece>& held,
                                             std::optional<int64_t> above) {
  std::map<SnapshotKey, std::vector<HeldPiece>> by_key;
  for (const HeldPiece& piece : held) by_key[piece.stamp.key].push_back(piece);
  for (auto newest = by_key.rbegin(); newest != by_key.rend(); ++newest) {
    if (above && newest->first.step <= *above) return std::nullopt;
    if (std::optional<SnapshotChoice> whole = WholeOf(newest->first, std::move(newest->second))) return whole;
  }
  return std::nullopt;
}

std::optional<SnapshotKey> NewestKey(const std::vector<HeldPiece>& held) {
  std::optional<SnapshotKey> newest;
  for (const HeldPiece& piece : held) {
    if (!newest || *newest < piece.stamp.key) newest = piece.stamp.key;
  }
  return newest;
}

std::string FormatHeld(const std::vector<HeldPiece>& held) {
  std::string text;
  for (const HeldPiece& piece : held) {
    absl::StrAppend(&text, piece.holder, " ", piece.segment, " ", piece.stamp.ToText(), "\n");
  }
  return text;
}

std::vector<HeldPiece> ParseHeld(absl::string_view text) {
  std::vector<HeldPiece> held;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    HeldPiece piece;
    const bool is_read = words.size() == 3 && absl::SimpleAtoi(words[0], &piece.holder) &&
                         absl::SimpleAtoi(words[1], &piece.segment);
    const std::optional<SnapshotStamp> stamp =
        is_read ? SnapshotStamp::FromText(words[2]) : std::optional<SnapshotStamp>();
    WEFT_CHECK(stamp.has_value(), "no held piece: '", line, "'");
    piece.stamp = *stamp;
    held.push_back(piece);
  }
  return held;
}

std::vector<BuddyCopy> BuddyCopies(const std::vector<int>& node_of_rank) {
  std::map<int, std::vector<int>> nodes;
  for (size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    nodes[node_of_rank[rank]].push_back(static_cast<int>(rank));
  }
  std::vector<BuddyCopy> copies;
  if (nodes.size() < 2) return copies;
  for (auto node = nodes.begin(); node != nodes.end(); ++node) {
    const auto next = std::next(node) == nodes.end() ? nodes.begin() : std::next(node);
    for (size_t i = 0; i < node->second.size(); ++i) {
      copies.push_back({.from = node->second[i],
                        .to = next->second[i % next->second.size()],
                        .slot = static_cast<int>(i)});
    }
  }
  std::sort(copies.begin(), copies.end(),
            [](const BuddyCopy& a, const BuddyCopy& b) { return a.from < b.from; });
  return copies;
}

}  // namespace weft
