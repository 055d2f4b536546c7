#include "dtensor/inspect/comm_report.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace weft {
namespace {

using Key = std::tuple<std::string, std::string, std::string, std::string>;

Key KeyOf(const CommRow& row) { return {row.kind, row.axes, row.purpose, row.path}; }

// One row per line, fields by tab: none of them holds either.
std::string ToText(const CommReport& report) {
  std::string text;
  for (const CommRow& row : report.rows) {
    absl::StrAppend(&text, row.kind, "\t", row.axes, "\t", row.purpose, "\t", row.path, "\t", row.calls, "\t",
                    row.num_bytes, "\n");
  }
  return text;
}

CommRow RowFromText(absl::string_view line) {
  const std::vector<std::string> fields = absl::StrSplit(line, '\t');
  CommRow row;
  WEFT_CHECK(fields.size() == 6 && absl::SimpleAtoi(fields[4], &row.calls) &&
                 absl::SimpleAtoi(fields[5], &row.num_bytes),
             "communication report line '", line, "'");
  row.kind = fields[0];
  row.axes = fields[1];
  row.purpose = fields[2];
  row.path = fields[3];
  return row;
}

// The texts of all ranks of the mesh, one after another.
std::string AllGatherText(MeshContext& context, const std::string& text) {
  AxisList axes(context.mesh().num_axes());
  std::iota(axes.begin(), axes.end(), 0);
  Communicator& group = context.Group(axes);
  const std::shared_ptr<Allocator>& allocator = context.allocator();
  const int64_t length = static_cast<int64_t>(text.size());
  const Tensor lengths = Tensor::Empty(allocator, DType::kI64, {group.size()});
  const std::vector<int64_t> ones(group.size(), 1);
  const CommOptions options = {.tag = {static_cast<uint8_t>(Purpose::kMetric), /*path_id=*/0}};
  group.AllGather(Tensor::FromValues<int64_t>({1}, {length}, allocator), lengths, ones, options).Wait();
  const std::vector<int64_t> counts = lengths.ToVector<int64_t>();
  const Tensor all =
      Tensor::Empty(allocator, DType::kU8, {std::accumulate(counts.begin(), counts.end(), int64_t{0})});
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  group.AllGather(Tensor::FromValues<uint8_t>({length}, bytes, allocator), all, counts, options).Wait();
  const std::vector<uint8_t> gathered = all.ToVector<uint8_t>();
  return std::string(gathered.begin(), gathered.end());
}

}  // namespace

int64_t CommReport::TotalBytes() const {
  int64_t total = 0;
  for (const CommRow& row : rows) total += row.num_bytes;
  return total;
}

int64_t CommReport::BytesFor(Purpose purpose) const {
  int64_t total = 0;
  for (const CommRow& row : rows) total += row.purpose == PurposeName(purpose) ? row.num_bytes : 0;
  return total;
}

std::string CommReport::ToTable() const {
  std::string text = absl::StrFormat("%-15s %-8s %-11s %8s %14s  %s\n", "collective", "axes", "purpose",
                                     "calls", "bytes", "module");
  for (const CommRow& row : rows) {
    absl::StrAppendFormat(&text, "%-15s %-8s %-11s %8d %14d  %s\n", row.kind, row.axes, row.purpose,
                          row.calls, row.num_bytes, row.path);
  }
  absl::StrAppendFormat(&text, "%-15s %-8s %-11s %8s %14d\n", "total", "", "", "", TotalBytes());
  return text;
}

CommReport LocalCommReport(RankState& state) {
  std::map<Key, CommRow> rows;
  for (const LedgerEntry& entry : state.world().ledger().entries()) {
    CommRow row;
    row.kind = std::string(CollectiveName(entry.kind));
    row.axes = entry.group;
    row.purpose = std::string(PurposeName(static_cast<Purpose>(entry.tag.purpose)));
    row.path = entry.tag.path_id < 0 ? "" : state.PathName(entry.tag.path_id);
    CommRow& sum = rows.try_emplace(KeyOf(row), row).first->second;
    sum.calls += entry.calls;
    sum.num_bytes += entry.num_bytes;
  }
  CommReport report;
  for (auto& [key, row] : rows) report.rows.push_back(std::move(row));
  return report;
}

CommReport CollectCommReport(MeshContext& context) {
  std::map<Key, CommRow> rows;
  const std::string text = AllGatherText(context, ToText(LocalCommReport(context.state())));
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const CommRow row = RowFromText(line);
    const auto [it, inserted] = rows.try_emplace(KeyOf(row), row);
    if (inserted) continue;
    it->second.calls = std::max(it->second.calls, row.calls);
    it->second.num_bytes += row.num_bytes;
  }
  CommReport report;
  for (auto& [key, row] : rows) report.rows.push_back(std::move(row));
  return report;
}

}  // namespace weft
