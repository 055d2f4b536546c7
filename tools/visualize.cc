// Draws which rank holds which part of a tensor.
//
//   bazel run //tools:visualize -- --mesh=dp=2,tp=2 --shape=5,4 --layout="[dp, tp]"
//   bazel run //tools:visualize -- --mesh=dp=2,tp=2 --shape=5,4 --layout="[dp, -] P{tp}" --format=svg >
//   layout.svg

#include "dtensor/inspect/visualize.h"

#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"

ABSL_FLAG(std::string, mesh, "dp=2,tp=2", "axes and their sizes; empty: one device");
ABSL_FLAG(std::string, shape, "5,4", "the tensor's global shape, extents by comma; empty: a scalar");
ABSL_FLAG(std::string, layout, "[dp, tp]", "how it lies: \"[dp, tp]\", \"[tp.dp, -]\", \"[-, -] P{tp}\"");
ABSL_FLAG(std::string, dtype, "f32", "f64, f32, bf16, ...");
ABSL_FLAG(std::string, format, "text", "text or svg");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Draws which rank holds which part of a tensor.",
          .groups = {{"Tensor", {"mesh", "shape", "layout", "dtype"}}, {"Output", {"format"}}},
          .examples = {"visualize --mesh=dp=2,tp=2 --shape=5,4 --layout='[dp, tp]'",
                       "visualize --mesh=dp=4 --shape=7 --layout='[dp]' --format=svg > layout.svg"}};
}

Shape ParseShape(const std::string& text) {
  constexpr int64_t kMost = int64_t{1} << 62;  // pieces of one size may end behind the extent
  Shape shape;
  if (absl::StripAsciiWhitespace(text).empty()) return shape;
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    int64_t extent = 0;
    WEFT_REQUIRE(absl::SimpleAtoi(word, &extent) && extent >= 0 && extent <= kMost, "--shape=", text,
                 ": expected extents by comma, 0 to 2^62 each, got '", absl::StripAsciiWhitespace(word), "'");
    WEFT_REQUIRE(shape.ndim() < Shape::kMaxDims, "--shape=", text, ": at most ", Shape::kMaxDims, " dims");
    shape.push_back(extent);
  }
  return shape;
}

int Draw() {
  const DeviceMesh mesh = DeviceMesh::Parse(absl::GetFlag(FLAGS_mesh));
  const TensorType type = {ParseDType(absl::GetFlag(FLAGS_dtype)), ParseShape(absl::GetFlag(FLAGS_shape))};
  const Layout layout = Layout::Parse(absl::GetFlag(FLAGS_layout), mesh);
  WEFT_REQUIRE(layout.ndim() == type.ndim(), "--layout=", layout.ToString(mesh), " has ", layout.ndim(),
               " dims, --shape=", type.shape.ToString(), " has ", type.ndim());
  const std::string format = absl::GetFlag(FLAGS_format);
  WEFT_REQUIRE(format == "text" || format == "svg", "--format=", format, ": expected text or svg");
  const std::string drawing =
      format == "svg" ? VisualizeSvg(type, layout, mesh) : Visualize(type, layout, mesh);
  std::fwrite(drawing.data(), 1, drawing.size(), stdout);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Draw); }
