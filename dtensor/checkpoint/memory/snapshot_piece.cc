#include "dtensor/checkpoint/memory/snapshot_piece.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/memory/snapshot_files.h"
#include "nlohmann/json.hpp"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int64_t kCrcDigits = 8;

}  // namespace

std::string SnapshotKey::ToString() const {
  return absl::StrCat("step ", step, " of generation ", generation);
}

std::string SnapshotStamp::ToText() const {
  const Json json = {{"step", key.step},
                     {"generation", key.generation},
                     {"serial", key.serial},
                     {"world", key.world},
                     {"folder", key.folder},
                     {"source", source},
                     {"bytes", num_bytes},
                     {"header_bytes", header_bytes},
                     {"header_crc32c", header_crc32c},
                     {"manifest_bytes", manifest_bytes},
                     {"manifest_crc32c", manifest_crc32c}};
  const std::string text = json.dump();
  return absl::StrCat(CrcText(Crc32c(text)), text);
}

std::optional<SnapshotStamp> SnapshotStamp::FromText(absl::string_view text) {
  if (std::ssize(text) <= kCrcDigits) return std::nullopt;
  const absl::string_view body = text.substr(kCrcDigits);
  if (ParseCrc32(text.substr(0, kCrcDigits)) != Crc32c(body)) return std::nullopt;
  try {
    const Json json = Json::parse(body.begin(), body.end());
    SnapshotStamp stamp = {.key = {.step = json.at("step"),
                                   .generation = json.at("generation"),
                                   .serial = json.at("serial"),
                                   .world = json.at("world"),
                                   .folder = json.at("folder")},
                           .source = json.at("source"),
                           .num_bytes = json.at("bytes"),
                           .header_bytes = json.at("header_bytes"),
                           .header_crc32c = json.at("header_crc32c"),
                           .manifest_bytes = json.at("manifest_bytes"),
                           .manifest_crc32c = json.at("manifest_crc32c")};
    const bool fits =
        stamp.key.world > 0 && stamp.source >= 0 && stamp.source < stamp.key.world &&
        std::min({stamp.key.step, stamp.num_bytes, stamp.header_bytes, stamp.manifest_bytes}) >= 0;
    return fits ? std::optional<SnapshotStamp>(stamp) : std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::vector<PieceToSave> PiecesOwnedBy(const Manifest& manifest, int rank) {
  std::vector<PieceToSave> pieces;
  for (const auto& [name, place] : manifest.tensors) {
    const std::optional<ShardBox> box = BoxOwnedBy(place, rank);
    if (!box) continue;
    PieceToSave& piece = pieces.emplace_back();
    piece.name = name;
    piece.record.dtype = place.type.dtype;
    piece.record.box = *box;
  }
  return pieces;
}

int64_t NumBytes(const std::vector<PieceToSave>& pieces) {
  int64_t total = 0;
  for (const PieceToSave& piece : pieces) total += piece.record.num_bytes();
  return total;
}

void BeginPiece(MemorySegment& segment, int64_t num_bytes) {
  const std::string nothing(kSnapshotElements, '\0');
  segment.Write(0, nothing.data(), std::ssize(nothing));
  segment.Resize(kSnapshotElements + num_bytes);
}

SnapshotStamp EndPiece(MemorySegment& segment, const Tensor& elements, std::vector<PieceToSave> pieces,
                       const Manifest& manifest, const SnapshotKey& key, int source) {
  const char* next = static_cast<const char*>(elements.data());
  for (PieceToSave& piece : pieces) {
    piece.record.crc32c = Crc32c(next, piece.record.num_bytes());
    next += piece.record.num_bytes();
  }
  const std::string header =
      FormatPieceHeader(segment.path(), pieces, {.step = key.step, .rank = source, .world = key.world});
  const std::string text = source == 0 ? FormatManifest(manifest) : "";
  const SnapshotStamp stamp = {.key = key,
                               .source = source,
                               .num_bytes = elements.num_bytes(),
                               .header_bytes = std::ssize(header),
                               .header_crc32c = Crc32c(header),
                               .manifest_bytes = std::ssize(text),
                               .manifest_crc32c = Crc32c(text)};
  const int64_t end = kSnapshotElements + stamp.num_bytes;
  segment.Write(end, header.data(), stamp.header_bytes);
  segment.Write(end + stamp.header_bytes, text.data(), stamp.manifest_bytes);
  // Last: whoever finds a stamp finds a whole piece.
  const std::string line = stamp.ToText();
  WEFT_CHECK(std::ssize(line) < kSnapshotTries, line);
  segment.Write(0, line.data(), std::ssize(line));
  return stamp;
}

std::optional<SnapshotStamp> ReadStamp(const MemorySegment& segment) {
  if (segment.num_bytes() < kSnapshotElements) return std::nullopt;
  std::string page(kSnapshotElements, '\0');
  segment.Read(0, page.data(), kSnapshotElements);
  page.resize(std::min(page.find('\0'), page.size()));
  return SnapshotStamp::FromText(page);
}

std::string ReadSnapshotManifest(const MemorySegment& segment, const SnapshotStamp& stamp) {
  std::string text(static_cast<size_t>(stamp.manifest_bytes), '\0');
  segment.Read(kSnapshotElements + stamp.num_bytes + stamp.header_bytes, text.data(), stamp.manifest_bytes);
  return text;
}

std::string CheckPieceBytes(const std::string& path, const Tensor& bytes, const SnapshotStamp& stamp) {
  try {
    const std::unique_ptr<FileReader> file = MakePieceReader(path, bytes, stamp.header_bytes);
    uint32_t crc = 0;
    const PieceTable table = ReadPieceTable(*file, &crc);
    if (crc != stamp.header_crc32c) return "its head has another checksum";
    for (const auto& [name, record] : table) {
      const char* const elements =
          static_cast<const char*>(bytes.data()) + record.offset - stamp.header_bytes;
      if (Crc32c(elements, record.num_bytes()) != record.crc32c) {
        return absl::StrCat("the elements of '", name, "' have another checksum");
      }
    }
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

std::string CheckPiece(const MemorySegment& segment, const SnapshotStamp& stamp) {
  try {
    const Tensor bytes = segment.Map(kSnapshotElements, stamp.num_bytes + stamp.header_bytes);
    std::string problem = CheckPieceBytes(segment.path(), bytes, stamp);
    if (!problem.empty()) return problem;
    if (Crc32c(ReadSnapshotManifest(segment, stamp)) != stamp.manifest_crc32c) {
      return "its manifest has another checksum";
    }
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

int TriesOf(const MemorySegment& segment) {
  unsigned char tries = 0;
  segment.Read(kSnapshotTries, &tries, 1);
  return tries;
}

void SetTries(MemorySegment& segment, int tries) {
  const auto byte = static_cast<unsigned char>(std::min(tries, 255));
  segment.Write(kSnapshotTries, &byte, 1);
}

}  // namespace weft
