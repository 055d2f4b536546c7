#include "tools/rules/kernel_run.h"

#include <exception>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "mesh/shard_math.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tools/rules/local_kernel.h"

namespace weft {
namespace {

std::vector<Tensor> RunOnRank(const OpCase& c, const DeviceMesh& mesh, const KernelRun& run, World& world) {
  const std::vector<int64_t> coordinate = mesh.CoordinateOf(world.rank());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < c.types.size(); ++i) {
    pieces.push_back(LaidPiece(run.values->operands[i], run.strategy->operands[i], mesh, coordinate, run.form,
                               run.seed + i));
    if (c.device != DeviceType::kCpu) {
      pieces[i].tensor = CloneTensor(pieces[i].tensor, world.allocator());
    }
  }
  std::vector<ShardBox> boxes;
  for (size_t i = 0; i < c.output_types.size(); ++i) {
    boxes.push_back(LocalBox(c.output_types[i].shape, run.strategy->outputs[i], mesh, coordinate));
  }
  KernelContext context{world.pool(), world.allocator()};
  std::vector<Tensor> outputs =
      RunKernel(*c.op, context, pieces, boxes, c.sample.attributes.get(), c.sample.scalars.get());
  if (c.device == DeviceType::kCpu) return outputs;
  for (Tensor& output : outputs) output = OnHost(output);
  return outputs;
}

// Whether an infinity in the planted operand meets terms of both signs.
bool MayCancel(const KernelRun& run, const Layout& output) {
  if (run.values->planted < 0) return false;
  const Layout& planted = run.strategy->operands[run.values->planted];
  const auto meets_whole = [&](const Layout& layout) {
    return absl::c_any_of(layout.PartialAxes(), [&](int axis) { return planted.IsReplicate(axis); });
  };
  return meets_whole(output) || absl::c_any_of(run.strategy->operands, meets_whole);
}

bool HasPartial(const std::vector<Layout>& layouts) {
  return absl::c_any_of(layouts, [](const Layout& layout) { return layout.HasPartial(); });
}

}  // namespace

std::vector<KernelResult> RunAlone(const OpCase& c, const DeviceMesh& mesh,
                                   absl::Span<const KernelRun> runs) {
  const size_t num_ranks = static_cast<size_t>(mesh.num_ranks());
  std::vector<std::vector<std::string>> errors(runs.size(), std::vector<std::string>(num_ranks));
  std::vector<KernelResult> results(runs.size());
  for (KernelResult& result : results)
    result.outputs.assign(c.output_types.size(), std::vector<Tensor>(num_ranks));
  RunRanks(static_cast<int>(num_ranks),
           [&](World& world) {
             for (size_t i = 0; i < runs.size(); ++i) {
               try {
                 const std::vector<Tensor> outputs = RunOnRank(c, mesh, runs[i], world);
                 for (size_t j = 0; j < outputs.size(); ++j) results[i].outputs[j][world.rank()] = outputs[j];
               } catch (const std::exception& error) {
                 errors[i][world.rank()] = error.what();
               }
             }
           },
           {.device = c.device, .threads_per_rank = 1});
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& error : errors[i]) {
      if (!error.empty() && results[i].error.empty()) results[i].error = error;
    }
  }
  return results;
}

std::string OutputDifference(const OpCase& c, const DeviceMesh& mesh, const KernelRun& run,
                             const KernelResult& result, size_t output, const Layout& layout) {
  const Tensor& expected = run.values->outputs[output];
  // Every term of a Partial rounds once more.
  const Closeness closeness = {
      .tolerance = c.types.empty() ? 0 : Tolerance(expected.dtype()) * static_cast<double>(mesh.num_ranks()),
      .signed_zeros = !HasPartial(run.strategy->operands) && !layout.HasPartial(),
      .may_cancel = MayCancel(run, layout)};
  return DenotedDifference(result.outputs[output], expected, layout, mesh, closeness);
}

std::string RunDifference(const OpCase& c, const DeviceMesh& mesh, const KernelRun& run,
                          const KernelResult& result) {
  if (!result.error.empty()) return result.error;
  for (size_t i = 0; i < c.output_types.size(); ++i) {
    const std::string difference = OutputDifference(c, mesh, run, result, i, run.strategy->outputs[i]);
    if (!difference.empty()) return absl::StrCat("output ", i, ": ", difference);
  }
  return "";
}

}  // namespace weft
