#include "examples/gpt/gpt_progress.h"

#include <unistd.h>

#include <cstdio>
#include <thread>

#include "absl/strings/str_format.h"
#include "examples/json_line.h"
#include "nlohmann/json.hpp"
#include "runtime/base/number_text.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

std::string Duration(double seconds) {
  const int64_t whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return absl::StrFormat("%ds", whole);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
}

}  // namespace

GptProgress::GptProgress(const GptRun& run) : run_(run), terminal_(!run.json && isatty(STDOUT_FILENO) != 0) {}

void GptProgress::SegmentCosts(absl::Span<const double> costs) {
  absl::FPrintF(run_.json ? stderr : stdout, "measured    --segment_costs=%s\n", JoinNumbers(costs, ","));
}

void GptProgress::Header(int64_t num_parameters, const std::string& data_path, int64_t num_tokens,
                         const std::string& plan_table) {
  std::FILE* out = run_.json ? stderr : stdout;
  const std::string mesh = run_.mesh.num_axes() == 0 ? "one rank" : run_.mesh.ToString();
  absl::FPrintF(out, "mesh        %s: %d ranks on %d cores\n", mesh, run_.mesh.num_ranks(),
                std::thread::hardware_concurrency());
  absl::FPrintF(out, "model       %d parameters, %d layers, %d heads, dim %d, vocabulary %d, %s\n",
                num_parameters, run_.model.layers, run_.model.heads, run_.model.dim, run_.model.vocabulary,
                DTypeName(run_.compute_dtype));
  absl::FPrintF(out, "data        %s: %d tokens\n", data_path, num_tokens);
  absl::FPrintF(out, "step        %d tokens (%d sequences of %d)\n", run_.batch * run_.model.context,
                run_.batch, run_.model.context);
  if (run_.batch != run_.asked_batch) {
    absl::FPrintF(out, "batch       %d instead of %d, for so many ranks; learning rate at most %g\n",
                  run_.batch, run_.asked_batch, run_.schedule.peak);
  }
  for (const std::string& flag : run_.unused_flags) absl::FPrintF(out, "unused      %s\n", flag);
  absl::FPrintF(out, "\n");
  absl::FPrintF(out, "%s\n", plan_table);
  std::fflush(out);
}

void GptProgress::Step(const StepMetrics& metrics) {
  seconds_ += metrics.step_ms * 1e-3;
  ++steps_;
  if (run_.json) {
    Json line = {{"step", metrics.step},
                 {"loss", metrics.loss},
                 {"grad_norm", metrics.grad_norm},
                 {"lr", metrics.lr},
                 {"step_ms", metrics.step_ms},
                 {"data_wait_s", metrics.data_wait_s},
                 {"tokens_per_s", metrics.tokens_per_s},
                 {"exposed_fraction", metrics.exposed_fraction},
                 {"waiting_fraction", metrics.waiting_fraction},
                 {"comm_fraction", metrics.comm_fraction},
                 {"comm_bytes", metrics.comm_bytes},
                 {"peak_bytes", metrics.peak_bytes}};
    if (metrics.loss_scale > 0) {
      line["loss_scale"] = metrics.loss_scale;
      line["updated"] = metrics.updated;
    }
    PrintJson(line);
    return;
  }
  const bool logged = metrics.step == 1 || metrics.step % run_.log_every == 0 || metrics.step == run_.steps;
  if (!terminal_ && !logged) return;
  const double left = seconds_ / static_cast<double>(steps_) * static_cast<double>(run_.steps - metrics.step);
  absl::PrintF(
      "%sstep %d/%d  loss %.4f  lr %.2e  %.1f ms  %.0f tokens/s  data wait %.1f ms  exposed comm %.1f%%  "
      "%.1f MiB moved  %.1f MiB held  %s left",
      terminal_ ? "\r\x1b[K" : "", metrics.step, run_.steps, metrics.loss, metrics.lr, metrics.step_ms,
      metrics.tokens_per_s, metrics.data_wait_s * 1e3, metrics.exposed_fraction * 100,
      static_cast<double>(metrics.comm_bytes) / (1 << 20),
      static_cast<double>(metrics.peak_bytes) / (1 << 20), Duration(left));
  line_open_ = true;
  if (logged) EndLine();
  std::fflush(stdout);
}

void GptProgress::EndLine() {
  if (line_open_) std::puts("");
  line_open_ = false;
}

void GptProgress::Evaluation(int64_t step, double val_loss) {
  if (run_.json) {
    PrintJson({{"step", step}, {"val_loss", val_loss}});
    return;
  }
  EndLine();
  absl::PrintF("step %d/%d  validation loss %.4f\n", step, run_.steps, val_loss);
  std::fflush(stdout);
}

void GptProgress::Sample(const std::string& text) {
  if (run_.json) {
    PrintJson({{"sample", text}});
    return;
  }
  EndLine();
  absl::PrintF("\nsample:\n%s\n", text);
}

}  // namespace weft
