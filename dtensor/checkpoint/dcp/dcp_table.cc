#include "dtensor/checkpoint/dcp/dcp_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

struct DTypeNames {
  const char* dtype;
  const char* storage;
  DType own;
};
constexpr DTypeNames kDTypes[] = {
    {"float32", "FloatStorage", DType::kF32},      {"float64", "DoubleStorage", DType::kF64},
    {"bfloat16", "BFloat16Storage", DType::kBF16}, {"float16", "HalfStorage", DType::kF16},
    {"int32", "IntStorage", DType::kI32},          {"int64", "LongStorage", DType::kI64},
    {"uint8", "ByteStorage", DType::kU8},          {"bool", "BoolStorage", DType::kBool},
};

constexpr char kMetadata[] = "torch.distributed.checkpoint.metadata ";

// What a table of tensors is made of.
const std::set<std::string>& TableClasses() {
  static const auto* const classes = [] {
    auto* names = new std::set<std::string>{"torch Size",
                                            "torch.serialization _get_layout",
                                            "pathlib PosixPath",
                                            "pathlib._local PosixPath",
                                            "collections OrderedDict",
                                            "torch.distributed.checkpoint.filesystem _StorageInfo"};
    for (const char* name :
         {"Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties",
          "ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"}) {
      names->insert(absl::StrCat(kMetadata, name));
    }
    for (const DTypeNames& dtype : kDTypes) names->insert(absl::StrCat("torch ", dtype.dtype));
    return names;
  }();
  return *classes;
}

template <class... Parts>
[[noreturn]] void ThrowBroken(const std::string& path, const Parts&... parts) {
  Throw(absl::StatusCode::kDataLoss, "'", path, "' is no table of a distributed checkpoint: ", parts...);
}

// What is expected of a value.
// Errors: DataLoss.
const PickleValue& Field(const std::string& path, const PickleValue* object, absl::string_view name) {
  const PickleValue* const state = object != nullptr ? object->state : nullptr;
  const PickleValue* const found = state != nullptr ? state->Find(name) : nullptr;
  if (found == nullptr) ThrowBroken(path, "an object has no field '", name, "'");
  return *found;
}
std::string Text(const std::string& path, const PickleValue& value) {
  if (value.kind != PickleValue::kText) ThrowBroken(path, "a text is none");
  return value.text;
}
// A tuple of numbers, or a torch.Size of one; `what` they are, for errors.
Shape Numbers(const std::string& path, const PickleValue& value, absl::string_view what) {
  const PickleValue* list = &value;
  if (value.IsObjectOf("torch Size") && value.items.size() == 1) list = value.items[0];
  if (list->kind != PickleValue::kTuple || list->items.size() > Shape::kMaxDims) {
    ThrowBroken(path, what, " are no tuple of at most ", Shape::kMaxDims, " numbers");
  }
  Shape numbers;
  for (const PickleValue* item : list->items) {
    const int64_t number = DcpInt(path, *item);
    if (number < 0 || number > int64_t{1} << 40) ThrowBroken(path, "one of the ", what, " is ", number);
    numbers.push_back(number);
  }
  return numbers;
}

// Where pieces and objects lie, by name and offset; an object has none.
using Places = std::map<std::pair<std::string, std::vector<int64_t>>, DcpPlace>;

Places PlacesIn(const std::string& path, const PickleValue& storage) {
  Places places;
  for (const auto& [key, info] : storage.pairs) {
    // An object's index has none, or None.
    const PickleValue* const at = key->state != nullptr ? key->state->Find("offset") : nullptr;
    std::vector<int64_t> offset;
    if (at != nullptr && at->kind != PickleValue::kNone) {
      const Shape shape = DcpExtents(path, *at);
      offset.assign(shape.begin(), shape.end());
      offset.push_back(-1);  // unlike an object's
    }
    DcpPlace place = {.file = Text(path, Field(path, info, "relative_path")),
                      .offset = DcpInt(path, Field(path, info, "offset")),
                      .num_bytes = DcpInt(path, Field(path, info, "length"))};
    if (place.file.find('/') != std::string::npos || place.file.empty()) {
      ThrowBroken(path, "a file named '", place.file, "'");
    }
    const PickleValue* const transforms = info->state->Find("transform_descriptors");
    if (transforms != nullptr && transforms->kind != PickleValue::kNone) {
      Throw(absl::StatusCode::kUnimplemented, "'", path, "': files that are transformed (compressed, say)");
    }
    places[{Text(path, Field(path, key, "fqn")), offset}] = std::move(place);
  }
  return places;
}

