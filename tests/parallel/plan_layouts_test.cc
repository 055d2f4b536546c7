// The four layouts that each family of data parallelism gives a parameter, and the units that are gathered together.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/gpt.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "tests/message_of.h"

namespace weft {
namespace {

class Net : public Module {
 public:
  Parameter scale{this, "scale", {.shape = {}}};
  Linear up{this, "up", 6, 8};
  Linear down{this, "down", 8, 6};
  LayerNorm norm{this, "norm", 6};
};

// A parameter without its data-parallel splits, and with them.
struct Row {
  const char* path;
  const char* whole;
  const char* split;
};

struct MeshCase {
  const char* mesh;
  const char* axis;  // of the data-parallel style
  std::vector<Row> rows;
};

std::vector<MeshCase> MeshCases() {
  return {
      {
          "dp=2",
          "dp",
          {
              {"scale", "[]", "[]"},
              {"up.weight", "[-, -]", "[dp, -]"},  // [6, 8]
              {"up.bias", "[-]", "[dp]"},
              {"down.weight", "[-, -]", "[dp, -]"},  // [8, 6]
              {"down.bias", "[-]", "[dp]"},
              {"norm.weight", "[-]", "[dp]"},
              {"norm.bias", "[-]", "[dp]"},
          },
      },
      {
          "dp=3",
          "dp",
          {
              {"scale", "[]", "[]"},
              {"up.weight", "[-, -]", "[dp, -]"},
              {"up.bias", "[-]", "[dp]"},            // 8 over 3: uneven
              {"down.weight", "[-, -]", "[-, dp]"},  // 3 divides 6, not 8
              {"down.bias", "[-]", "[dp]"},
              {"norm.weight", "[-]", "[dp]"},
              {"norm.bias", "[-]", "[dp]"},
          },
      },
      {
          "dp=2, tp=2",
          "dp",
          {
              {"scale", "[]", "[]"},
              {"up.weight", "[-, tp]", "[dp, tp]"},
              {"up.bias", "[tp]", "[tp.dp]"},          // there is no other dim
              {"down.weight", "[tp, -]", "[tp, dp]"},  // 2 divides what tp leaves of dim 0, but tp has it
              {"down.bias", "[-]", "[dp]"},
              {"norm.weight", "[-]", "[dp]"},
              {"norm.bias", "[-]", "[dp]"},
          },
      },
      {
          "replica=2, shard=2",
          "shard",
          {
              {"scale", "[]", "[]"},
              {"up.weight", "[-, -]", "[shard, -]"},
              {"up.bias", "[-]", "[shard]"},
              {"down.weight", "[-, -]", "[shard, -]"},
              {"down.bias", "[-]", "[shard]"},
              {"norm.weight", "[-]", "[shard]"},
              {"norm.bias", "[-]", "[shard]"},
          },
      },
  };
}

struct Family {
  const char* name;
  Plan plan;
  SplitColumns columns;
  bool accumulates_unreduced;
};

std::vector<Family> Families(const std::string& axis) {
  const bool two_levels = axis == "shard";
  const Plan replicas = two_levels ? Plan{{"", DataParallel("replica")}} : Plan();
  return {
      {"ddp", Plan{{"", DataParallel(axis)}}.Merge(replicas), {}, true},
      {
          "zero1",
          Plan{{"", DataParallel(axis, {.shard_state = true})}}.Merge(replicas),
          {.gradient = true, .state = true},
          true,
      },
      {
          "zero2",
          Plan{{"", DataParallel(axis, {.shard_gradient = true})}}.Merge(replicas),
          {.gradient = true, .state = true},
          false,
      },
      {
          two_levels ? "hsdp" : "fsdp",
          Plan{{"", FullyShard(axis)}}.Merge(replicas),
          {.at_rest = true, .gradient = true, .state = true},
          false,
      },
  };
}

TEST(PlanLayoutsTest, EveryFamilyIsARowOfTheTable) {
  for (const MeshCase& mesh_case : MeshCases()) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_case.mesh);
    Plan tensor_parallel;
    if (mesh.FindAxis("tp") >= 0)
      tensor_parallel = {{"up", ColumnParallel("tp")}, {"down", RowParallel("tp")}};
    for (const Family& family : Families(mesh_case.axis)) {
      Net net;
      const ResolvedPlan resolved = ResolvePlan(net, mesh, tensor_parallel.Merge(family.plan));
      ASSERT_EQ(resolved.parameters.size(), mesh_case.rows.size());
      for (size_t i = 0; i < mesh_case.rows.size(); ++i) {
        const Row& row = mesh_case.rows[i];
        const ResolvedParameter& parameter = resolved.parameters[i];
        const std::string where = absl::StrCat(family.name, " on ", mesh_case.mesh, ": ", row.path);
        const auto expected = [&](bool split) { return std::string(split ? row.split : row.whole); };
        EXPECT_EQ(parameter.path, row.path);
        EXPECT_EQ(parameter.layouts.at_rest.ToString(mesh), expected(family.columns.at_rest)) << where;
        EXPECT_EQ(parameter.layouts.compute.ToString(mesh), row.whole) << where;
        ASSERT_TRUE(parameter.layouts.gradient && parameter.layouts.state) << where;
        EXPECT_EQ(parameter.layouts.gradient->ToString(mesh), expected(family.columns.gradient)) << where;
        EXPECT_EQ(parameter.layouts.state->ToString(mesh), expected(family.columns.state)) << where;
        EXPECT_EQ(parameter.layouts.accumulates_unreduced, family.accumulates_unreduced) << where;
      }
    }
  }
}

