#include "parallel/parts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "parallel/styles/on.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

std::string RangeText(const std::string& axis, int64_t first, int64_t count) {
  return count == 1 ? absl::StrCat(axis, " ", first)
                    : absl::StrCat(axis, " ", first, " to ", first + count - 1);
}

// The mesh of a range of an axis: the model's, with other axes in the place of that one.
DeviceMesh MeshOf(const DeviceMesh& mesh, int axis, const OnRange& range) {
  std::vector<MeshAxis> axes;
  for (int i = 0; i < mesh.num_axes(); ++i) {
    if (i == axis) {
      axes.insert(axes.end(), range.axes.begin(), range.axes.end());
    } else {
      axes.push_back(mesh.axes()[i]);
    }
  }
  std::vector<int> ranks;
  for (const int rank : mesh.ranks()) {
    const int64_t index = mesh.CoordinateOf(rank)[axis];
    if (index >= range.first && index < range.first + range.count) ranks.push_back(rank);
  }
  return DeviceMesh(std::move(axes), std::move(ranks));
}

// Whether one of `named` is nearer to a part than the module around it is: the part itself, or one between them.
bool IsNamedBelow(const ModelTree& tree, int part, int around, const std::set<int>& named) {
  for (int module = part; module != around; module = tree.parent(module)) {
    if (named.count(module) > 0) return true;
  }
  return false;
}

class Divider {
 public:
  Divider(const ModelTree& tree, const DeviceMesh& mesh) : tree_(tree), mesh_(mesh) {
    division_.module_parts.assign(tree.modules().size(), -1);
    division_.places.assign(tree.modules().size(), ModulePlace::kWhole);
    division_.meshes.assign(tree.modules().size(), mesh);
  }

  PartDivision Run(absl::Span<const PartEntry> entries) {
    division_.parts.axis = mesh_.FindAxis(entries[0].entry->style.axis);
    for (const PartEntry& entry : entries) {
      try {
        AddPart(*entry.entry);
        Name(entry);
      } catch (const Error& error) {
        Throw(error.code(), Where(*entry.entry), ": ", error.message());
      }
    }
    SortParts();
    CheckCover();
    Place();
    CheckParameters();
    return std::move(division_);
  }

 private:
  const std::string& axis_name() const { return mesh_.axis_name(division_.parts.axis); }
  std::string NameOf(int part) const { return division_.parts.NameOf(part, mesh_); }

  void AddPart(const PlanEntry& entry) {
    const int axis = mesh_.FindAxis(entry.style.axis);
    WEFT_REQUIRE(axis == division_.parts.axis, "another entry places modules along axis '", axis_name(),
                 "': expected all of them along one axis, got '", entry.style.axis, "'");
    const OnRange range = OnRangeOf(entry.style);
    WEFT_REQUIRE(range.first + range.count <= mesh_.axis_size(axis), "axis '", axis_name(),
                 "' has indices 0 to ", mesh_.axis_size(axis) - 1, ", got ",
                 RangeText(axis_name(), range.first, range.count));
    const ResolvedPart part = {
        .first = range.first, .count = range.count, .mesh = MeshOf(mesh_, axis, range)};
    for (const ResolvedPart& other : division_.parts.parts) {
      if (part.first >= other.first + other.count || other.first >= part.first + part.count) continue;
      WEFT_REQUIRE(part == other, RangeText(axis_name(), part.first, part.count), " with mesh (",
                   part.mesh.ToString(), ") overlaps ", RangeText(axis_name(), other.first, other.count),
                   " with mesh (", other.mesh.ToString(),
                   ") of another entry: expected parts that are disjoint, or equal with the same mesh");
      return;
    }
    division_.parts.parts.push_back(part);
  }

  void Name(const PartEntry& entry) {
    const int64_t first = OnRangeOf(entry.entry->style).first;
    for (const int module : entry.matches->modules) {
      WEFT_REQUIRE(module != 0,
                   "the model itself lies on the whole mesh: expected modules below it, got the path \"",
                   entry.entry->path, "\"");
      const auto [found, is_new] = named_.try_emplace(module, first);
      WEFT_REQUIRE(is_new || found->second == first, "module '", tree_.module_path(module), "' is placed on ",
                   axis_name(), " ", found->second, " onward by another entry: expected one place, got ",
                   axis_name(), " ", first, " onward");
    }
  }

  void SortParts() {
    std::sort(division_.parts.parts.begin(), division_.parts.parts.end(),
              [](const ResolvedPart& a, const ResolvedPart& b) { return a.first < b.first; });
  }

  void CheckCover() const {
    int64_t next = 0;
    for (const ResolvedPart& part : division_.parts.parts) {
      if (part.first > next) break;
      next = part.first + part.count;
    }
    WEFT_REQUIRE(next == mesh_.axis_size(division_.parts.axis), "the plan's On entries leave out ",
                 axis_name(), " ", next, ", which would have nothing to do: expected parts that have all of ",
                 RangeText(axis_name(), 0, mesh_.axis_size(division_.parts.axis)));
  }