const DcpPlace& PlaceOf(const std::string& path, const Places& places, const std::string& name,
                        std::vector<int64_t> offset) {
  const auto found = places.find({name, std::move(offset)});
  if (found == places.end()) ThrowBroken(path, "no file has a piece of '", name, "'");
  return found->second;
}

DType DTypeOf(const std::string& path, const std::string& name, const PickleValue& properties) {
  const PickleValue* const state = properties.state;
  const PickleValue* const dtype = state != nullptr && !state->items.empty() ? state->items[0] : nullptr;
  for (const DTypeNames& known : kDTypes) {
    const bool is_it = dtype != nullptr && dtype->kind == PickleValue::kGlobal &&
                       dtype->text == absl::StrCat("torch ", known.dtype);
    if (is_it) return known.own;
  }
  ThrowBroken(path, "'", name, "' has no dtype");
}

DcpTensor TensorOf(const std::string& path, const std::string& name, const PickleValue& value,
                   const Places& places) {
  DcpTensor tensor;
  tensor.type.shape = DcpExtents(path, Field(path, &value, "size"));
  tensor.type.dtype = DTypeOf(path, name, Field(path, &value, "properties"));
  const Shape& whole = tensor.type.shape;
  for (const PickleValue* chunk : Field(path, &value, "chunks").items) {
    DcpPiece piece;
    piece.region = {DcpExtents(path, Field(path, chunk, "offsets")),
                    DcpExtents(path, Field(path, chunk, "sizes"))};
    bool fits = piece.region.offset.ndim() == whole.ndim() && piece.region.shape.ndim() == whole.ndim();
    for (int dim = 0; fits && dim < whole.ndim(); ++dim) {
      fits = piece.region.offset[dim] + piece.region.shape[dim] <= whole[dim];
    }
    if (!fits) ThrowBroken(path, "a piece of '", name, "' does not lie in it");
    if (piece.region.empty()) continue;
    std::vector<int64_t> offset(piece.region.offset.begin(), piece.region.offset.end());
    offset.push_back(-1);
    piece.place = PlaceOf(path, places, name, std::move(offset));
    tensor.pieces.push_back(std::move(piece));
  }
  std::sort(tensor.pieces.begin(), tensor.pieces.end(), [](const DcpPiece& a, const DcpPiece& b) {
    return std::lexicographical_compare(a.region.offset.begin(), a.region.offset.end(),
                                        b.region.offset.begin(), b.region.offset.end());
  });
  return tensor;
}

}  // namespace

int64_t DcpInt(const std::string& path, const PickleValue& value) {
  if (value.kind != PickleValue::kInt) ThrowBroken(path, "a number is none");
  return value.number;
}

Shape DcpExtents(const std::string& path, const PickleValue& value) {
  const Shape shape = Numbers(path, value, "extents");
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, std::max<int64_t>(extent, 1), &count) || count > int64_t{1} << 56) {
      ThrowBroken(path, "extents whose product is too large");
    }
  }
  return shape;
}

Shape DcpStrides(const std::string& path, const PickleValue& value) {
  return Numbers(path, value, "strides");
}

const char* DcpStorageName(DType dtype) {
  return std::find_if(std::begin(kDTypes), std::end(kDTypes),
                      [&](const DTypeNames& known) { return known.own == dtype; })
      ->storage;
}

DcpTable ReadDcpTable(const std::string& path, absl::string_view bytes) {
  const Pickle pickle(path, bytes, TableClasses());
  const PickleValue& root = pickle.value();
  if (!root.IsObjectOf(absl::StrCat(kMetadata, "Metadata"))) ThrowBroken(path, "it is no Metadata");
  const Places places = PlacesIn(path, Field(path, &root, "storage_data"));
  DcpTable table;
  for (const auto& [key, value] : Field(path, &root, "state_dict_metadata").pairs) {
    const std::string name = Text(path, *key);
    if (value->IsObjectOf(absl::StrCat(kMetadata, "BytesStorageMetadata"))) {
      table.objects[name] = PlaceOf(path, places, name, {});
    } else if (value->IsObjectOf(absl::StrCat(kMetadata, "TensorStorageMetadata"))) {
      table.tensors[name] = TensorOf(path, name, *value, places);
    } else {
      ThrowBroken(path, "'", name, "' is neither a tensor nor an object");
    }
  }
  return table;
}

}  // namespace weft