// "at rest | state".
std::string RestAndState(const Shape& shape, const Plan& plan) {
  class One : public Module {
   public:
    explicit One(const Shape& shape) : weight(this, "weight", {.shape = shape}) {}
    Parameter weight;
  };
  One model(shape);
  const DeviceMesh mesh = DeviceMesh::Parse("a=2, b=2");
  const ParameterLayouts layouts = ResolvePlan(model, mesh, plan).parameters[0].layouts;
  EXPECT_EQ(layouts.gradient, layouts.state);
  return absl::StrCat(layouts.at_rest.ToString(mesh), " | ", layouts.state->ToString(mesh));
}

TEST(PlanLayoutsTest, StatesOfTwoAxes) {
  const Style state_a = DataParallel("a", {.shard_state = true});
  const Style state_b = DataParallel("b", {.shard_state = true});
  EXPECT_EQ(RestAndState({4, 4}, {{"", state_a}, {"", state_b}}), "[-, -] | [a, b]");
  EXPECT_EQ(RestAndState({8}, {{"", state_a}, {"", state_b}}), "[-] | [a.b]");
  // State is a part of what the rank holds, whatever the order of the entries.
  EXPECT_EQ(RestAndState({8}, {{"", state_a}, {"", FullyShard("b")}}), "[b] | [b.a]");
  EXPECT_EQ(RestAndState({8}, {{"", FullyShard("b")}, {"", state_a}}), "[b] | [b.a]");
  EXPECT_EQ(RestAndState({8, 8}, {{"", state_a}, {"", FullyShard("b", {.dim = 1})}}), "[-, b] | [a, b]");
}

TEST(PlanLayoutsTest, AParameterIsTheInnermostEntrys) {
  Net net;
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  const ResolvedPlan resolved =
      ResolvePlan(net, mesh, {{"", DataParallel("dp")}, {"up", DataParallel("dp", {.shard_state = true})}});
  for (const ResolvedParameter& parameter : resolved.parameters) {
    const bool inner = parameter.path.starts_with("up.");
    EXPECT_EQ(!parameter.layouts.state->IsFullyReplicated(), inner) << parameter.path;
    EXPECT_EQ(parameter.styles.size(), 1u) << parameter.path;
  }
}

