#include "dtensor/checkpoint/folder/manifest.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/checkpoint/safetensors_header.h"
#include "nlohmann/json.hpp"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr char kCrcKey[] = "{\"crc32c\":\"";
// A world of more ranks is a broken number.
constexpr int kMostRanks = 1 << 24;
// Of all meshes together: each makes a list of its ranks when it is asked for them.
constexpr int64_t kMostRanksOfMeshes = int64_t{1} << 26;

template <class... Parts>
[[noreturn]] void ThrowBroken(const std::string& path, const Parts&... parts) {
  Throw(absl::StatusCode::kDataLoss, "'", path, "' is not a whole manifest: ", parts...);
}

Json MeshJson(const DeviceMesh& mesh) {
  const DeviceMesh root = mesh.Root();
  Json json = {{"axes", root.ToString()}};
  const std::vector<int>& ranks = root.ranks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == static_cast<int>(i)) continue;
    json["ranks"] = ranks;
    break;
  }
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.IsFixed(axis)) json["fixed"][root.axis_name(axis)] = mesh.fixed_index(axis);
  }
  return json;
}

DeviceMesh MeshOf(const Json& json, int world) {
  DeviceMesh mesh = DeviceMesh::Parse(json.at("axes").get<std::string>());
  WEFT_REQUIRE(mesh.num_ranks() <= world, "mesh ", mesh.ToString(), " has more ranks than the world, ",
               world);
  if (json.contains("ranks")) {
    mesh = DeviceMesh(mesh.axes(), json["ranks"].get<std::vector<int>>());
    for (const int rank : mesh.ranks()) {
      WEFT_REQUIRE(rank >= 0 && rank < world, "a mesh has the rank ", rank, ", the world has ", world);
    }
  }
  std::vector<FixedAxis> fixed;
  if (json.contains("fixed")) {
    for (const auto& [axis, index] : json["fixed"].items()) fixed.push_back({axis, index.get<int64_t>()});
  }
  return fixed.empty() ? mesh : mesh.Slice(fixed);
}

std::vector<DeviceMesh> MeshesOf(const Json& json, int world) {
  std::vector<DeviceMesh> meshes;
  int64_t num_ranks = 0;
  for (const Json& mesh : json) {
    meshes.push_back(MeshOf(mesh, world));
    num_ranks += meshes.back().num_ranks();
    WEFT_REQUIRE(num_ranks <= kMostRanksOfMeshes, "its meshes have more than ", kMostRanksOfMeshes,
                 " ranks together");
  }
  return meshes;
}

TensorPlace PlaceOf(const std::string& path, const Json& json, const std::vector<DeviceMesh>& meshes) {
  const DType dtype = ParseSafetensorsDType(path, json.at("dtype").get<std::string>());
  const auto extents = json.at("shape").get<std::vector<int64_t>>();
  CheckedNumBytes(path, dtype, extents);
  const auto mesh = json.at("mesh").get<int64_t>();
  WEFT_REQUIRE(mesh >= 0 && mesh < std::ssize(meshes), "mesh ", mesh, " of ", meshes.size());
  TensorPlace place = {.type = TensorType{dtype, Shape(extents)},
                       .mesh = meshes[mesh],
                       .layout = Layout::Parse(json.at("layout").get<std::string>(), meshes[mesh])};
  CheckOnMesh(place.layout, place.type.shape, place.mesh);
  WEFT_REQUIRE(!place.layout.HasPartial(), "the layout ", place.layout.ToString(place.mesh), " is partial");
  return place;
}

bool IsRankFile(absl::string_view name, int world) {
  int rank = -1;
  if (!absl::StartsWith(name, "rank-")) return false;
  for (size_t i = 5; i < name.size() && name[i] >= '0' && name[i] <= '9' && i < 15; ++i) {
    rank = std::max(rank, 0) * 10 + (name[i] - '0');
    if (rank >= kMostRanks) return false;
  }
  return rank >= 0 && rank < world && name == RankFileName(rank);
}

void ReadFiles(const Json& json, Manifest* manifest) {
  for (const auto& [name, file] : json.items()) {
    WEFT_REQUIRE(IsRankFile(name, manifest->world), "file '", name, "' of a world of ", manifest->world);
    const std::optional<uint32_t> crc = ParseCrc32(file.at("header_crc32c").get<std::string>());
    const auto num_bytes = file.at("bytes").get<int64_t>();
    WEFT_REQUIRE(crc && num_bytes >= 0, "file '", name, "' has a broken size or checksum");
    manifest->files[name] = {num_bytes, *crc};
  }
}

