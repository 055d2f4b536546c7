#include "parallel/value_moves.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dtensor/host_memory.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/redistribution/agreement.h"
#include "mesh/layout_words.h"
#include "nlohmann/json.hpp"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {
namespace {

using Json = nlohmann::json;

// `moved` lies as `to` does.
void Write(const DTensor& moved, const DTensor& to, const char* what) {
  CopyTensor(moved.ToLocal(), to.ToLocal());
  to.impl()->MarkWritten(what);
}

// What every rank knows of a tensor that some have.
struct Held {
  TensorType type;
  Layout layout;
  DeviceMesh mesh;
};

Json ToJson(const DeviceMesh& mesh) {
  const DeviceMesh root = mesh.Root();
  Json axes = Json::array(), fixed = Json::array();
  for (const MeshAxis& axis : root.axes()) axes.push_back({axis.name, axis.size});
  for (int axis = 0; mesh.IsSlice() && axis < mesh.num_axes(); ++axis) {
    if (mesh.IsFixed(axis)) fixed.push_back({mesh.axis_name(axis), mesh.fixed_index(axis)});
  }
  return {{"axes", axes}, {"ranks", root.ranks()}, {"fixed", fixed}};
}

DeviceMesh MeshFromJson(const Json& json) {
  std::vector<MeshAxis> axes;
  for (const Json& axis : json["axes"]) axes.push_back({axis[0].get<std::string>(), axis[1].get<int64_t>()});
  std::vector<FixedAxis> fixed;
  for (const Json& axis : json["fixed"]) {
    fixed.push_back({axis[0].get<std::string>(), axis[1].get<int64_t>()});
  }
  const DeviceMesh root(std::move(axes), json["ranks"].get<std::vector<int>>());
  return fixed.empty() ? root : root.Slice(fixed);
}

// What a rank has: {"meshes": [...], "tensors": [[name, dtype, shape, layout's words, its mesh's number], ...]}. The first rank of
// a mesh describes the tensors on it. Every rank of the mesh gives a checksum of the names that it has there.
Json Describe(NamedTensors tensors, int rank) {
  std::vector<DeviceMesh> meshes;
  std::vector<std::set<std::string>> names;
  Json entries = Json::array();
  for (const auto& [name, tensor] : tensors) {
    const DeviceMesh& mesh = tensor.context()->mesh();
    const size_t number = std::find(meshes.begin(), meshes.end(), mesh) - meshes.begin();
    if (number == meshes.size()) {
      meshes.push_back(mesh);
      names.emplace_back();
    }
    names[number].insert(name);
    if (mesh.ranks()[0] != rank) continue;
    std::vector<int64_t> words(kLayoutWords);
    PutLayout(tensor.layout(), words.data());
    const Shape& shape = tensor.shape();
    entries.push_back({name, static_cast<int>(tensor.dtype()),
                       std::vector<int64_t>(shape.begin(), shape.end()), words, number});
  }
  Json of_meshes = Json::array();
  for (size_t i = 0; i < meshes.size(); ++i) {
    of_meshes.push_back(ToJson(meshes[i]));
    const std::string lines = absl::StrJoin(names[i], "\n");
    of_meshes.back()["names"] = Crc64(lines.data(), static_cast<int64_t>(lines.size()));
  }
  return {{"meshes", of_meshes}, {"tensors", entries}};
}

// What all ranks have.
class Holdings {
 public:
  // Adds what a rank has said.
  void Add(const Json& json);

  // Errors: InvalidArgument unless each mesh's ranks are all there and have the same names.
  void Check(const DeviceMesh& whole, const char* what) const;

  // By name, those on different meshes.
  const std::map<std::string, std::vector<Held>>& tensors() const { return tensors_; }

 private:
  struct Holders {
    DeviceMesh mesh;
    std::vector<uint64_t> names;  // the checksum of each rank that has spoken
  };
  size_t NumberOf(const DeviceMesh& mesh);

