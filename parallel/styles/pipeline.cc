#include "parallel/styles/pipeline.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "runtime/base/number_text.h"

namespace weft {
namespace {

constexpr int64_t kMostChunks = 1024;

const RegisterStyle kRegister({
    .name = "Pipeline",
    .fields =
        {
            {.name = "chunks", .type = StyleField::Type::kWholeNumber, .least = 1, .most = kMostChunks},
            {.name = "order", .type = StyleField::Type::kWord, .words = {"loop", "v"}},
            {.name = "costs", .type = StyleField::Type::kWord},
            {.name = "sizes", .type = StyleField::Type::kWord},
        },
    .reach = StyleReach::kBorder,
    .makes_stages = true,
});

// "1 2.5 3"; nothing of an empty list, which is not given.
std::optional<StyleValue> ListText(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(StyleValue(text));
}

template <class T, class Parse>
std::vector<T> ListOf(const Style& style, const char* field, const char* expected, Parse parse) {
  std::vector<T> list;
  const std::string text = style.Get<std::string>(field).value_or("");
  for (const absl::string_view part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    T value = 0;
    WEFT_REQUIRE(parse(part, &value) && value >= 0, "Pipeline: ", field, ": expected ", expected,
                 " with blanks between, got '", text, "'");
    list.push_back(value);
  }
  return list;
}

}  // namespace

Style Pipeline(absl::string_view axis, const PipelineOptions& options) {
  Style style = {.name = "Pipeline", .axis = std::string(axis)};
  if (options.chunks != 1) style = style.With("chunks", StyleValue(options.chunks));
  if (options.order == StageOrder::kV) style = style.With("order", StyleValue(std::string("v")));
  return style.With("costs", ListText(JoinNumbers(options.costs, " ")))
      .With("sizes", ListText(absl::StrJoin(options.sizes, " ")));
}

PipelineOptions PipelineOptionsOf(const Style& style) {
  PipelineOptions options = {
      .chunks = style.Get<int64_t>("chunks").value_or(1),
      .order = style.Get<std::string>("order") == "v" ? StageOrder::kV : StageOrder::kLoop,
      .costs = ListOf<double>(style, "costs", "numbers of at least 0",
                              [](absl::string_view text, double* to) { return absl::SimpleAtod(text, to); }),
      .sizes =
          ListOf<int64_t>(style, "sizes", "whole numbers",
                          [](absl::string_view text, int64_t* to) { return absl::SimpleAtoi(text, to); }),
  };
  WEFT_REQUIRE(options.costs.empty() || options.sizes.empty(),
               "Pipeline: costs and sizes: expected one of them, got ", style.ToString());
  return options;
}

}  // namespace weft
