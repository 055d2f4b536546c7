#include "dtensor/checkpoint/dcp/dcp_reader.h"

#include <cstring>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/box_read.h"
#include "dtensor/checkpoint/dcp/coverage.h"
#include "dtensor/checkpoint/dcp/pickle.h"
#include "dtensor/checkpoint/dcp/zip_entries.h"
#include "runtime/base/error.h"
#include "runtime/base/number_text.h"

namespace weft {
namespace {

constexpr int64_t kMaxTableBytes = int64_t{1} << 30;
constexpr int64_t kMaxHeadBytes = int64_t{1} << 20;  // of one tensor's head, or one value

using Entries = std::map<std::string, ZipEntry>;

template <class... Parts>
[[noreturn]] void ThrowBroken(const std::string& path, const Parts&... parts) {
  Throw(absl::StatusCode::kDataLoss, "'", path,
        "' is not a whole file of a distributed checkpoint: ", parts...);
}

std::string TextOf(const Region& region) {
  std::ostringstream text;
  text << region;
  return text.str();
}

// A file of an archive; the archive has one folder, of any name.
const ZipEntry* FindEntry(const Entries& entries, const std::string& end) {
  for (const auto& [name, entry] : entries) {
    if (absl::EndsWith(name, "/" + end)) return &entry;
  }
  return nullptr;
}

std::string ReadEntry(FileReader& file, const Entries& entries, const std::string& end) {
  const ZipEntry* const entry = FindEntry(entries, end);
  if (entry == nullptr) ThrowBroken(file.path(), "an archive has no ", end);
  if (entry->num_bytes > kMaxHeadBytes) ThrowBroken(file.path(), "a head of ", entry->num_bytes, " bytes");
  std::string bytes(static_cast<size_t>(entry->num_bytes), '\0');
  ReadAll(file, entry->offset, bytes.data(), entry->num_bytes);
  return bytes;
}

// Whether the elements of a piece lie row-major without gaps.
bool IsRowMajor(const Shape& shape, const Shape& strides) {
  int64_t expected = 1;
  for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
    if (shape[dim] != 1 && strides[dim] != expected) return false;
    expected *= shape[dim];
  }
  return true;
}

}  // namespace

DcpReader::DcpReader(std::shared_ptr<Files> files, const std::string& folder)
    : files_(std::move(files)), folder_(folder), open_(files_) {
  const std::string path = JoinPath(folder_, ".metadata");
  table_ = ReadDcpTable(path, ReadText(*files_, path, kMaxTableBytes));
  for (const auto& [name, place] : table_.objects) ReadObject(name, place);
}

std::shared_ptr<FileReader> DcpReader::Opened(const std::string& file) {
  return open_.Get(JoinPath(folder_, file));
}

void DcpReader::ReadObject(const std::string& name, const DcpPlace& place) {
  const std::shared_ptr<FileReader> opened = Opened(place.file);
  FileReader& file = *opened;
  const Entries entries = ReadZipEntries(file, place.offset, place.num_bytes);
  const ZipEntry* const entry = FindEntry(entries, "data.pkl");
  if (entry != nullptr && entry->num_bytes > kMaxHeadBytes) {
    skipped_.push_back(name);
    return;
  }
  try {
    const Pickle pickle(file.path(), ReadEntry(file, entries, "data.pkl"), {});
    const PickleValue& value = pickle.value();
    if (value.kind == PickleValue::kText) {
      values_[name] = value.text;
    } else if (value.kind == PickleValue::kInt || value.kind == PickleValue::kBool) {
      values_[name] = absl::StrCat(value.number);
    } else if (value.kind == PickleValue::kFloat) {
      values_[name] = NumberText(value.real);
    } else {
      skipped_.push_back(name);
    }
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kUnimplemented) throw;
    skipped_.push_back(name);  // an object of some class
  }
}

std::vector<std::string> DcpReader::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : table_.tensors) names.push_back(name);
  return names;
}

const TensorType* DcpReader::Find(absl::string_view name) const {
  const auto found = table_.tensors.find(std::string(name));
  return found == table_.tensors.end() ? nullptr : &found->second.type;
}

