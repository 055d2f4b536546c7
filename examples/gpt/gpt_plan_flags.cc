#include "examples/gpt/gpt_plan_flags.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "examples/flag_checks.h"
#include "examples/gpt/gpt_plan.h"
#include "examples/schedule_flag.h"
#include "mesh/mesh_choice.h"
#include "parallel/pipeline/schedule_csv.h"
#include "parallel/pipeline/stages.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/flags.h"
#include "runtime/data/token_file.h"

ABSL_FLAG(std::string, mesh, "dp=2,tp=2",
          "axes and their sizes; empty: a single rank. One size may be auto: what fits the ranks that a "
          "launcher has "
          "started, or the cores of this machine; ranks that are left over are spares");
ABSL_FLAG(std::string, mesh_choices, "",
          "instead of --mesh: several, separated by ';'; the largest runs that fits the ranks, as with auto");
ABSL_FLAG(std::string, plan, "ddp",
          "what axis dp does: ddp, zero1, zero2 or fsdp; hsdp (axes replica and shard); or a FILE.json that "
          "holds a whole plan");
ABSL_FLAG(
    std::string, schedule, "1f1b",
    "of the stages along axis pp: 1f1b, gpipe, interleaved, looped_bfs, zb_h1, zb_h2, interleaved_zb, zbv, "
    "dualpipev, v_half, v_min, or FILE.csv (docs/pipeline.md)");
ABSL_FLAG(int64_t, chunks, 0,
          "stages of each rank along pp, where the schedule leaves the choice; 0: its own number");
ABSL_FLAG(
    std::string, segment_costs, "counted",
    "what the blocks are divided among the stages by: counted (the products' sizes), measured (forward and "
    "backward of each segment of the model, once at the start), or numbers with commas, one per segment, "
    "as a run that measures prints them");
ABSL_FLAG(double, bucket_mb, 25, "MiB of a rank's gradients, as they are summed, that move together");
ABSL_FLAG(int64_t, prefetch, 1,
          "units whose parameters are gathered ahead of their use, of fsdp and hsdp; with an axis pp the "
          "schedule says so");
ABSL_FLAG(
    std::string, reshard, "always",
    "of fsdp and hsdp: always (parameters are gathered for forward and again for backward), never (once a "
    "step, kept until the update), or N (in between they rest within groups of N ranks; not with an axis "
    "pp)");
ABSL_FLAG(std::string, recompute, "auto",
          "what of the blocks backward computes again: none, full (a block keeps its input alone), "
          "selective (it also keeps what attention and the products before GELU make), or auto (none; where "
          "the ranks run out of memory they start again with selective, then full)");
ABSL_FLAG(std::vector<std::string>, offload, {},
          "what lies in memory of the host beside a GPU, or in a file beside the CPU's: state (the "
          "optimizer's, and "
          "gradients), parameters (and their state), activations; a list with commas");
ABSL_FLAG(std::string, communication, "none",
          "how gradients are summed over ranks along dp, replica and shard: none (exactly), bf16, f16, int8, "
          "onebit, \"topk(0.01)\", \"randomk(0.01)\", \"powersgd(2)\" (docs/compression.md)");
ABSL_FLAG(bool, overlap, true, "communication of parameters and gradients runs beside computing");
ABSL_FLAG(bool, lane_priority, false,
          "where communication shares a link, parameters go before gradients, a MiB at a time, and what "
          "computing waits for before both; of ranks whose bytes the CPU moves");
ABSL_FLAG(bool, sequence_parallel, false,
          "split activations between the sharded products over the sequence, on axis tp");