Manifest ManifestOf(const std::string& path, const Json& json) {
  Manifest manifest;
  manifest.format = json.at("format").get<int>();
  if (manifest.format > kCheckpointFormat) {
    Throw(absl::StatusCode::kUnimplemented, "'", path, "' is of format ", manifest.format,
          "; this Weft reads formats up to ", kCheckpointFormat);
  }
  manifest.weft = json.at("weft").get<std::string>();
  manifest.step = json.at("step").get<int64_t>();
  manifest.generation = json.at("generation").get<int64_t>();
  manifest.world = json.at("world").get<int>();
  WEFT_REQUIRE(manifest.format >= 1 && manifest.step >= 0 && manifest.generation >= 0 &&
                   manifest.world >= 1 && manifest.world <= kMostRanks,
               "format, step, generation or world is out of range");
  manifest.parts = json.at("parts").get<std::vector<std::string>>();
  const std::vector<DeviceMesh> meshes = MeshesOf(json.at("meshes"), manifest.world);
  for (const auto& [name, place] : json.at("tensors").items()) {
    manifest.tensors[name] = PlaceOf(path, place, meshes);
  }
  ReadFiles(json.at("files"), &manifest);
  manifest.refers_to = json.at("refers_to").get<std::vector<int64_t>>();
  manifest.texts = json.at("texts").get<std::map<std::string, std::string>>();
  return manifest;
}

}  // namespace

std::string FormatManifest(const Manifest& manifest) {
  Json meshes = Json::array(), tensors = Json::object(), files = Json::object();
  for (const auto& [name, place] : manifest.tensors) {
    const Json mesh = MeshJson(place.mesh);
    const auto known = std::find(meshes.begin(), meshes.end(), mesh);
    const auto number = known - meshes.begin();
    if (known == meshes.end()) meshes.push_back(mesh);
    tensors[name] = {{"dtype", SafetensorsDType(place.type.dtype)},
                     {"shape", std::vector<int64_t>(place.type.shape.begin(), place.type.shape.end())},
                     {"mesh", number},
                     {"layout", place.layout.ToString(place.mesh)}};
  }
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.num_bytes}, {"header_crc32c", CrcText(file.header_crc32c)}};
  }
  const Json json = {{"format", manifest.format},
                     {"weft", manifest.weft},
                     {"step", manifest.step},
                     {"generation", manifest.generation},
                     {"world", manifest.world},
                     {"parts", manifest.parts},
                     {"meshes", meshes},
                     {"tensors", tensors},
                     {"files", files},
                     {"refers_to", manifest.refers_to},
                     {"texts", manifest.texts}};
  std::string rest;
  try {
    rest = json.dump().substr(1) + "\n";
  } catch (const Json::exception& error) {
    ThrowInvalidArgument("a manifest whose names or texts are no UTF-8: ", error.what());
  }
  return absl::StrCat(kCrcKey, CrcText(Crc32c(rest)), "\",", rest);
}

Manifest ParseManifest(const std::string& path, absl::string_view text) {
  const size_t begin = sizeof(kCrcKey) - 1;
  if (!absl::StartsWith(text, kCrcKey) || text.size() < begin + 10 || text.substr(begin + 8, 2) != "\",") {
    ThrowBroken(path, "it does not begin with its checksum");
  }
  const std::optional<uint32_t> expected = ParseCrc32(text.substr(begin, 8));
  const uint32_t actual = Crc32c(text.substr(begin + 10));
  if (expected != actual) {
    ThrowBroken(path, "its checksum is ", CrcText(actual), ", ", text.substr(begin, 8), " was expected");
  }
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) ThrowBroken(path, "it is not a JSON object");
  try {
    return ManifestOf(path, json);
  } catch (const Json::exception& error) {
    ThrowBroken(path, "it lacks a field or has one of the wrong type: ", error.what());
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kInvalidArgument) throw;
    ThrowBroken(path, error.message());
  }
}

void RequireUtf8(absl::string_view what, absl::string_view name, absl::string_view text) {
  try {
    Json(std::string(text)).dump();
  } catch (const Json::exception& error) {
    ThrowInvalidArgument("state: ", what, " '", absl::CHexEscape(name),
                         "' is no UTF-8 text, which alone can be saved: ", error.what());
  }
}

std::string RankFileName(int rank) { return absl::StrFormat("rank-%05d.safetensors", rank); }

}  // namespace weft
