#include "examples/gpt/gpt_data.h"

#include <memory>

#include "mesh/shard_math.h"
#include "runtime/base/error.h"
#include "runtime/data/dataset/token_windows.h"
#include "runtime/data/sampling/sampler.h"

namespace weft {
namespace {

// Of `num_parts` parts that make up a batch, the rows of each that lie on this rank.
std::vector<RowRange> RowsOf(const Shape& part, int64_t num_parts, const Layout& layout,
                             const MeshContext& context) {
  const ShardBox box = LocalBox(part, layout, context.mesh(), context.coordinate());
  std::vector<RowRange> rows;
  for (int64_t i = 0; i < num_parts; ++i) {
    rows.push_back({.first = i * part[0] + box.offset[0], .count = box.shape[0]});
  }
  return rows;
}

std::shared_ptr<const Dataset> WindowsOf(const GptRun& run, absl::Span<const int32_t> tokens,
                                         const std::string& path) {
  return std::make_shared<TokenWindows>(
      tokens,
      TokenWindowsOptions{.context = run.model.context, .stride = run.shuffle_epochs ? 0 : 1, .name = path});
}

std::shared_ptr<const Sampler> SamplerOf(const GptRun& run, int64_t num_windows) {
  if (run.shuffle_epochs) return std::make_shared<ShuffledSampler>(num_windows, run.seed);
  // A step's draws are an epoch.
  return std::make_shared<ReplacementSampler>(num_windows, /*epoch_size=*/run.batch, run.seed);
}

Loader MakeLoader(const GptRun& run, std::shared_ptr<const Dataset> windows,
                  const std::vector<RowRange>& rows, const std::shared_ptr<Allocator>& allocator) {
  const std::shared_ptr<const Sampler> sampler = SamplerOf(run, windows->num_samples());
  return Loader(std::move(windows), sampler,
                {.batch = run.batch,
                 .rows = rows,
                 .num_threads = run.data_threads,
                 .position = run.shuffle_epochs ? 0 : run.batch},
                allocator);
}

}  // namespace

GptData::GptData(const GptRun& run, absl::Span<const int32_t> tokens, const std::string& path,
                 const IntrusivePtr<MeshContext>& context, const Layout& layout)
    : shuffle_epochs_(run.shuffle_epochs),
      batch_(run.batch),
      part_({run.batch / run.microbatches, run.model.context}),
      context_(context),
      layout_(layout),
      rows_(RowsOf(part_, run.microbatches, layout, *context)),
      loader_(MakeLoader(run, WindowsOf(run, tokens, path), rows_, context->allocator())) {}

void GptData::GoOnAfter(int64_t step, const std::string& state) {
  if (!shuffle_epochs_) {
    // Draws go by the step, whatever the batches before it were.
    loader_.Seek((step + 1) * batch_);
    return;
  }
  WEFT_REQUIRE(!state.empty(),
               "--shuffle=epoch: the checkpoint to resume from does not say how many windows it has seen");
  loader_.Restore(DataPosition::FromJson(state));
}

std::vector<GptBatch> GptData::Next() {
  const LoaderBatch batch = loader_.Get();
  wait_s_ = batch.wait_s;
  std::vector<GptBatch> parts;
  int64_t first = 0;
  for (const RowRange& rows : rows_) {
    const auto field = [&](int f) {
      const Tensor local = batch.fields[f].Slice(/*dim=*/0, first, rows.count);
      return DTensor::FromLocal(context_, local, layout_, part_);
    };
    parts.push_back({.tokens = field(0), .targets = field(1)});
    first += rows.count;
  }
  return parts;
}

}  // namespace weft