namespace weft {
namespace {

FullyShardOptions ReshardFromFlags() {
  const std::string reshard = absl::GetFlag(FLAGS_reshard);
  if (reshard == "always") return {};
  if (reshard == "never") return {.reshard = Reshard::kNever};
  int64_t size = 0;
  WEFT_REQUIRE(absl::SimpleAtoi(reshard, &size) && size >= 2, "--reshard=", reshard,
               ": expected always, never or a whole number of 2 or more");
  return {.reshard_to = size};
}

// Whether one of --mesh_choices cannot be divided into groups of --reshard=N. Of --mesh, ResolvePlan says so.
bool LacksGroups(const DeviceMesh& mesh) {
  int64_t group = 0;
  const int axis = mesh.FindAxis(absl::GetFlag(FLAGS_plan) == "hsdp" ? "shard" : "dp");
  const bool asks = absl::SimpleAtoi(absl::GetFlag(FLAGS_reshard), &group) && group >= 2;
  if (axis < 0 || !asks || absl::GetFlag(FLAGS_mesh_choices).empty()) return false;
  return group >= mesh.axis_size(axis) || mesh.axis_size(axis) % group != 0;
}

// A flag that was given and means nothing.
struct UnusedFlag {
  absl::string_view name;
  std::string why;  // what is said of it
};

std::vector<UnusedFlag> UnusedOn(const DeviceMesh& mesh) {
  std::vector<UnusedFlag> unused;
  const auto add = [&](absl::string_view name, const std::string& why) {
    unused.push_back({name, absl::StrCat("--", name, why)});
  };
  const auto value = [](absl::string_view name) { return absl::StrCat("=", FlagNamed(name).CurrentValue()); };
  const auto has = [&](absl::string_view axis) { return mesh.FindAxis(axis) >= 0; };
  if (has("pp")) {
    if (IsGiven("prefetch")) {
      add("prefetch",
          absl::StrCat(value("prefetch"),
                       ": expected none with an axis pp: the schedule says when units are gathered"));
    }
    if (IsGiven("reshard") && absl::GetFlag(FLAGS_reshard) != "never") {
      add("reshard",
          absl::StrCat(value("reshard"),
                       ": expected always or never with an axis pp: the schedule gathers whole units"));
    }
  } else {
    for (const absl::string_view name : {"schedule", "chunks", "segment_costs"}) {
      if (IsGiven(name)) add(name, absl::StrCat(": the mesh (", mesh.ToString(), ") has no axis pp"));
    }
    if (LacksGroups(mesh)) {
      add("reshard", absl::StrCat(value("reshard"), ": the mesh (", mesh.ToString(), ") has no such groups"));
    }
  }
  if (IsGiven("communication") && !has("dp") && !has("replica") && !has("shard")) {
    add("communication", absl::StrCat(value("communication"), ": the mesh (", mesh.ToString(),
                                      ") has no axis dp, replica or shard"));
  }
  if (IsGiven("sequence_parallel") && !has("tp")) {
    add("sequence_parallel", absl::StrCat(": the mesh (", mesh.ToString(), ") has no axis tp"));
  }
  return unused;
}

// Of --mesh_choices, another may have a use for them: UnusedFlags tells of them.
void RequireUse(const DeviceMesh& mesh, const std::vector<absl::string_view>& flags) {
  if (!absl::GetFlag(FLAGS_mesh_choices).empty()) return;
  for (const UnusedFlag& unused : UnusedOn(mesh)) {
    WEFT_REQUIRE(!absl::c_linear_search(flags, unused.name), unused.why);
  }
}

// The numbers that --segment_costs gives, if it does.
std::vector<double> SegmentCostsFromFlags() {
  const std::string flag = absl::GetFlag(FLAGS_segment_costs);
  if (flag == "counted" || MeasuresSegmentCosts()) return {};
  std::vector<double> costs;
  for (const absl::string_view word : absl::StrSplit(flag, ',')) {
    double cost = 0;
    WEFT_REQUIRE(absl::SimpleAtod(word, &cost) && std::isfinite(cost) && cost >= 0, "--segment_costs=", flag,
                 ": expected counted, measured, or numbers of 0 or more with commas");
    costs.push_back(cost);
  }
  return costs;
}

// Stages that lie as the schedule has them.
PipelineOptions StagesOf(const PipelineSchedule& schedule) {
  const int chunks = schedule.num_chunks();
  const auto lie = [&](StageOrder order) {
    return (order == StageOrder::kLoop || chunks == 2) &&
           schedule.stage_rank == StageRanks(order, schedule.num_ranks(), chunks);
  };
  WEFT_REQUIRE(lie(StageOrder::kLoop) || lie(StageOrder::kV), "--schedule: the stages of ", schedule.name,
               " lie on ranks ", absl::StrJoin(schedule.stage_rank, " "),
               ": expected one after another (0 1 0 1) or "
               "there and back (0 1 1 0)");
  return {.chunks = chunks,
          .order = lie(StageOrder::kLoop) ? StageOrder::kLoop : StageOrder::kV,
          .costs = SegmentCostsFromFlags()};
}

// What a value of --recompute says of the blocks.
Plan RecomputePlan(absl::string_view recompute) {
  if (recompute == "full") return {{"blocks.*", Recompute()}};
  if (recompute == "selective") return {{"blocks.*", Recompute({.keep = {"linear", "attention"}})}};
  return {};
}

// What --offload says of the model.
Plan OffloadFromFlags() {
  OffloadOptions options;
  for (const std::string& what : absl::GetFlag(FLAGS_offload)) {
    OneOf("offload", what, {"state", "parameters", "activations"});
    if (what == "state") options.state = true;
    if (what == "parameters") options.parameters = true;
    if (what == "activations") options.activations = true;
  }
  if (!absl::GetFlag(FLAGS_offload).empty()) return {{"", Offload(options)}};
  WEFT_REQUIRE(!IsGiven("offload_folder"), "--offload_folder=", FlagNamed("offload_folder").CurrentValue(),
               ": expected --offload, too");
  return {};
}

// What --communication says of all gradients.
Plan CommunicationFromFlags(const DeviceMesh& mesh) {
  const CommunicationMethod method = CommunicationMethod::Parse(absl::GetFlag(FLAGS_communication));
  if (method.is_none()) return {};
  RequireUse(mesh, {"communication"});
  return {{"", Communication(method.ToString())}};
}

}  // namespace

DeviceMesh MeshFromFlags(std::optional<int> launched_ranks) {
  const std::string choices = absl::GetFlag(FLAGS_mesh_choices);
  WEFT_REQUIRE(choices.empty() || !IsGiven("mesh"), "--mesh_choices=", choices,
               ": expected no --mesh beside it, got --mesh=", absl::GetFlag(FLAGS_mesh));
  return MeshOf(absl::GetFlag(FLAGS_mesh), choices, launched_ranks);
}

DeviceMesh MeshOf(const std::string& mesh, const std::string& choices, std::optional<int> launched_ranks) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int ranks = launched_ranks.value_or(cores);
  return choices.empty() ? ChooseMesh(mesh, ranks) : ChooseMeshAmong(choices, ranks);
}

