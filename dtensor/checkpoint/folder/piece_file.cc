#include "dtensor/checkpoint/folder/piece_file.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/safetensors_header.h"
#include "nlohmann/json.hpp"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr char kPieces[] = "weft.pieces";
constexpr int64_t kPart = 4 << 20;  // written at once: a write that is given up ends behind one

template <class... Parts>
[[noreturn]] void ThrowBroken(const std::string& path, const Parts&... parts) {
  Throw(absl::StatusCode::kDataLoss, "'", path, "' is not a whole file of a checkpoint: ", parts...);
}

std::vector<int64_t> Extents(const Shape& shape) { return {shape.begin(), shape.end()}; }

Json ToJson(const PieceRecord& record) {
  Json json = {{"dtype", SafetensorsDType(record.dtype)},
               {"of", Extents(record.box.global_shape)},
               {"offset", Extents(record.box.offset)},
               {"shape", Extents(record.box.shape)},
               {"crc32c", CrcText(record.crc32c)}};
  if (record.crc64) json["crc64"] = CrcText(*record.crc64);
  if (record.at) {
    json["at"] = {{"step", record.at->step}, {"file", record.at->file}, {"offset", record.at->offset}};
  }
  return json;
}

PieceRecord RecordOf(const std::string& path, const Json& json) {
  PieceRecord record;
  record.dtype = ParseSafetensorsDType(path, json.at("dtype").get<std::string>());
  const auto of = json.at("of").get<std::vector<int64_t>>();
  const auto offset = json.at("offset").get<std::vector<int64_t>>();
  const auto shape = json.at("shape").get<std::vector<int64_t>>();
  CheckedNumBytes(path, record.dtype, of);
  CheckedNumBytes(path, record.dtype, shape);
  bool fits = of.size() == offset.size() && of.size() == shape.size();
  for (size_t dim = 0; fits && dim < of.size(); ++dim) {
    fits = offset[dim] >= 0 && offset[dim] <= of[dim] && shape[dim] <= of[dim] - offset[dim];
  }
  if (!fits) ThrowBroken(path, "a box does not lie in its tensor");
  record.box = {Shape(of), Shape(offset), Shape(shape)};
  const std::optional<uint32_t> crc = ParseCrc32(json.at("crc32c").get<std::string>());
  if (!crc) ThrowBroken(path, "a checksum is not 8 hexadecimal digits");
  record.crc32c = *crc;
  if (json.contains("crc64")) record.crc64 = ParseCrc64(json["crc64"].get<std::string>());
  if (json.contains("at")) {
    const Json& at = json["at"];
    record.at = {at.at("step").get<int64_t>(), at.at("file").get<std::string>(),
                 at.at("offset").get<int64_t>()};
    if (record.at->step < 0 || record.at->offset < 0 || record.at->file.find('/') != std::string::npos) {
      ThrowBroken(path, "a reference to another step is out of range");
    }
  }
  return record;
}

void RequireGoesOn(const std::string& path, const std::stop_token& stop) {
  if (stop.stop_requested()) Throw(absl::StatusCode::kAborted, "writing '", path, "' was given up");
}

// Writes at most so many bytes per second, until it is to hurry or to stop.
class LimitedWriter {
 public:
  LimitedWriter(FileWriter& file, const std::string& path, const PieceFileOptions& options)
      : file_(file),
        path_(path),
        options_(options),
        begun_(std::chrono::steady_clock::now()),
        on_hurry_(options.hurry, [this] { Wake(); }) {}

  void Write(const void* data, int64_t num_bytes) {
    const char* next = static_cast<const char*>(data);
    for (int64_t left = num_bytes; left > 0;) {
      const int64_t part = std::min(left, kPart);
      RequireGoesOn(path_, options_.stop);
      WriteAll(file_, next, part);
      next += part;
      left -= part;
      written_ += part;
      if (options_.bytes_per_second > 0) AwaitTurn();
    }
  }

 private:
  void AwaitTurn() {
    const std::chrono::duration<double> due(static_cast<double>(written_) / options_.bytes_per_second);
    std::unique_lock lock(mutex_);
    wake_.wait_until(lock, options_.stop, begun_ + std::chrono::duration_cast<std::chrono::nanoseconds>(due),
                     [this] { return options_.hurry.stop_requested(); });
  }

