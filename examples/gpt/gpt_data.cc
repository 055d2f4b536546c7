#include "examples/gpt/gpt_data.h"

#include <memory>

#include "mesh/shard_math.h"
#include "runtime/base/error.h"
#include "runtime/data/dataset/token_windows.h"
#include "runtime/data/sampling/sampler.h"

namespace weft {
namespace {

std::vector<RowRange> PartsOf(int64_t batch, int64_t num_parts) {
  std::vector<RowRange> parts;
  int64_t first = 0;
  for (int64_t i = 1; i <= num_parts; ++i) {
    const int64_t end = batch * i / num_parts;
    parts.push_back({.first = first, .count = end - first});
    first = end;
  }
  return parts;
}

// Those that lie on this rank.
std::vector<RowRange> LocalRows(const std::vector<RowRange>& parts, int64_t sequence, const Layout& layout,
                                const MeshContext& context) {
  std::vector<RowRange> rows;
  for (const RowRange& part : parts) {
    const ShardBox box = LocalBox({part.count, sequence}, layout, context.mesh(), context.coordinate());
    rows.push_back({.first = part.first + box.offset[0], .count = box.shape[0]});
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
      sequence_(run.model.context),
      context_(context),
      layout_(layout),
      parts_(PartsOf(run.batch, run.microbatches)),
      rows_(LocalRows(parts_, sequence_, layout, *context)),
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
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto field = [&](int f) {
      const Tensor local = batch.fields[f].Slice(/*dim=*/0, first, rows_[i].count);
      return DTensor::FromLocal(context_, local, layout_, {parts_[i].count, sequence_});
    };
    parts.push_back({.tokens = field(0), .targets = field(1), .batch_offset = parts_[i].first});
    first += rows_[i].count;
  }
  return parts;
}

}  // namespace weft
