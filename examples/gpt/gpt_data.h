// The training data of train_gpt: which windows of the text a step has, read ahead.

#ifndef WEFT_EXAMPLES_GPT_GPT_DATA_H_
#define WEFT_EXAMPLES_GPT_GPT_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "examples/gpt/gpt_flags.h"
#include "examples/gpt/gpt_text.h"
#include "mesh/layout.h"
#include "runtime/data/loader/loader.h"

namespace weft {

// This rank's rows of each step's batch, part by part: part i of m has rows b * i / m up to b * (i + 1) / m of a batch of b,
// so that parts are of as many rows, or of one more.
//
// By default windows are drawn with replacement, from all starts in the text: which, follows from (seed, step, number in the
// batch), as TrainBatches has it. With GptRun::shuffle_epochs the text is cut into windows that do not overlap, and each comes
// once per epoch, in a random order; then the position in the data is the number of windows consumed.
//
// Lifetime: views the tokens.
class GptData {
 public:
  // `layout`: of a [b, s] batch on the context's mesh; `path`: of the text, for errors. The first batch is step 1's.
  GptData(const GptRun& run, absl::Span<const int32_t> tokens, const std::string& path,
          const IntrusivePtr<MeshContext>& context, const Layout& layout);

  // Goes on after step `step`, whose checkpoint had `state`; empty: one from before there were states.
  // Errors: DataLoss for a broken state; InvalidArgument for one of other data or another seed, where the order depends on
  //         them, and for shuffled epochs without one.
  void GoOnAfter(int64_t step, const std::string& state);

  // The parts of the next step's batch.
  // Errors: those of Loader::Get.
  std::vector<GptBatch> Next();
  // Seconds that Next waited last.
  double wait_s() const { return wait_s_; }

  // What a checkpoint keeps: DataPosition, as JSON.
  std::string State() const { return loader_.State().ToJson(); }

 private:
  const bool shuffle_epochs_;
  const int64_t batch_;
  const int64_t sequence_;
  const IntrusivePtr<MeshContext> context_;
  const Layout layout_;
  const std::vector<RowRange> parts_;  // of the batch
  const std::vector<RowRange> rows_;   // of each part, those that lie on this rank
  Loader loader_;
  double wait_s_ = 0;
};

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_DATA_H_