bool MeshFollowsTheWorld() {
  return !absl::GetFlag(FLAGS_mesh_choices).empty() || IsAutoMesh(absl::GetFlag(FLAGS_mesh));
}

bool PlanFileUses(DType dtype) {
  const std::string plan = absl::GetFlag(FLAGS_plan);
  return absl::EndsWith(plan, ".json") && Plan::FromJson(ReadTextFile(UserPath(plan))).UsesDType(dtype);
}

std::vector<std::string> UnusedFlags(const DeviceMesh& mesh) {
  std::vector<std::string> unused;
  for (const UnusedFlag& flag : UnusedOn(mesh)) unused.push_back(flag.why);
  return unused;
}

bool MeasuresSegmentCosts() { return absl::GetFlag(FLAGS_segment_costs) == "measured"; }

std::optional<PipelineSchedule> ScheduleFromFlags(const DeviceMesh& mesh, int64_t microbatches) {
  const int axis = mesh.FindAxis("pp");
  if (axis < 0) {
    RequireUse(mesh, {"schedule", "chunks", "segment_costs"});
    WEFT_REQUIRE(!IsGiven("print_schedule"), "--print_schedule: the mesh (", mesh.ToString(),
                 ") has no axis pp");
    return std::nullopt;
  }
  const std::string name = absl::GetFlag(FLAGS_schedule);
  const auto ranks = static_cast<int>(mesh.axis_size(axis));
  if (!absl::EndsWith(name, ".csv")) {
    const int chunks = IntAtLeast(0, "chunks", absl::GetFlag(FLAGS_chunks));
    return TrainersSchedule(
        name, {.ranks = ranks, .chunks = chunks, .microbatches = static_cast<int>(microbatches)},
        ", or a FILE.csv");
  }
  WEFT_REQUIRE(!IsGiven("chunks"), "--chunks: the file says so itself (--schedule=", name, ")");
  const PipelineSchedule schedule = ReadScheduleCsv(UserPath(name));
  WEFT_REQUIRE(schedule.num_ranks() == ranks && schedule.num_microbatches == microbatches,
               "--schedule=", name, ": it is made for ", schedule.num_ranks(), " ranks and ",
               schedule.num_microbatches, " microbatches, the mesh (", mesh.ToString(), ") has ", ranks,
               " and --microbatches=", microbatches);
  CheckTrainersSchedule(name, schedule);
  return schedule;
}