  std::vector<Holders> meshes_;
  std::map<std::string, std::vector<Held>> tensors_;
};

size_t Holdings::NumberOf(const DeviceMesh& mesh) {
  const auto known =
      std::find_if(meshes_.begin(), meshes_.end(), [&](const Holders& of) { return of.mesh == mesh; });
  if (known != meshes_.end()) return known - meshes_.begin();
  meshes_.push_back({mesh, {}});
  return meshes_.size() - 1;
}

void Holdings::Add(const Json& json) {
  std::vector<size_t> numbers;  // of the rank's meshes
  for (const Json& mesh : json["meshes"]) {
    numbers.push_back(NumberOf(MeshFromJson(mesh)));
    meshes_[numbers.back()].names.push_back(mesh["names"].get<uint64_t>());
  }
  for (const Json& entry : json["tensors"]) {
    const std::vector<int64_t> dims = entry[2].get<std::vector<int64_t>>();
    const std::vector<int64_t> words = entry[3].get<std::vector<int64_t>>();
    tensors_[entry[0].get<std::string>()].push_back(
        {.type = {static_cast<DType>(entry[1].get<int>()), Shape(dims)},
         .layout = GetLayout(words.data()),
         .mesh = meshes_[numbers[entry[4].get<size_t>()]].mesh});
  }
}

void Holdings::Check(const DeviceMesh& whole, const char* what) const {
  for (const Holders& of : meshes_) {
    for (const int rank : of.mesh.ranks()) {
      WEFT_REQUIRE(whole.Contains(rank), what, ": tensors lie on mesh (", of.mesh.ToString(),
                   "), whose rank ", rank, " is not in the model's mesh (", whole.ToString(), ")");
    }
    WEFT_REQUIRE(std::ssize(of.names) == of.mesh.num_ranks() &&
                     std::count(of.names.begin(), of.names.end(), of.names[0]) == std::ssize(of.names),
                 what, ": expected the same tensors on all ranks of mesh (", of.mesh.ToString(), ")");
  }
}

// The one that `to` is taken from.
const Held& Source(const std::vector<Held>& from, const Held& to) {
  const auto same =
      std::find_if(from.begin(), from.end(), [&](const Held& held) { return held.mesh == to.mesh; });
  return same != from.end() ? *same : from.front();
}

[[noreturn]] void ThrowMissing(const std::string& name, size_t num_tensors, const char* what) {
  Throw(absl::StatusCode::kNotFound, what, ": there is no '", name, "' among the ", num_tensors,
        " tensors to take it from");
}

void CheckType(const std::string& name, const TensorType& from, const TensorType& to, bool may_cast,
               const char* what) {
  WEFT_REQUIRE(may_cast ? from.shape == to.shape : from == to, what, ": '", name, "' is ", from.ToString(),
               ", expected ", to.ToString());
}

void CheckAll(const Holdings& from, const Holdings& to, bool may_cast, const char* what) {
  for (const auto& [name, wanted] : to.tensors()) {
    const auto found = from.tensors().find(name);
    if (found == from.tensors().end()) ThrowMissing(name, from.tensors().size(), what);
    for (const Held& target : wanted) {
      CheckType(name, Source(found->second, target).type, target.type, may_cast, what);
    }
  }
}

// This rank's.
class TensorsByName {
 public:
  // Views the names.
  explicit TensorsByName(NamedTensors tensors) : tensors_(tensors.begin(), tensors.end()) {}

  // Undefined if there is none.
  DTensor Find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? DTensor() : found->second;
  }

 private:
  const absl::flat_hash_map<absl::string_view, DTensor> tensors_;
};

}  // namespace

void MoveValue(const DTensor& from, const DTensor& to, const char* what) {
  Write(MovedTo(from, to.context(), to.layout(), [&] { return std::string(what); }), to, what);
}

void MoveByName(NamedTensors from, NamedTensors to, const char* what) {
  const TensorsByName here(from);
  std::vector<DTensor> sources;
  for (const auto& [name, target] : to) {
    const DTensor& source = sources.emplace_back(here.Find(name));
    if (!source.defined()) ThrowMissing(name, from.size(), what);
    CheckType(name, source.type(), target.type(), /*may_cast=*/false, what);
    const DeviceMesh &mesh = source.context()->mesh(), &target_mesh = target.context()->mesh();
    if (HaveSameRanks(mesh, target_mesh)) continue;
    Throw(absl::StatusCode::kFailedPrecondition, what, ": '", name, "' lies on mesh (", mesh.ToString(),
          ") and goes to mesh (", target_mesh.ToString(),
          "), which has other ranks: give the context of all ranks of the model, too");
  }
  for (size_t i = 0; i < to.size(); ++i) MoveValue(sources[i], to[i].second, what);
}

void MoveByName(MeshContext& whole, NamedTensors from, NamedTensors to, bool may_cast, const char* what) {
  if (whole.allocator()->device().type == DeviceType::kMeta) return;
  const NoGradGuard no_grad(whole.state());
  const int rank = whole.world().rank();
  const Json mine = {{"from", Describe(from, rank)}, {"to", Describe(to, rank)}};
  Holdings held, wanted;
  for (const std::string& text : GatherTexts(whole, mine.dump())) {
    const Json json = Json::parse(text);
    held.Add(json["from"]);
    wanted.Add(json["to"]);
  }
  held.Check(whole.mesh(), what);
  wanted.Check(whole.mesh(), what);
  CheckAll(held, wanted, may_cast, what);
  const TensorsByName from_here(from), to_here(to);
  for (const auto& [name, targets] : wanted.tensors()) {
    for (const Held& target : targets) {
      const Held& source = Source(held.tensors().at(name), target);
      const bool gives = source.mesh.Contains(rank), gets = target.mesh.Contains(rank);
      if (!gives && !gets) continue;
      const DTensor own = gets ? to_here.Find(name) : DTensor();
      if (source.mesh == target.mesh) {
        MoveValue(from_here.Find(name), own, what);
        continue;
      }
      const DTensor moved =
          Redistribute({source.mesh, source.layout, target.mesh, target.layout, source.type},
                       gives ? ToDevice(from_here.Find(name).Detach()) : DTensor(),
                       gets ? own.context()->DeviceSide() : nullptr);
      if (gets) Write(moved, own, what);
    }
  }
}

}  // namespace weft
