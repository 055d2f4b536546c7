#ifndef WEFT_EXAMPLES_GPT_GPT_PROGRESS_H_
#define WEFT_EXAMPLES_GPT_GPT_PROGRESS_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "examples/gpt/gpt_flags.h"
#include "parallel/trainer.h"

namespace weft {

// Tells the user how training goes: a header, a line per step (one updating line on a terminal, plain lines
// every `log_every` steps in a pipe), evaluations, the sample. With --log_format=json stdout holds one object
// a line, every step, and all else goes to stderr. For rank 0 alone.
class GptProgress {
 public:
  explicit GptProgress(const GptRun& run);

  // What segments have been measured to take, as the flag that makes a later run the same. Before the header.
  void SegmentCosts(absl::Span<const double> costs);
  // Parameters, tokens, vocabulary, ranks against cores, tokens per step, flags that the mesh has no use for, and the plan as a
  // table.
  void Header(int64_t num_parameters, const std::string& data_path, int64_t num_tokens,
              const std::string& plan_table);
  void Step(const StepMetrics& metrics);
  void Evaluation(int64_t step, double val_loss);
  void Sample(const std::string& text);

 private:
  void EndLine();

  const GptRun& run_;
  bool terminal_;
  bool line_open_ = false;
  int64_t steps_ = 0;   // that were told here: a run that goes on begins behind others
  double seconds_ = 0;  // of those
};

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_PROGRESS_H_