std::vector<NamedPlan> PlansFromFlags(const DeviceMesh& mesh,
                                      const std::optional<PipelineSchedule>& schedule) {
  const std::string recompute = absl::GetFlag(FLAGS_recompute);
  OneOf("recompute", recompute, {"auto", "none", "full", "selective"});
  const std::string plan = absl::GetFlag(FLAGS_plan);
  // Of --mesh, GptPlan says that it lacks the axis.
  const bool has_use = mesh.FindAxis("tp") >= 0 || absl::GetFlag(FLAGS_mesh_choices).empty();
  const bool sequence_parallel = absl::GetFlag(FLAGS_sequence_parallel) && has_use;
  FullyShardOptions blocks = ReshardFromFlags();
  if (schedule || LacksGroups(mesh)) blocks.reshard_to = std::nullopt;
  if (const std::optional<DataPlan> data_plan = ParseDataPlan(plan)) {
    Plan made = GptPlan(mesh, *data_plan, sequence_parallel, blocks,
                        schedule ? std::optional(StagesOf(*schedule)) : std::nullopt);
    SchedulerChoices scheduler;
    const double bucket_mb = InRange(1e-6, 1e6, "bucket_mb", absl::GetFlag(FLAGS_bucket_mb));
    const int64_t prefetch = AtLeast(0, "prefetch", absl::GetFlag(FLAGS_prefetch));
    for (const absl::string_view flag : {"prefetch", "reshard"}) {
      const bool is_sharded = *data_plan == DataPlan::kFsdp || *data_plan == DataPlan::kHsdp;
      WEFT_REQUIRE(is_sharded || !IsGiven(flag), "--", flag, "=", FlagNamed(flag).CurrentValue(),
                   ": expected --plan=fsdp or hsdp, got --plan=", plan);
    }
    RequireUse(mesh, {"prefetch", "reshard"});
    if (IsGiven("bucket_mb")) scheduler.bucket_mb = bucket_mb;
    // More than there are units is all of them.
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    if (IsGiven("prefetch") && !schedule) scheduler.prefetch = static_cast<int>(std::min(prefetch, kMost));
    if (IsGiven("overlap")) scheduler.overlap = absl::GetFlag(FLAGS_overlap);
    if (IsGiven("lane_priority")) scheduler.lane_priority = absl::GetFlag(FLAGS_lane_priority);
    made.set_scheduler(scheduler);
    std::vector<NamedPlan> plans;
    for (const absl::string_view name : {"none", "selective", "full"}) {
      if (recompute != "auto" && recompute != name) continue;
      plans.push_back(
          {absl::StrCat("--recompute=", name),
           made.Merge(RecomputePlan(name)).Merge(OffloadFromFlags()).Merge(CommunicationFromFlags(mesh))});
    }
    return plans;
  }
  WEFT_REQUIRE(absl::EndsWith(plan, ".json"), "--plan=", plan,
               ": expected ddp, zero1, zero2, fsdp, hsdp or a FILE.json");
  for (const absl::string_view flag :
       {"sequence_parallel", "bucket_mb", "prefetch", "reshard", "overlap", "lane_priority", "recompute",
        "offload", "communication", "segment_costs"}) {
    WEFT_REQUIRE(!IsGiven(flag), "--", flag, ": a plan of your own says so itself (--plan=", plan, ")");
  }
  Plan own = Plan::FromJson(ReadTextFile(UserPath(plan)));
  bool is_cut = false;
  for (const PlanEntry& entry : own.entries()) {
    if (!FindStyle(entry.style.name).makes_stages) continue;
    is_cut = true;
    WEFT_REQUIRE(entry.style.axis == "pp", "--plan=", plan, ": it cuts the model along axis '",
                 entry.style.axis, "'; schedules run along an axis 'pp'");
  }
  WEFT_REQUIRE(is_cut || !schedule, "--plan=", plan, ": the mesh (", mesh.ToString(),
               ") has an axis pp, along which no entry cuts the model (Pipeline)");
  return {{absl::StrCat("--plan=", plan), own}};
}

}  // namespace weft
