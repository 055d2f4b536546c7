// What dispatch costs on the host: nanoseconds a call on tensors of 16 elements, whose kernels take next to
// nothing.
//
//   bazel run //benchmarks:dispatch
//   bazel run //benchmarks:dispatch -- --peer="$(benchmarks/peers/pytorch_dispatch.py)" --log_format=json
//
// 0d, 1d, 2d, 3d: on meshes of so many axes of two ranks each. No layout here needs communication, so rank 0
// runs alone, but for redistribute_all_gather: two ranks gather 16 elements each, and what the same
// all-gather takes without plan and handles is subtracted. The limits: a DTensor op costs at
// most 500 ns more than its kernel with the output's allocation, 1 us more with recording; a chain of three
// ops forward and backward 3 us; a call whose sharding is not known yet 20 us, on three axes 200 us
// (//benchmarks:propagate has the search alone, for all pairs of layouts). With --peer, each figure is
// printed again beside PyTorch's.

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/figure.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op/kernel.h"
#include "ops/product/contract.h"
#include "weft.h"

ABSL_FLAG(std::string, peer, "", "PyTorch's nanoseconds, as its script prints them: NAME=NS,NAME=NS,...");
ABSL_FLAG(std::string, only, "", "measure only what has this in its name");

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double NanosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

FlagsUsage Usage() {
  return {.summary = "Measures the host's cost of calling ops.",
          .groups = {{"Measurement", {"only", "peer", "log_format"}}},
          .examples = {"dispatch", "dispatch --only=backward --log_format=json"}};
}

// PyTorch's figure of that name, or 0.
// Errors: InvalidArgument for a --peer that does not read so.
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

bool IsWanted(const std::string& name) { return absl::StrContains(name, absl::GetFlag(FLAGS_only)); }

// What a figure is held against; none where `is` is empty.
struct Limit {
  double nanoseconds = 0;
  std::string is = {};
};

void ReportCall(const std::string& name, double ns, const Limit& limit) {
  Figure figure = {
      .name = absl::StrCat("dispatch/", name), .value = ns, .unit = "ns", .less_is_better = true};
  if (!limit.is.empty()) figure.limit = limit.nanoseconds, figure.limit_is = limit.is, figure.target = 1;
  Report(figure);
  if (const double peer_ns = PeerNanoseconds(name); peer_ns > 0) {
    figure.limit = peer_ns, figure.limit_is = "PyTorch", figure.target = 1;
    Report(figure);
  }
}

// Measures and reports `call`, unless --only leaves it out.
void Measure(const std::string& name, const Limit& limit, const std::function<void()>& call) {
  if (IsWanted(name)) ReportCall(name, MedianNanoseconds(call), limit);
}

// A kernel with the output's allocation, which is what no dispatch can save. Measured where it is first asked
// for: most runs with --only need none.
class LocalCall {
 public:
  LocalCall(const OpDef& op, const void* attributes, MeshContext& context, std::vector<Tensor> operands)
      : op_(op), attributes_(attributes), context_(context), operands_(std::move(operands)) {
    std::vector<TensorType> types;
    for (const Tensor& operand : operands_) {
      types.push_back({operand.dtype(), operand.shape()});
      boxes_.push_back(WholeBox(operand.shape()));
    }
    output_ = op.Infer(types, attributes)[0];
  }

  void Run() {
    Tensor output = Tensor::Empty(context_.allocator(), output_.dtype, output_.shape);
    const ShardBox box = WholeBox(output_.shape);
    const NoScalars scalars;
    op_.Invoke(FindKernel(op_, DeviceType::kCpu),
               {context_.kernel_context(), operands_, absl::MakeSpan(&output, 1), boxes_,
                absl::MakeConstSpan(&box, 1), attributes_, &scalars});
  }

  double Nanoseconds() {
    if (nanoseconds_ == 0) nanoseconds_ = MedianNanoseconds([this] { Run(); });
    return nanoseconds_;
  }

  // The limit of a call that adds `ns` to it, and measures `call` against that.
  void MeasureOver(const std::string& name, double ns, const std::function<void()>& call) {
    if (!IsWanted(name)) return;
    Measure(name, {Nanoseconds() + ns, absl::StrCat("kernel and allocation + ", ns, " ns")}, call);
  }

 private:
  const OpDef& op_;
  const void* attributes_;
  MeshContext& context_;
  std::vector<Tensor> operands_;
  std::vector<ShardBox> boxes_;
  TensorType output_;
  double nanoseconds_ = 0;
};

// Dim 0 split over every axis.
Layout SplitOverAll(const MeshContext& context, int ndim) {
  Layout layout(ndim, context.mesh().num_axes());
  for (int axis = 0; axis < context.mesh().num_axes(); ++axis) layout = layout.WithShard(axis, 0);
  return layout;
}

