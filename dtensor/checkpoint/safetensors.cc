#include "dtensor/checkpoint/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using Json = nlohmann::ordered_json;

// A header is some hundred bytes per tensor; more than this is not a header.
constexpr int64_t kMaxHeaderBytes = int64_t{100} << 20;

struct DTypeText {
  DType dtype;
  const char* text;
};
constexpr std::array<DTypeText, 8> kDTypeTexts = {{{DType::kF32, "F32"},
                                                   {DType::kF64, "F64"},
                                                   {DType::kBF16, "BF16"},
                                                   {DType::kF16, "F16"},
                                                   {DType::kI32, "I32"},
                                                   {DType::kI64, "I64"},
                                                   {DType::kU8, "U8"},
                                                   {DType::kBool, "BOOL"}}};

const char* TextOf(DType dtype) {
  return std::find_if(kDTypeTexts.begin(), kDTypeTexts.end(),
                      [&](const DTypeText& t) { return t.dtype == dtype; })
      ->text;
}

int64_t NumBytes(const TensorType& type) { return type.shape.num_elements() * ItemSize(type.dtype); }

template <class... Parts>
[[noreturn]] void ThrowBroken(const std::string& path, const Parts&... parts) {
  Throw(absl::StatusCode::kDataLoss, "'", path, "' is not a whole safetensors file: ", parts...);
}

// Flushes to disk which names stand in the folder of `path`; false, with errno set, if that fails.
bool FlushFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return false;
  // EINVAL: a file system that flushes no folders, and so has nothing to promise.
  const int error = fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  close(descriptor);
  errno = error;
  return error == 0;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, const std::vector<SafetensorsEntry>& entries,
                                     const SafetensorsMetadata& metadata)
    : path_(std::move(path)),
      entries_(entries),
      file_(nullptr, CloseAndRemove{absl::StrCat(path_, ".tmp.", getpid())}) {
  file_.reset(std::fopen(file_.get_deleter().path.c_str(), "wb"));
  WEFT_REQUIRE(file_ != nullptr, "cannot write '", path_, "': ", std::strerror(errno));
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const SafetensorsEntry& entry : entries_) {
    WEFT_REQUIRE(!header.contains(entry.name), "checkpoint '", path_, "': tensor '", entry.name,
                 "' stands twice");
    const int64_t end = offset + NumBytes(entry.type);
    header[entry.name] = {{"dtype", TextOf(entry.type.dtype)},
                          {"shape", std::vector<int64_t>(entry.type.shape.begin(), entry.type.shape.end())},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // elements start aligned
  const uint64_t length = text.size();
  WriteBytes(&length, sizeof(length));
  WriteBytes(text.data(), static_cast<int64_t>(text.size()));
}

void SafetensorsWriter::CloseAndRemove::operator()(std::FILE* file) const {
  std::fclose(file);
  std::remove(path.c_str());
}

void SafetensorsWriter::ThrowCannotWrite() const {
  Throw(absl::StatusCode::kResourceExhausted, "cannot write '", path_, "': ", std::strerror(errno));
}

void SafetensorsWriter::WriteBytes(const void* data, int64_t num_bytes) {
  if (std::fwrite(data, 1, static_cast<size_t>(num_bytes), file_.get()) == static_cast<size_t>(num_bytes))
    return;
  ThrowCannotWrite();
}

void SafetensorsWriter::Write(const Tensor& tensor) {
  WEFT_REQUIRE(next_ < entries_.size(), "checkpoint '", path_, "': all ", entries_.size(),
               " tensors are written");
  const SafetensorsEntry& entry = entries_[next_];
  WEFT_REQUIRE(tensor.dtype() == entry.type.dtype && tensor.shape() == entry.type.shape, "checkpoint '",
               path_, "': tensor '", entry.name, "' is ", entry.type.ToString(), ", got ",
               tensor.TypeString());
  const Tensor whole = OnHost(tensor);
  WriteBytes(whole.data(), whole.num_bytes());
  ++next_;
}

void SafetensorsWriter::Finish() {
  WEFT_REQUIRE(next_ == entries_.size(), "checkpoint '", path_, "': ", entries_.size() - next_,
               " tensors are not written yet, the first is '", entries_[next_].name, "'");
  const bool flushed = std::fflush(file_.get()) == 0 && fsync(fileno(file_.get())) == 0;
  if (!flushed || std::rename(file_.get_deleter().path.c_str(), path_.c_str()) != 0) ThrowCannotWrite();
  std::fclose(file_.release());
  if (!FlushFolderOf(path_)) ThrowCannotWrite();
}

SafetensorsReader::SafetensorsReader(const std::string& path)
    : path_(path), file_(std::fopen(path.c_str(), "rb"), &std::fclose) {
  if (file_ == nullptr) {
    Throw(absl::StatusCode::kNotFound, "cannot read '", path, "': ", std::strerror(errno));
  }
  std::fseek(file_.get(), 0, SEEK_END);
  const int64_t file_bytes = std::ftell(file_.get());
  uint64_t length = 0;
  if (file_bytes < 8) ThrowBroken(path, "it has ", file_bytes, " bytes, the shortest has 10");
  ReadBytes(0, &length, sizeof(length));
  if (length > static_cast<uint64_t>(std::min(kMaxHeaderBytes, file_bytes - 8))) {
    ThrowBroken(path, "its header would be ", length, " bytes long; the file has ", file_bytes);
  }
  std::string header(length, '\0');
  ReadBytes(8, header.data(), static_cast<int64_t>(length));
  data_offset_ = 8 + static_cast<int64_t>(length);
  ParseHeader(header, file_bytes - data_offset_);
}

void SafetensorsReader::ParseHeader(const std::string& text, int64_t data_bytes) {
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) ThrowBroken(path_, "its header is not a JSON object");
  struct Item {
    SafetensorsEntry entry;
    Range range;
  };
  std::vector<Item> items;
  try {
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        metadata_ = value.get<SafetensorsMetadata>();
        continue;
      }
      const std::string dtype = value.at("dtype").get<std::string>();
      const auto known = std::find_if(kDTypeTexts.begin(), kDTypeTexts.end(),
                                      [&](const DTypeText& candidate) { return candidate.text == dtype; });
      if (known == kDTypeTexts.end()) ThrowBroken(path_, "tensor '", name, "' has the unknown dtype ", dtype);
      const TensorType type = {known->dtype, Shape(value.at("shape").get<std::vector<int64_t>>())};
      const auto offsets = value.at("data_offsets").get<std::array<int64_t, 2>>();
      items.push_back({{name, type}, {offsets[0], offsets[1]}});
    }
  } catch (const Json::exception& error) {
    ThrowBroken(path_, "its header lacks a field or has one of the wrong type: ", error.what());
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  int64_t expected = 0;
  for (const Item& item : items) {
    const bool negative = std::any_of(item.entry.type.shape.begin(), item.entry.type.shape.end(),
                                      [](int64_t extent) { return extent < 0; });
    if (negative || item.range.begin != expected ||
        item.range.end - item.range.begin != NumBytes(item.entry.type)) {
      ThrowBroken(path_, "tensor '", item.entry.name, "', ", item.entry.type.ToString(),
                  ", cannot lie in bytes ", item.range.begin, " to ", item.range.end,
                  " (expected to start at ", expected, ")");
    }
    expected = item.range.end;
    entries_.push_back(item.entry);
    ranges_.push_back(item.range);
  }
  if (expected != data_bytes)
    ThrowBroken(path_, "its tensors take ", expected, " bytes, it has ", data_bytes);
}

