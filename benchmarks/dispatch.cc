// What dispatch costs on the host: nanoseconds a call on tensors of 16 elements, whose kernels take next to
// nothing.
//
//   bazel run //benchmarks:dispatch
//   bazel run //benchmarks:dispatch -- --peer="$(benchmarks/peers/pytorch_dispatch.py)" --log_format=json
//
// No layout here needs communication, so rank 0 runs alone. The limits are the targets of issue 5: a DTensor
// op costs at most 500 ns more than its kernel with the output's allocation, 1 us with recording; a chain of
// three ops forward and backward 3 us. With --peer, each figure is printed again beside PyTorch's.

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/figure.h"
#include "ops/elementwise.h"
#include "ops/kernel.h"
#include "weft.h"

ABSL_FLAG(std::string, peer, "", "PyTorch's nanoseconds, as its script prints them: NAME=NS,NAME=NS,...");
ABSL_FLAG(std::string, only, "", "measure only what has this in its name");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Measures the host's cost of calling ops.",
          .groups = {{"Measurement", {"only", "peer", "log_format"}}},
          .examples = {"dispatch", "dispatch --only=backward --log_format=json"}};
}

// PyTorch's figure of that name, or 0.   Errors: InvalidArgument for a --peer that does not read so.
double PeerNanoseconds(absl::string_view name) {
  double result = 0;
  for (absl::string_view entry : absl::StrSplit(absl::GetFlag(FLAGS_peer), ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(entry, '=');
    double ns = 0;
    WEFT_REQUIRE(absl::SimpleAtod(parts.second, &ns), "--peer: expected NAME=NS, got '", entry, "'");
    if (parts.first == name) result = ns;
  }
  return result;
}

// Measures `call` and reports it against `limit_ns`; returns what it measured, or 0 if --only leaves it out.
double Measure(const std::string& name, double limit_ns, const std::string& limit_is,
               const std::function<void()>& call) {
  if (!absl::StrContains(name, absl::GetFlag(FLAGS_only))) return 0;
  const double ns = MedianNanoseconds(call);
  Figure figure = {
      .name = absl::StrCat("dispatch/", name), .value = ns, .unit = "ns", .less_is_better = true};
  if (limit_ns > 0) figure.limit = limit_ns, figure.limit_is = limit_is, figure.target = 1;
  Report(figure);
  if (const double peer_ns = PeerNanoseconds(name); peer_ns > 0) {
    figure.limit = peer_ns, figure.limit_is = "PyTorch", figure.target = 1;
    Report(figure);
  }
  return ns;
}

// The kernel of an addition with the output's allocation, which is what no dispatch can save.
void AddLocally(MeshContext& context, const Tensor& a, const Tensor& b) {
  const Tensor operands[] = {a, b};
  Tensor output = Tensor::Empty(context.allocator(), a.dtype(), a.shape());
  const ShardBox box = {.global_shape = a.shape(), .offset = Shape({0}), .shape = a.shape()};
  const ShardBox boxes[] = {box, box};
  const NoAttributes attributes;
  const NoScalars scalars;
  kAdd.Invoke(FindKernel(kAdd, DeviceType::kCpu),
              {context.kernel_context(), operands, absl::MakeSpan(&output, 1), boxes,
               absl::MakeConstSpan(&box, 1), &attributes, &scalars});
}

// A tensor of halves, dim 0 split over every axis.
DTensor Halves(const IntrusivePtr<MeshContext>& context, const Shape& shape) {
  Layout layout(shape.ndim(), context->mesh().num_axes());
  for (int axis = 0; axis < context->mesh().num_axes(); ++axis) layout = layout.WithShard(axis, 0);
  return Full(context, DType::kF32, shape, 0.5, layout);
}

void MeasureOn(const IntrusivePtr<MeshContext>& context, const std::string& suffix, double local_add) {
  const int64_t ranks = context->mesh().num_ranks();
  const DTensor a = Halves(context, {16 * ranks});
  const DTensor b = Halves(context, {16 * ranks});
  Measure("add/" + suffix, local_add + 500, "local op + 500 ns", [&] { Add(a, b); });
  const DTensor x = Halves(context, {4 * ranks, 4});
  const DTensor w = Full(context, DType::kF32, {4, 4}, 0.5);
  Measure("matmul/" + suffix, 0, "", [&] { MatMul(x, w); });
  const DTensor leaf = a.RequiresGrad();
  Measure("add_recorded/" + suffix, local_add + 1000, "local op + 1 us", [&] { Add(leaf, b); });
  Measure("chain_forward_backward/" + suffix, 3000, "3 us", [&] {
    const DTensor fresh = a.RequiresGrad();
    Backward(Mul(Add(Mul(fresh, b), b), b), b);
  });
}

int Run() {
  for (const char* mesh_text : {"", "a=2", "a=2,b=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      if (world.rank() != 0) return;
      const IntrusivePtr<MeshContext> context = Bind(world, mesh);
      const Tensor local = Halves(context, {16 * mesh.num_ranks()}).ToLocal();
      const double local_add = MedianNanoseconds([&] { AddLocally(*context, local, local); });
      if (mesh.num_axes() == 0)
        Measure("kernel_and_allocation", 0, "", [&] { AddLocally(*context, local, local); });
      MeasureOn(context, absl::StrCat(mesh.num_axes(), "d"), local_add);
    });
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
