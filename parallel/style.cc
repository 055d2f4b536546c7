#include "parallel/style.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

struct KindName {
  Style::Kind kind;
  absl::string_view name;
};

constexpr std::array<KindName, 6> kKindNames = {{
    {Style::Kind::kColumnParallel, "ColumnParallel"},
    {Style::Kind::kRowParallel, "RowParallel"},
    {Style::Kind::kVocabParallel, "VocabParallel"},
    {Style::Kind::kSequenceParallel, "SequenceParallel"},
    {Style::Kind::kDataParallel, "DataParallel"},
    {Style::Kind::kFullyShard, "FullyShard"},
}};

Style Make(Style::Kind kind, absl::string_view axis, const StyleBorders& borders) {
  return {.kind = kind, .axis = std::string(axis), .input = borders.input, .output = borders.output};
}

}  // namespace

Style ColumnParallel(absl::string_view axis, const StyleBorders& borders) {
  return Make(Style::Kind::kColumnParallel, axis, borders);
}
Style RowParallel(absl::string_view axis, const StyleBorders& borders) {
  return Make(Style::Kind::kRowParallel, axis, borders);
}
Style VocabParallel(absl::string_view axis, const StyleBorders& borders) {
  return Make(Style::Kind::kVocabParallel, axis, borders);
}
Style SequenceParallel(absl::string_view axis, const StyleBorders& borders) {
  return Make(Style::Kind::kSequenceParallel, axis, borders);
}
Style DataParallel(absl::string_view axis, const DataParallelOptions& options) {
  return {
      .kind = Style::Kind::kDataParallel,
      .axis = std::string(axis),
      .input = options.input,
      .output = options.output,
      .shard_state = options.shard_state || options.shard_gradient,
      .shard_gradient = options.shard_gradient,
  };
}
Style FullyShard(absl::string_view axis, const FullyShardOptions& options) {
  return {
      .kind = Style::Kind::kFullyShard,
      .axis = std::string(axis),
      .input = options.input,
      .output = options.output,
      .dim = options.dim,
      .reshard = options.reshard,
      .wrap_from = options.wrap_from,
  };
}

absl::string_view StyleKindName(Style::Kind kind) {
  for (const KindName& entry : kKindNames) {
    if (entry.kind == kind) return entry.name;
  }
  return "?";
}

Style::Kind ParseStyleKind(absl::string_view name) {
  std::string names;
  for (const KindName& entry : kKindNames) {
    if (entry.name == name) return entry.kind;
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.name);
  }
  ThrowInvalidArgument("unknown style '", name, "': expected one of ", names);
}

std::string Style::ToString() const {
  std::string text = absl::StrCat(StyleKindName(kind), "(", axis);
  if (input) absl::StrAppend(&text, ", input=", weft::ToString(*input));
  if (output) absl::StrAppend(&text, ", output=", weft::ToString(*output));
  if (dim) absl::StrAppend(&text, ", dim=", *dim);
  if (shard_state && !shard_gradient) absl::StrAppend(&text, ", shard_state=true");
  if (shard_gradient) absl::StrAppend(&text, ", shard_gradient=true");
  if (reshard == Reshard::kNever) absl::StrAppend(&text, ", reshard=never");
  if (wrap_from != 0) absl::StrAppend(&text, ", wrap_from=", wrap_from);
  return absl::StrCat(text, ")");
}

std::ostream& operator<<(std::ostream& out, const Style& style) { return out << style.ToString(); }

}  // namespace weft