TEST(PlanLayoutsTest, IgnoredParametersStayWhole) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const Plan plan = {
      {"up", ColumnParallel("tp")},
      {"", FullyShard("dp")},
      {"up", Ignore()},
      {"norm.bias", Ignore()},
  };
  Net net;
  const ResolvedPlan resolved = ResolvePlan(net, mesh, plan);
  std::map<std::string, std::string> at_rest;
  for (const ResolvedParameter& parameter : resolved.parameters) {
    at_rest[parameter.path] = parameter.layouts.at_rest.ToString(mesh);
  }
  EXPECT_EQ(at_rest.at("up.weight"), "[-, tp]");
  EXPECT_EQ(at_rest.at("up.bias"), "[tp]");
  EXPECT_EQ(at_rest.at("norm.bias"), "[-]");
  EXPECT_EQ(at_rest.at("norm.weight"), "[dp]");
  EXPECT_TRUE(resolved.parameters[1].layouts.accumulates_unreduced);
  // up.weight and up.bias, norm.bias, and the scalar, which rests whole, are in no unit.
  EXPECT_EQ(resolved.units, (std::vector<ResolvedUnit>{{.path = "", .parameters = {3, 4, 5}}}));
  EXPECT_EQ(resolved.parameters[1].styles, (std::vector<Style>{ColumnParallel("tp"), Ignore()}));
}

TEST(PlanLayoutsTest, EntriesMayNameParameters) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const auto layouts = [&](const Plan& plan, const std::string& path) {
    Net net;
    for (const ResolvedParameter& parameter : ResolvePlan(net, mesh, plan).parameters) {
      if (parameter.path == path) return parameter.layouts.at_rest.ToString(mesh);
    }
    return std::string("no such parameter");
  };
  EXPECT_EQ(layouts({{"up.bias", ColumnParallel("tp")}}, "up.bias"), "[tp]");
  EXPECT_EQ(layouts({{"up.bias", ColumnParallel("tp")}}, "up.weight"), "[-, -]");
  // The parameter's own entry is the innermost.
  const Plan plan = {{"", FullyShard("dp")},
                     {"*.weight", FullyShard("dp", {.reshard = Reshard::kNever, .dim = -1})}};
  EXPECT_EQ(layouts(plan, "up.weight"), "[-, dp]");
  EXPECT_EQ(layouts(plan, "up.bias"), "[dp]");
  // It is gathered with the unit around it, or with its module where there is none.
  Net net;
  EXPECT_EQ(ResolvePlan(net, mesh, plan).units,
            (std::vector<ResolvedUnit>{{.path = "", .parameters = {1, 2, 3, 4, 5, 6}}}));
  EXPECT_EQ(ResolvePlan(net, mesh, {plan.entries()[1]}).units,
            (std::vector<ResolvedUnit>{
                {.path = "up", .parameters = {1}, .reshard = Reshard::kNever},
                {.path = "down", .parameters = {3}, .reshard = Reshard::kNever},
                {.path = "norm", .parameters = {5}, .reshard = Reshard::kNever},
            }));
  // What an entry says of the unit goes before what one says of a parameter in it, whichever comes last.
  const PlanEntry last = {"norm.bias", FullyShard("dp", {.reshard = Reshard::kNever})};
  EXPECT_EQ(ResolvePlan(net, mesh, {plan.entries()[0], last}).units[0].reshard, Reshard::kAlways);
  EXPECT_EQ(ResolvePlan(net, mesh, {last, plan.entries()[0]}).units[0].reshard, Reshard::kAlways);
  const auto message = [&](const Plan& plan) {
    return InvalidArgumentMessage([&] { ResolvePlan(net, mesh, plan); });
  };
  EXPECT_EQ(message({{"norm.bias", SequenceParallel("tp")}}),
            "plan entry \"norm.bias\": SequenceParallel(tp): this style is for modules; the path names a "
            "parameter, 'norm.bias'");
  EXPECT_EQ(message({{"norm.bias", ColumnParallel("tp")}}),
            "plan entry \"norm.bias\": ColumnParallel(tp): parameter 'norm.bias' declares no dim that this "
            "style splits: it declares none");
  EXPECT_EQ(
      message({{"up.bais", ColumnParallel("tp")}}),
      "plan entry \"up.bais\": ColumnParallel(tp): no module or parameter matches this path; the nearest "
      "is 'up.bias'");
}

// "path: parameter parameter ..." for each unit.
std::vector<std::string> Units(Module& model, const Plan& plan) {
  const ResolvedPlan resolved = ResolvePlan(model, DeviceMesh::Parse("dp=2, ep=2"), plan);
  std::vector<std::string> units;
  for (const ResolvedUnit& unit : resolved.units) {
    std::string text = unit.path + ":";
    for (int parameter : unit.parameters) {
      absl::string_view path = resolved.parameters[parameter].path;
      if (!unit.path.empty()) path.remove_prefix(unit.path.size() + 1);
      absl::StrAppend(&text, " ", path);
    }
    units.push_back(unit.reshard == Reshard::kNever ? text + " (never)" : text);
  }
  return units;
}