DTensor Halves(const IntrusivePtr<MeshContext>& context, const Shape& shape) {
  return Full(context, DType::kF32, shape, 0.5, SplitOverAll(*context, shape.ndim()));
}

void MeasureOn(const IntrusivePtr<MeshContext>& context, const std::string& suffix) {
  const int64_t ranks = context->mesh().num_ranks();
  const DTensor a = Halves(context, {16 * ranks});
  const DTensor b = Halves(context, {16 * ranks});
  const DTensor leaf = a.RequiresGrad();
  const NoAttributes none;
  LocalCall local_add(kAdd, &none, *context, {a.ToLocal(), b.ToLocal()});
  Measure(absl::StrCat("kernel_and_allocation/add/", suffix), {}, [&] { local_add.Run(); });
  local_add.MeasureOver("add/" + suffix, 500, [&] { Add(a, b); });
  local_add.MeasureOver("add_recorded/" + suffix, 1000, [&] { Add(leaf, b); });

  const DTensor x = Halves(context, {4 * ranks, 4});
  const DTensor w = Full(context, DType::kF32, {4, 4}, 0.5);
  const DTensor parameter = w.RequiresGrad();
  const ContractAttributes product = {"mk", "kn", "mn"};
  LocalCall local_matmul(kContract, &product, *context, {x.ToLocal(), w.ToLocal()});
  Measure(absl::StrCat("kernel_and_allocation/matmul/", suffix), {}, [&] { local_matmul.Run(); });
  local_matmul.MeasureOver("matmul/" + suffix, 500, [&] { MatMul(x, w); });
  local_matmul.MeasureOver("matmul_recorded/" + suffix, 1000, [&] { MatMul(x, parameter); });

  Measure("chain_forward_backward/" + suffix, {3000, "3 us"}, [&] {
    const DTensor fresh = a.RequiresGrad();
    Backward(Mul(Add(Mul(fresh, b), b), b), b);
  });
  if (ranks == 1) return;
  // One step, a slice: a view of what lies here.
  const DTensor whole = Full(context, DType::kF32, {16 * ranks}, 0.5);
  Measure("redistribute_slice/" + suffix, {}, [&] { whole.Redistribute(a.layout()); });
}

// The median time of a batch of calls, by the call. Every rank makes as many.
double CollectiveNanoseconds(const std::function<void()>& call) {
  constexpr int kCalls = 500;
  std::vector<double> times;
  for (int batch = 0; batch < 40; ++batch) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    times.push_back(NanosecondsSince(begin) / kCalls);
  }
  return Median(std::move(times));
}

// The host part of a cached redistribution that communicates.
void MeasureAllGather() {
  const std::string name = "redistribute_all_gather/1d";
  if (!IsWanted(name)) return;
  RunRanks(2, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("a=2"));
    const DTensor halves = Halves(context, {32});
    const Layout whole(1, 1);
    const Tensor& piece = halves.ToLocal();
    Communicator& group = context->Group({0});
    const std::vector<int64_t> counts = {16, 16};
    const double bare = CollectiveNanoseconds(
        [&] { group.AllGather(piece, Tensor::Empty(world.allocator(), DType::kF32, {32}), counts).Wait(); });
    const double planned = CollectiveNanoseconds([&] { halves.Redistribute(whole); });
    if (world.rank() == 0) ReportCall(name, std::max(planned - bare, 0.0), {});
  });
}

// The first call with its types and layouts: inference, propagation, the plan and the call itself.
void MeasureMiss(const DeviceMesh& mesh) {
  const std::string name = absl::StrCat("propagation_miss/matmul/", mesh.num_axes(), "d");
  if (!IsWanted(name)) return;
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    if (world.rank() != 0) return;
    std::vector<double> times;
    for (int i = 0; i < 300; ++i) {
      const IntrusivePtr<MeshContext> context = Bind(world, mesh);  // whose cache is empty
      const DTensor x = Halves(context, {4 * mesh.num_ranks(), 4});
      const DTensor w = Full(context, DType::kF32, {4, 4}, 0.5);
      const Clock::time_point begin = Clock::now();
      MatMul(x, w);
      times.push_back(NanosecondsSince(begin));
    }
    const bool is_3d = mesh.num_axes() == 3;
    ReportCall(name, Median(std::move(times)), {is_3d ? 200e3 : 20e3, is_3d ? "200 us" : "20 us"});
  });
}

int Run() {
  for (const char* mesh_text : {"", "a=2", "a=2,b=2"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      if (world.rank() == 0) MeasureOn(Bind(world, mesh), absl::StrCat(mesh.num_axes(), "d"));
    });
  }
  MeasureAllGather();
  for (const char* mesh_text : {"a=2", "a=2,b=2", "a=2,b=2,c=2"}) MeasureMiss(DeviceMesh::Parse(mesh_text));
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
