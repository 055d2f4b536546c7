#include "examples/perception/perception_plan.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// What axis tp does: it splits channels, and the product behind them sums over them.
std::vector<PlanEntry> TensorEntries(const std::string& part) {
  const Style columns = ColumnParallel("tp"), channels = ColumnParallel("tp", {.input = Shard(1)}),
              rows = RowParallel("tp", {.input = Shard(1)});
  if (part == "camera") {
    return {{"camera.block2.conv", columns}, {"camera.block2.norm", channels}, {"camera.block3.conv", rows}};
  }
  if (part == "lidar") {
    return {{"lidar.layer2.conv", columns}, {"lidar.layer2.norm", channels}, {"lidar.layer3.conv", rows}};
  }
  if (part == "fusion") return {{"fusion.up", columns}, {"fusion.down", rows}};
  return {};
}

void AddPart(const std::vector<std::string>& modules, const std::string& text, int64_t* next,
             std::vector<PlanEntry>* entries) {
  const DeviceMesh mesh = DeviceMesh::Parse(text);
  for (const MeshAxis& axis : mesh.axes()) {
    WEFT_REQUIRE(axis.name == "dp" || axis.name == "fs" || axis.name == "tp", "mesh '", text, "' of ",
                 modules[0], ": expected axes dp, fs and tp, got '", axis.name, "'");
  }
  for (const std::string& module : modules) {
    entries->push_back({module, On("gpus", *next, mesh.num_ranks(), text)});
    for (const PlanEntry& entry :
         mesh.FindAxis("tp") >= 0 ? TensorEntries(module) : std::vector<PlanEntry>()) {
      entries->push_back(entry);
    }
    if (mesh.FindAxis("dp") >= 0) entries->push_back({module, DataParallel("dp")});
    if (mesh.FindAxis("fs") >= 0) entries->push_back({module, FullyShard("fs")});
  }
  *next += mesh.num_ranks();
}

}  // namespace

PerceptionPlan MakePerceptionPlan(const PerceptionMeshes& meshes) {
  std::vector<PlanEntry> entries;
  int64_t num_ranks = 0;
  AddPart({"camera"}, meshes.camera, &num_ranks, &entries);
  AddPart({"lidar"}, meshes.lidar, &num_ranks, &entries);
  AddPart({"fusion", "heads"}, meshes.fusion, &num_ranks, &entries);
  return {.mesh = DeviceMesh({{"gpus", num_ranks}}), .plan = Plan(std::move(entries))};
}

}  // namespace weft