TEST(UnitsTest, TheInnermostModuleHasAParameter) {
  Net net;
  EXPECT_EQ(Units(net, {{"up", FullyShard("dp")}, {"", FullyShard("dp", {.reshard = Reshard::kNever})}}),
            (std::vector<std::string>{
                ": down.weight down.bias norm.weight norm.bias (never)",
                "up: weight bias",
            }));
  // Of two axes the innermost, whichever entry is first.
  const Plan two = {{"up", FullyShard("dp", {.reshard = Reshard::kNever})}, {"", FullyShard("ep")}};
  const std::vector<std::string> expected = {
      ": down.weight down.bias norm.weight norm.bias",
      "up: weight bias (never)",
  };
  EXPECT_EQ(Units(net, two), expected);
  EXPECT_EQ(Units(net, {two.entries()[1], two.entries()[0]}), expected);
  // What rests whole needs no unit.
  EXPECT_EQ(Units(net, {{"", DataParallel("dp", {.shard_gradient = true})}}), std::vector<std::string>{});
}

// Elements below: wte 8224, blocks.0 12704 {ln_1 64, attn 4224 {qkv 3168, proj 1056}, ln_2 64, mlp 8352 {up 4224,
// down 4128}}, ln_f 64, head 8224; wpe, 512, is the root's.
TEST(UnitsTest, WrapsBySize) {
  Gpt gpt({.vocabulary = 257, .context = 16, .layers = 1, .heads = 4, .dim = 32});
  const auto paths = [&](const Plan& plan) {
    std::vector<std::string> paths;
    for (const ResolvedUnit& unit : ResolvePlan(gpt, DeviceMesh::Parse("dp=2"), plan).units) {
      paths.push_back(unit.path);
    }
    return paths;
  };
  const auto wrapped = [&](int64_t from) { return paths({{"", FullyShard("dp", {.wrap_from = from})}}); };
  using Paths = std::vector<std::string>;
  EXPECT_EQ(wrapped(12705), Paths{""});
  EXPECT_EQ(wrapped(12704), (Paths{"", "blocks.0"}));
  EXPECT_EQ(wrapped(8352), (Paths{"", "blocks.0.mlp"}));
  EXPECT_EQ(wrapped(5000), (Paths{"", "wte", "blocks.0.mlp", "head"}));
  EXPECT_EQ(wrapped(4000),
            (Paths{"", "wte", "blocks.0.attn", "blocks.0.mlp.up", "blocks.0.mlp.down", "head"}));
  // Counts what no inner unit has: without its mlp a block has 4352.
  EXPECT_EQ(paths({{"blocks.0.mlp", FullyShard("dp")}, {"", FullyShard("dp", {.wrap_from = 8353})}}),
            (Paths{"", "blocks.0.mlp"}));
  EXPECT_EQ(paths({{"blocks.0.mlp", FullyShard("dp")}, {"", FullyShard("dp", {.wrap_from = 4300})}}),
            (Paths{"", "wte", "blocks.0", "blocks.0.mlp", "head"}));
  // And not what is left out.
  EXPECT_EQ(paths({{"head", Ignore()}, {"", FullyShard("dp", {.wrap_from = 8224})}}),
            (Paths{"", "wte", "blocks.0.mlp"}));
  // A wrapped module holds all below it, the entry's module the rest; both reshard as the entry says.
  EXPECT_EQ(Units(gpt, {{"blocks.*", FullyShard("dp", {.reshard = Reshard::kNever, .wrap_from = 5000})}}),
            (Paths{
                "blocks.0: ln_1.weight ln_1.bias attn.qkv.weight attn.qkv.bias attn.proj.weight "
                "attn.proj.bias ln_2.weight ln_2.bias (never)",
                "blocks.0.mlp: up.weight up.bias down.weight down.bias (never)",
            }));
}