  void Wake() {
    { const std::lock_guard lock(mutex_); }  // whoever has found no hurry waits by now
    wake_.notify_all();
  }

  FileWriter& file_;
  const std::string& path_;
  const PieceFileOptions& options_;
  const std::chrono::steady_clock::time_point begun_;
  std::mutex mutex_;
  std::condition_variable_any wake_;  // by options_.stop, and by Wake
  int64_t written_ = 0;
  const std::stop_callback<std::function<void()>> on_hurry_;  // last: it may wake at once
};

}  // namespace

std::string FormatPieceHeader(const std::string& path, const std::vector<PieceToSave>& pieces,
                              const PieceFileOptions& options) {
  std::vector<SafetensorsEntry> entries;
  Json records = Json::object();
  for (const PieceToSave& piece : pieces) {
    if (!piece.record.at) entries.push_back({piece.name, {piece.record.dtype, piece.record.box.shape}});
    records[piece.name] = ToJson(piece.record);
  }
  return FormatSafetensorsHeader(path, entries,
                                 {{"weft.step", absl::StrCat(options.step)},
                                  {"weft.rank", absl::StrCat(options.rank)},
                                  {"weft.world", absl::StrCat(options.world)},
                                  {kPieces, records.dump()}});
}

WrittenPieces WritePieces(Files& files, const std::string& path, const std::vector<PieceToSave>& pieces,
                          const PieceFileOptions& options) {
  std::vector<PieceToSave> summed = pieces;
  for (PieceToSave& piece : summed) {
    PieceRecord& record = piece.record;
    if (record.at) continue;
    RequireGoesOn(path, options.stop);
    WEFT_CHECK(piece.elements.IsContiguous() && piece.elements.num_bytes() == record.num_bytes(), piece.name);
    record.crc32c = Crc32c(piece.elements.data(), record.num_bytes());
    if (options.with_crc64) record.crc64 = Crc64(piece.elements.data(), record.num_bytes());
  }
  const std::string header = FormatPieceHeader(path, summed, options);
  WrittenPieces written;
  written.header_crc32c = Crc32c(header);
  for (const PieceToSave& piece : summed) written.table.emplace(piece.name, piece.record);
  const std::unique_ptr<FileWriter> file = files.Create(path);
  LimitedWriter limited(*file, path, options);
  limited.Write(header.data(), std::ssize(header));
  written.num_bytes = std::ssize(header);
  for (const PieceToSave& piece : summed) {
    if (piece.record.at) continue;
    written.table[piece.name].offset = written.num_bytes;
    limited.Write(piece.elements.data(), piece.elements.num_bytes());
    written.num_bytes += piece.elements.num_bytes();
  }
  RequireGoesOn(path, options.stop);
  file->Sync();
  file->Close();
  return written;
}

PieceTable ReadPieceTable(FileReader& file, uint32_t* header_crc32c) {
  const std::string& path = file.path();
  const SafetensorsHeader header = ReadSafetensorsHeader(file, header_crc32c);
  const auto text = header.metadata.find(kPieces);
  if (text == header.metadata.end()) ThrowBroken(path, "its header has no '", kPieces, "'");
  const Json records = Json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  if (records.is_discarded() || !records.is_object()) ThrowBroken(path, "'", kPieces, "' is no JSON object");
  PieceTable table;
  size_t num_here = 0;
  try {
    for (const auto& [name, json] : records.items()) {
      PieceRecord record = RecordOf(path, json);
      if (!record.at) {
        const int entry = header.Find(name);
        const TensorType type = {record.dtype, record.box.shape};
        if (entry < 0 || header.entries[entry].type != type) {
          ThrowBroken(path, "the piece of '", name, "' is not among its tensors, or of another type");
        }
        record.offset = header.data_offset + header.ranges[entry].begin;
        ++num_here;
      }
      table[name] = std::move(record);
    }
  } catch (const Json::exception& error) {
    ThrowBroken(path, "a piece lacks a field or has one of the wrong type: ", error.what());
  }
  if (num_here != header.entries.size() + header.skipped.size()) {
    ThrowBroken(path, "it has tensors that '", kPieces, "' does not list");
  }
  return table;
}

}  // namespace weft