  // Modules come before those below them.
  void Place() {
    std::vector<int>& parts = division_.module_parts;
    for (int module = 0; module < std::ssize(parts); ++module) {
      const int around = module == 0 ? -1 : parts[tree_.parent(module)];
      const auto named = named_.find(module);
      parts[module] = named == named_.end() ? around : division_.parts.PartAt(named->second);
      WEFT_REQUIRE(around < 0 || parts[module] == around, "module '", tree_.module_path(module),
                   "' is placed on ", NameOf(parts[module]), " and lies within one on ", NameOf(around),
                   ", which other ranks do not run");
      if (parts[module] < 0) continue;
      division_.places[module] = around < 0 ? ModulePlace::kPart : ModulePlace::kAround;
      division_.meshes[module] = division_.parts.parts[parts[module]].mesh;
    }
  }

  void CheckParameters() const {
    std::vector<bool> has_parameter(division_.parts.parts.size(), false);
    std::map<const Parameter*, int> parts;
    for (int i = 0; i < std::ssize(tree_.parameters()); ++i) {
      const int part = division_.module_parts[tree_.owner(i)];
      WEFT_REQUIRE(part >= 0, "parameter '", tree_.parameter_path(i),
                   "' is in no part: with On, every module with parameters is placed by an entry");
      has_parameter[part] = true;
      parts[tree_.parameters()[i]] = part;
    }
    for (int part = 0; part < std::ssize(has_parameter); ++part) {
      WEFT_REQUIRE(has_parameter[part], NameOf(part),
                   " has no parameter of the model: give its ranks to another part");
    }
    for (int module = 0; module < std::ssize(tree_.modules()); ++module) {
      const int part = division_.module_parts[module];
      for (const ModuleBuffer* buffer : tree_.modules()[module]->buffers()) {
        WEFT_REQUIRE(part >= 0, "buffer '", buffer->path(),
                     "' is in no part: with On, every module with buffers is placed by an entry");
      }
      for (const Parameter* slot : tree_.modules()[module]->tied()) {
        const int of_value = parts.at(slot->tied_to());
        WEFT_REQUIRE(part == of_value, "parameter '", slot->path(), "' is tied to '", slot->tied_to()->path(),
                     "', which is on ", NameOf(of_value), " and it is ",
                     part < 0 ? "in no part" : absl::StrCat("on ", NameOf(part)),
                     ": parts share no parameter");
      }
    }
  }

  const ModelTree& tree_;
  const DeviceMesh& mesh_;
  PartDivision division_;
  std::map<int, int64_t> named_;  // modules that entries name: the first index
};

}  // namespace

int ResolvedParts::PartAt(int64_t index) const {
  const auto found =
      std::find_if(parts.begin(), parts.end(), [&](const ResolvedPart& part) { return part.Has(index); });
  WEFT_CHECK(found != parts.end(), "no part has index ", index);
  return static_cast<int>(found - parts.begin());
}

std::string ResolvedParts::NameOf(int part, const DeviceMesh& mesh) const {
  return RangeText(mesh.axis_name(axis), parts[part].first, parts[part].count);
}

PartDivision DivideIntoParts(const ModelTree& tree, const DeviceMesh& mesh,
                             absl::Span<const PartEntry> entries) {
  WEFT_REQUIRE(!entries.empty(), "DivideIntoParts: there are no parts");
  return Divider(tree, mesh).Run(entries);
}

void NamePartsBelow(const ModelTree& tree, const Plan& plan, const PartDivision& division,
                    std::vector<EntryMeaning>* meanings) {
  const std::vector<EntryMeaning> given = *meanings;
  const auto is_alike = [&](const Style& a, const Style& b) { return a.name == b.name && a.axis == b.axis; };
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].rules->has_axis || given[i].rules->reach != StyleReach::kBelow) continue;
    const PlanEntry& entry = plan.entries()[i];
    std::set<int> named;
    for (size_t j = 0; j < given.size(); ++j) {
      if (j == i || !is_alike(plan.entries()[j].style, entry.style)) continue;
      named.insert(given[j].matches.modules.begin(), given[j].matches.modules.end());
    }
    std::set<int> modules;
    for (const int module : given[i].matches.modules) {
      if (division.module_parts[module] >= 0) {
        modules.insert(module);
        continue;
      }
      bool has_axis = false;
      for (const int below : tree.ModulesBelow({.modules = {module}, .parameters = {}})) {
        if (division.places[below] != ModulePlace::kPart) continue;
        if (division.meshes[below].FindAxis(entry.style.axis) < 0) continue;
        has_axis = true;
        if (!IsNamedBelow(tree, below, module, named)) modules.insert(below);
      }
      WEFT_REQUIRE(has_axis, Where(entry), ": no part of the model below '", tree.module_path(module),
                   "' has an axis '", entry.style.axis, "'");
    }
    (*meanings)[i].matches.modules.assign(modules.begin(), modules.end());
  }
}

}  // namespace weft