TEST(UnitsTest, WrapsByType) {
  Gpt gpt({.vocabulary = 257, .context = 16, .layers = 2, .heads = 4, .dim = 32});
  const auto paths = [&](const std::string& type) {
    std::vector<std::string> paths;
    for (const ResolvedUnit& unit :
         ResolvePlan(gpt, DeviceMesh::Parse("dp=2"), {{"", FullyShard("dp", {.wrap = type})}}).units) {
      paths.push_back(unit.path);
    }
    return paths;
  };
  using Paths = std::vector<std::string>;
  EXPECT_EQ(paths("GptBlock"), (Paths{"", "blocks.0", "blocks.1"}));
  EXPECT_EQ(paths("Mlp"), (Paths{"", "blocks.0.mlp", "blocks.1.mlp"}));
  EXPECT_EQ(paths("LayerNorm"),
            (Paths{"", "ln_f", "blocks.0.ln_1", "blocks.0.ln_2", "blocks.1.ln_1", "blocks.1.ln_2"}));
  EXPECT_EQ(
      InvalidArgumentMessage([&] { paths("Block"); }),
      "plan entry \"\": FullyShard(dp, wrap=Block): no module below is of type 'Block'; expected one of "
      "CausalSelfAttention, Embedding, Gpt, GptBlock, LayerNorm, Linear, Mlp");
}

TEST(UnitsTest, RestsInASmallerGroup) {
  Gpt gpt({.vocabulary = 257, .context = 16, .layers = 1, .heads = 4, .dim = 32});
  const auto resolve = [&](const Plan& plan) { return ResolvePlan(gpt, DeviceMesh::Parse("dp=6"), plan); };
  const ResolvedPlan plan =
      resolve({{"blocks.*", FullyShard("dp", {.reshard_to = 3})}, {"", FullyShard("dp")}});
  EXPECT_EQ(plan.units[0].reshard_to, 0);
  EXPECT_EQ(plan.units[0].reshard_axis, -1);
  EXPECT_EQ(plan.units[1].reshard_to, 3);
  EXPECT_EQ(plan.units[1].reshard_axis, 0);
  for (const int64_t size : {4, 6}) {
    EXPECT_EQ(
        InvalidArgumentMessage([&] {
          resolve({{"", FullyShard("dp", {.reshard_to = size})}});
        }),
        absl::StrCat("plan entry \"\": FullyShard(dp, reshard_to=", size,
                     "): reshard_to: expected a divisor of axis 'dp' (6 ranks) above 1 and below it, got ",
                     size));
  }
  EXPECT_EQ(
      InvalidArgumentMessage([&] {
        resolve({{"", FullyShard("dp", {.reshard = Reshard::kNever, .reshard_to = 2})}});
      }),
      "plan entry \"\": FullyShard(dp, reshard=never, reshard_to=2): reshard_to is of units that reshard: "
      "expected none with reshard=never");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              resolve({{"", FullyShard("dp", {.wrap = "Mlp", .wrap_from = 5})}});
            }),
            "plan entry \"\": FullyShard(dp, wrap=Mlp, wrap_from=5): wrap and wrap_from: expected one of "
            "them, got both");
}

TEST(UnitsTest, StagesGatherThemAsTheScheduleSays) {
  Gpt gpt({.vocabulary = 257, .context = 16, .layers = 2, .heads = 4, .dim = 32});
  const auto message = [&](const FullyShardOptions& of, int prefetch) {
    const Plan plan({{"", FullyShard("dp", of)}, {"blocks.*", Pipeline("pp")}}, {.prefetch = prefetch});
    return InvalidArgumentMessage([&] { ResolvePlan(gpt, DeviceMesh::Parse("pp=2,dp=4"), plan); });
  };
  EXPECT_EQ(message({.reshard = Reshard::kNever}, 1), "no error");
  EXPECT_EQ(message({}, 2),
            "scheduler, field \"prefetch\": a pipeline's schedule says when units are gathered: expected "
            "none with Pipeline, got 2");
  EXPECT_EQ(message({.reshard_to = 2}, 1),
            "plan entry \"\": FullyShard(dp, reshard_to=2): reshard_to: a pipeline's schedule gathers "
            "whole units: expected none with Pipeline");
}

}  // namespace
}  // namespace weft