// The head of a tensor: _rebuild_tensor_v2(storage, offset, size, stride, ...), where the storage is
// ("storage", class, key, device, elements).
DcpReader::Elements DcpReader::Describe(const DcpTensor& tensor, const DcpPiece& piece) {
  const std::shared_ptr<FileReader> opened = Opened(piece.place.file);
  FileReader& file = *opened;
  const Entries entries = ReadZipEntries(file, piece.place.offset, piece.place.num_bytes);
  const std::string storage_class = absl::StrCat("torch ", DcpStorageName(tensor.type.dtype));
  const Pickle pickle(file.path(), ReadEntry(file, entries, "data.pkl"),
                      {"torch._utils _rebuild_tensor_v2", "collections OrderedDict", storage_class});
  const PickleValue& head = pickle.value();
  const PickleValue* const storage = head.items.size() >= 4 && head.items[0]->kind == PickleValue::kPersistent
                                         ? head.items[0]->state
                                         : nullptr;
  const bool is_tensor = head.IsObjectOf("torch._utils _rebuild_tensor_v2") && storage != nullptr &&
                         storage->kind == PickleValue::kTuple && storage->items.size() >= 5 &&
                         storage->items[1]->text == storage_class &&
                         storage->items[2]->kind == PickleValue::kText;
  if (!is_tensor) ThrowBroken(file.path(), "a piece is no tensor of ", storage_class);
  if (FindEntry(entries, "byteorder") != nullptr && ReadEntry(file, entries, "byteorder") != "little") {
    Throw(absl::StatusCode::kUnimplemented, "'", file.path(), "': its elements are not little-endian");
  }
  const ZipEntry* const data = FindEntry(entries, absl::StrCat("data/", storage->items[2]->text));
  const int64_t offset = DcpInt(file.path(), *head.items[1]);
  Elements elements = {.file_offset = 0, .strides = DcpStrides(file.path(), *head.items[3]), .num_bytes = 0};
  const int64_t item_size = ItemSize(tensor.type.dtype);
  int64_t last = offset;  // element of the piece
  bool fits = data != nullptr && offset >= 0 && offset < int64_t{1} << 56 &&
              DcpExtents(file.path(), *head.items[2]) == piece.region.shape &&
              elements.strides.ndim() == piece.region.shape.ndim();
  for (int dim = 0; fits && dim < elements.strides.ndim(); ++dim) {
    int64_t reach = 0;
    fits = !__builtin_mul_overflow(elements.strides[dim], piece.region.shape[dim] - 1, &reach) &&
           !__builtin_add_overflow(last, reach, &last) && last < int64_t{1} << 56;
  }
  if (!fits || last >= data->num_bytes / item_size) {
    ThrowBroken(file.path(), "a piece's elements do not lie in its archive, or are not the table's");
  }
  elements.file_offset = data->offset + offset * item_size;
  elements.num_bytes = (last - offset + 1) * item_size;
  return elements;
}

void DcpReader::ReadPiece(const DcpTensor& tensor, const DcpPiece& piece, const Region& wanted, char* out) {
  const std::shared_ptr<FileReader> opened = Opened(piece.place.file);
  FileReader& file = *opened;
  const Elements elements = Describe(tensor, piece);
  const int64_t item_size = ItemSize(tensor.type.dtype);
  if (IsRowMajor(piece.region.shape, elements.strides)) {
    ReadShared(file, {.region = piece.region, .file_offset = elements.file_offset, .item_size = item_size},
               wanted, out);
    return;
  }
  // Transposed, say: all of it is read.
  std::vector<char> bytes(static_cast<size_t>(elements.num_bytes));
  ReadAll(file, elements.file_offset, bytes.data(), elements.num_bytes);
  const Region shared = Intersect(piece.region, wanted);
  const Shape strides = ContiguousStrides(wanted.shape);
  for (int64_t i = 0; i < shared.shape.num_elements(); ++i) {
    int64_t rest = i, from = 0, to = 0;
    for (int dim = shared.shape.ndim() - 1; dim >= 0; --dim) {
      const int64_t index = shared.offset[dim] + rest % shared.shape[dim];
      from += (index - piece.region.offset[dim]) * elements.strides[dim];
      to += (index - wanted.offset[dim]) * strides[dim];
      rest /= shared.shape[dim];
    }
    std::memcpy(out + to * item_size, bytes.data() + from * item_size, static_cast<size_t>(item_size));
  }
}

void DcpReader::DoRead(const std::string& name, const ShardBox& box, char* out) {
  const DcpTensor& tensor = table_.tensors.at(name);
  const Region wanted = {box.offset, box.shape};
  Uncovered uncovered(wanted);
  for (const DcpPiece& piece : tensor.pieces) {
    if (!uncovered.Cut(piece.region)) {
      ThrowBroken(folder_, "of the pieces of '", name, "', that of shape ", TextOf(piece.region),
                  " overlaps one before it");
    }
  }
  if (!uncovered.boxes().empty()) {
    ThrowBroken(folder_, "no piece of '", name, "' has the elements of shape ",
                TextOf(uncovered.boxes().front()));
  }
  for (const DcpPiece& piece : tensor.pieces) {
    if (!Intersect(piece.region, wanted).empty()) ReadPiece(tensor, piece, wanted, out);
  }
}

}  // namespace weft
