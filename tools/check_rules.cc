// Holds what every op says about sharding to its kernel (tools/rules/rule_check.h).
//
//   bazel run //tools:check_rules                                # all ops: every single axis, drawn compositions
//   bazel run //tools:check_rules -- --op=softmax --exhaustive   # one op, everything
//   bazel run //tools:check_rules -- --shard=1/4                 # a quarter of the ops
//
// Progress goes to stderr. stdout lists each wrong and each missing strategy; its last line is
//   {"ops":70,"cases":250000,"wrong":0,"missing":123,"refused":45}
// Exits 1 if anything is wrong.

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "ops/op/kernel.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/base/json_text.h"
#include "runtime/device/device_backend.h"
#include "tools/rules/rule_check.h"

ABSL_FLAG(std::string, op, "", "the op to check, by name; empty for every op");
ABSL_FLAG(std::string, shard, "",
          "K/N: every N-th op from the K-th on, for N processes that check all of them at once");
ABSL_FLAG(
    bool, exhaustive, false,
    "all compositions, tuples, special values and pairs of odd extents, where a draw is taken otherwise");
ABSL_FLAG(int64_t, seed, 1, "of whatever is drawn");
ABSL_FLAG(std::string, device, "cpu", "whose kernels: cpu, cuda (a GPU; build with --config=cuda) or auto");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object a line and nothing else on stdout");

namespace {

using Json = nlohmann::ordered_json;
using weft::OpDef;
using weft::RuleReport;

weft::FlagsUsage Usage() {
  return {.summary =
              "Runs every op's kernel alone on pieces and compares with one rank: which sharding\n"
              "strategies are wrong, and which are missing. Then the public call and its gradients.",
          .groups = {{"What to check", {"op", "shard", "exhaustive", "seed", "device"}},
                     {"Output", {"log_format"}}},
          .examples = {"bazel run //tools:check_rules", "bazel run //tools:check_rules -- --op=contract",
                       "bazel run //tools:check_rules -- --exhaustive --log_format=json"}};
}

// Errors: InvalidArgument for a name that no op has.
std::vector<const OpDef*> OpsToCheck(const std::string& name) {
  const std::vector<const OpDef*> all = weft::RegisteredOps();
  if (name.empty()) return all;
  std::string names;
  for (const OpDef* op : all) {
    if (op->name() == name) return {op};
    absl::StrAppend(&names, names.empty() ? "" : ", ", op->name());
  }
  weft::ThrowInvalidArgument("--op: there is no op '", name, "'; ops are ", names);
}

// Errors: InvalidArgument for what is not K/N with K from 1 to N.
std::vector<const OpDef*> ShardOf(const std::vector<const OpDef*>& ops, const std::string& shard) {
  if (shard.empty()) return ops;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(shard, absl::MaxSplits('/', 1));
  size_t first = 0;
  size_t count = 0;
  WEFT_REQUIRE(absl::SimpleAtoi(parts.first, &first) && absl::SimpleAtoi(parts.second, &count) &&
                   first >= 1 && first <= count,
               "--shard: expected K/N, K from 1 to N, got '", shard, "'");
  std::vector<const OpDef*> own;
  for (size_t i = first - 1; i < ops.size(); i += count) own.push_back(ops[i]);
  return own;
}

void PrintJson(const Json& object) { std::puts(weft::JsonText(object).c_str()); }

void PrintFindings(const RuleReport& report, bool json) {
  for (const weft::WrongStrategy& wrong : report.wrong) {
    if (json) {
      PrintJson({{"wrong", wrong.strategy},
                 {"op", wrong.op},
                 {"check", wrong.check},
                 {"call", wrong.call},
                 {"difference", wrong.difference}});
    } else {
      std::puts(wrong.ToString().c_str());
    }
  }
  for (const weft::MissingStrategy& missing : report.missing) {
    if (json) {
      Json object = {{"missing", missing.strategy},
                     {"op", missing.op},
                     {"rule", missing.rule},
                     {"samples", missing.samples},
                     {"samples_tried", missing.samples_tried}};
      if (!missing.reason.empty()) object["reason"] = missing.reason;
      PrintJson(object);
    } else {
      const bool always = missing.samples == missing.samples_tried;
      absl::PrintF(
          "missing: %s, rule %s: %s%s%s\n", missing.op, missing.rule, missing.strategy,
          always ? "" : absl::StrCat(" (", missing.samples, " of ", missing.samples_tried, " samples)"),
          missing.reason.empty() ? "" : absl::StrCat(" (deliberate: ", missing.reason, ")"));
    }
  }
  std::fflush(stdout);
}

// What was drawn from spaces that were not walked whole.
void PrintCoverage(const RuleReport& report, bool json) {
  if (json) {
    PrintJson({{"compositions_tried", report.compositions_tried},
               {"compositions", report.compositions},
               {"missing_tuples_tried", report.missing_tried},
               {"missing_tuples", report.missing_tuples}});
    return;
  }
  absl::PrintF("tried %d of %d compositions, and %d of %d tuples for missing strategies\n",
               report.compositions_tried, report.compositions, report.missing_tried, report.missing_tuples);
}

int CheckRules() {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  WEFT_REQUIRE(format == "text" || format == "json", "--log_format: expected text or json, got '", format,
               "'");
  const bool json = format == "json";
  const std::vector<const OpDef*> ops =
      ShardOf(OpsToCheck(absl::GetFlag(FLAGS_op)), absl::GetFlag(FLAGS_shard));
  const weft::DeviceType device = weft::ParseDevice(absl::GetFlag(FLAGS_device));
  const absl::Time begin = absl::Now();
  RuleReport total;
  for (size_t i = 0; i < ops.size(); ++i) {
    const absl::Time op_begin = absl::Now();
    const RuleReport report =
        weft::CheckOp(*ops[i], {.exhaustive = absl::GetFlag(FLAGS_exhaustive),
                                .seed = static_cast<uint64_t>(absl::GetFlag(FLAGS_seed)),
                                .device = device});
    total.Add(report);
    PrintFindings(report, json);
    const double spent = absl::ToDoubleSeconds(absl::Now() - begin);
    absl::FPrintF(stderr, "[%d/%d] %s: %d cases, %d wrong, %d missing, %.1f s; about %.0f s left\n", i + 1,
                  ops.size(), ops[i]->name(), report.cases, report.wrong.size(), report.missing.size(),
                  absl::ToDoubleSeconds(absl::Now() - op_begin),
                  spent / static_cast<double>(i + 1) * static_cast<double>(ops.size() - i - 1));
  }
  PrintCoverage(total, json);
  PrintJson({{"ops", total.ops},
             {"cases", total.cases},
             {"wrong", total.wrong.size()},
             {"missing", total.missing.size()},
             {"refused", total.refused}});
  return total.wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return weft::RunMain(argc, argv, Usage(), CheckRules); }
