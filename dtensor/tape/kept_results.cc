#include "dtensor/tape/kept_results.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/tape/op_node.h"
#include "dtensor/tape/saved_value.h"
#include "ops/op/kernel.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"

namespace weft {
namespace {

struct Family {
  absl::string_view word;
  std::vector<std::string> ops;
};

const std::vector<Family>& Families() {
  static const auto* const families = new std::vector<Family>{
      {"contract", {"contract", "linear", "gelu_linear"}},
      {"attention", {"attention", "packed_attention", "masked_attention"}},
  };
  return *families;
}

// Those of a word.
std::vector<std::string> OpsOf(const std::string& word) {
  for (const Family& family : Families()) {
    if (family.word == word) return family.ops;
  }
  std::vector<std::string> names;
  for (const OpDef* op : RegisteredOps()) names.push_back(op->name());
  WEFT_REQUIRE(std::find(names.begin(), names.end(), word) != names.end(),
               "expected ops whose results stay, got '", word, "'; the nearest is '",
               NearestName(word, names), "'");
  return {word};
}

}  // namespace

KeptOps::KeptOps(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    for (std::string& name : OpsOf(word)) names_.push_back(std::move(name));
  }
}

bool KeptOps::Has(const OpDef& op) const {
  return std::any_of(names_.begin(), names_.end(),
                     [&](const std::string& name) { return name == op.name(); });
}

void KeptResults::Note(const Read& read) {
  const auto known = std::find_if(reads_.begin(), reads_.end(),
                                  [&](const Read& other) { return other.writes == read.writes; });
  if (known == reads_.end()) {
    reads_.push_back(read);
  } else {
    known->version = read.version;
  }
}

void KeptResults::NoteReads(absl::Span<const DTensorRef> operands) {
  if (!is_first_) return;
  for (const DTensorRef operand : operands) {
    const bool is_copy = static_cast<bool>(operand->origin);
    const DTensorImpl& written = is_copy ? *operand->origin->at_rest : *operand.impl();
    // A copy from before a write stays what it is.
    const bool is_current = !is_copy || operand->copied_version() == written.version();
    if (written.writes && is_current) Note({written.writes, written.version(), written.type});
  }
}

void KeptResults::NoteReads(const KeptResults& inner) {
  if (!is_first_) return;
  for (const Read& read : inner.reads_) Note(read);
}

void KeptResults::Rewind() {
  for (const Read& read : reads_) {
    if (read.writes->version == read.version) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: Recompute needs the ", read.type.ToString(),
          " that it saw in forward, but ", read.writes->last_writer, " has changed it in place since");
  }
  is_first_ = false;
  next_ = 0;
  here_.assign(results_.size(), DTensors());
  for (size_t call = results_.size(); call-- > 0;) {
    for (const Result& kept : results_[call])
      here_[call].push_back(WithoutHistory(kept.value.Unpack("Recompute")));
  }
}

DTensors KeptResults::Run(Execution& execution) {
  if (!ops_.Has(execution.call().op)) return execution.Run();
  if (is_first_) {
    DTensors outputs = execution.Run();
    const DropsHistoryGuard stays(outputs[0].context()->state(), drops_);
    std::vector<Result>& kept = results_.emplace_back();
    for (const DTensor& output : outputs) {
      kept.push_back({output.type(), output.layout(), SavedValue(WithoutHistory(output))});
    }
    return outputs;
  }
  const ErasedCall& call = execution.call();
  const absl::InlinedVector<TensorType, 2> types(execution.plan().output_types.begin(),
                                                 execution.plan().output_types.end());
  // A decomposed call's plan does not know where its outputs lie: that follows from its operands.
  const Layout* const layouts =
      execution.is_decomposed() ? nullptr : execution.plan().strategy.outputs.data();
  bool fits = next_ < results_.size() && results_[next_].size() == types.size();
  for (size_t i = 0; fits && i < types.size(); ++i) {
    const Result& kept = results_[next_][i];
    fits = kept.type == types[i] && (layouts == nullptr || kept.layout == layouts[i]);
  }
  if (!fits) {
    Throw(absl::StatusCode::kFailedPrecondition,
          "Recompute: the function has taken another way than in forward: ", call.ToString(), " is call ",
          next_, " of the kept ops, of ", results_.size(), " then; it has to do the same whenever it runs");
  }
  if (!execution.is_decomposed()) execution.MoveOperands();
  return std::move(here_[next_++]);
}

DTensors RunInRecomputed(const ErasedCall& call, KeptResults& kept) {
  Execution execution(call);
  kept.NoteReads(call.operands);
  if (!WantsRecording(call, execution.plan().output_types)) return execution.Run();
  DTensors outputs = kept.Run(execution);
  RecordCall(call, execution.plan(), execution.used(), absl::MakeSpan(outputs));
  return outputs;
}

}  // namespace weft