void SafetensorsReader::ReadBytes(int64_t offset, void* data, int64_t num_bytes) {
  const bool read =
      std::fseek(file_.get(), offset, SEEK_SET) == 0 &&
      std::fread(data, 1, static_cast<size_t>(num_bytes), file_.get()) == static_cast<size_t>(num_bytes);
  if (!read) ThrowBroken(path_, "reading ", num_bytes, " bytes at ", offset, " failed");
}

const TensorType* SafetensorsReader::Find(absl::string_view name) const {
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.name == name) return &entry.type;
  }
  return nullptr;
}

Tensor SafetensorsReader::Read(absl::string_view name, const ShardBox& box,
                               const std::shared_ptr<Allocator>& allocator) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const SafetensorsEntry& candidate) { return candidate.name == name; });
  if (entry == entries_.end()) Throw(absl::StatusCode::kNotFound, "'", path_, "' has no tensor '", name, "'");
  WEFT_REQUIRE(entry->type.shape == box.global_shape, "'", path_, "': tensor '", name, "' is ",
               entry->type.ToString(), ", expected shape ", box.global_shape.ToString());
  const int64_t item_size = ItemSize(entry->type.dtype);
  const Shape strides = ContiguousStrides(box.global_shape);
  const bool on_host = allocator->device().type == DeviceType::kCpu;
  const Tensor result = Tensor::Empty(on_host ? allocator : MakeCpuAllocator(), entry->type.dtype, box.shape);
  if (result.num_elements() == 0) return on_host ? result : CloneTensor(result, allocator);
  // Runs that lie contiguously in the file: the dims from `run_dim` on are whole, and one range of the dim
  // before.
  int run_dim = box.shape.ndim();
  while (run_dim > 0 && box.shape[run_dim - 1] == box.global_shape[run_dim - 1]) --run_dim;
  run_dim = std::max(0, run_dim - 1);
  int64_t run = 1;
  for (int dim = run_dim; dim < box.shape.ndim(); ++dim) run *= box.shape[dim];
  Shape index = box.shape;
  for (int dim = 0; dim < index.ndim(); ++dim) index[dim] = 0;
  char* out = static_cast<char*>(result.data());
  const int64_t base = data_offset_ + ranges_[entry - entries_.begin()].begin;
  for (int64_t done = 0; done < result.num_elements(); done += run) {
    int64_t position = 0;
    for (int dim = 0; dim < index.ndim(); ++dim) position += (box.offset[dim] + index[dim]) * strides[dim];
    ReadBytes(base + position * item_size, out + done * item_size, run * item_size);
    for (int dim = run_dim - 1; dim >= 0 && ++index[dim] == box.shape[dim]; --dim) index[dim] = 0;
  }
  return on_host ? result : CloneTensor(result, allocator);
}

}  // namespace weft
