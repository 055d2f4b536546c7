#include "examples/gpt/gpt_saving.h"

#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "examples/checkpoint_flags.h"
#include "examples/gpt/gpt_flags.h"
#include "examples/gpt/gpt_plan_flags.h"
#include "parallel/compression/communication_state.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_world.h"

namespace weft {
namespace {

// `scale`: null where there is none. A run that goes on may have another plan, with f16 or without, and another hysteresis.
std::shared_ptr<StatePart> LossScaleState(const LossScale* scale) {
  return MakeOptionalTensorState("loss_scale.", [scale] {
    return scale != nullptr ? scale->State() : std::vector<std::pair<std::string, DTensor>>();
  });
}

void LoadFile(const std::string& path, int64_t step, const GptRunState& state) {
  SafetensorsReader reader(path);
  LoadParameters(reader, state.model);
  LoadOptimizerState(reader, state.optimizer, step);
  LossScaleState(state.loss_scale)->Load(reader);
  LoadCommunicationState(reader, state.model);
}

void SaveFile(const std::string& path, const GptCheckpointInfo& info, const GptRunState& state) {
  std::vector<std::pair<std::string, DTensor>> tensors = CheckpointTensors(state.model, state.optimizer);
  if (state.loss_scale != nullptr) absl::c_move(state.loss_scale->State(), std::back_inserter(tensors));
  absl::c_move(CommunicationState(state.model), std::back_inserter(tensors));
  SaveGpt(path, state.model, tensors, info);
}

// Of a run that goes on from `saved`, whose --dtype may not change; its plan may.
bool ScalesLoss(const GptCheckpointInfo& saved) {
  const auto dtype = saved.flags.find("dtype");
  return (dtype != saved.flags.end() && dtype->second == "f16") || PlanFileUses(DType::kF16);
}

std::string FolderSource() { return absl::StrCat("--checkpoint_dir=", CheckpointFolder()); }

}  // namespace

std::optional<GptCheckpointInfo> ResumeFromFlags(const ParsedFlags& parsed) {
  if (const std::optional<SavedStep> saved = FindSavedStep()) {
    GptCheckpointInfo info = ReadGptInfo(CheckpointFolder(), saved->texts);
    RestoreGptRun(info, parsed, ScalesLoss(info));
    info.source = FolderSource();
    return info;
  }
  const std::string file = ResumePath();
  if (file.empty()) return std::nullopt;
  GptCheckpointInfo info = ReadGptInfo(file, SafetensorsReader(file).metadata());
  RestoreGptFlags(info, parsed, ScalesLoss(info));
  info.source = absl::StrCat("--resume=", file);
  return info;
}

GptSaving::GptSaving(World& world, int64_t num_ranks, std::optional<CheckpointOptions> options,
                     const GptCheckpointInfo& info, const std::optional<GptCheckpointInfo>& resumed,
                     const std::string& save, const std::string& resume)
    : world_(world), info_(info), resumed_(resumed), save_(save), resume_(resume) {
  if (options) {
    options->num_ranks = static_cast<int>(num_ranks);
    // A snapshot is in memory of two nodes, or of the only one: what fails after it costs no step before it.
    options->on_saved = options->on_snapshot = [&world](int64_t) { NoteSave(world); };
    folder_.emplace(world, *options);
  }
}

void GptSaving::Resume(const GptRunState& state, GptData& data, Trainer& trainer) {
  state_.emplace(state);
  data_ = &data;
  parts_.Add("model", MakeModelState(state.model));
  parts_.Add("optimizer", MakeOptimizerState(state.optimizer));
  parts_.Add("loss_scale", LossScaleState(state.loss_scale));
  parts_.Add("communication", MakeCommunicationState(state.model));
  parts_.Add("run", MakeTextsState([this, &trainer] {
               info_.step = trainer.step();
               info_.data = data_->State();
               return GptTexts(info_);
             }));
  if (folder_ && (folder_->snapshot_step() || folder_->latest_step())) return ResumeFromFolder(data, trainer);
  if (!resumed_) return;
  if (resumed_->source == FolderSource()) {
    Throw(absl::StatusCode::kFailedPrecondition, resumed_->source, ": step ", resumed_->step,
          " was there when the run began, and is gone; start it again");
  }
  LoadFile(resume_, resumed_->step, state);
  trainer.set_step(resumed_->step);
  data.GoOnAfter(trainer.step(), resumed_->data);
}

void GptSaving::ResumeFromFolder(GptData& data, Trainer& trainer) {
  const bool is_snapshot = folder_->snapshot_step().has_value();
  const std::string source = is_snapshot ? "the snapshot in memory" : FolderSource();
  trainer.set_step(*folder_->Resume(parts_));
  const GptCheckpointInfo info = ReadGptInfo(source, folder_->resumed_texts());
  WEFT_REQUIRE(info.text_fingerprint == info_.text_fingerprint, source,
               ": it was trained on another text than --data is: expected one of fingerprint ",
               info.text_fingerprint, ", got ", info_.text_fingerprint);
  // Flags, and so the model, come from the texts that were read before there was a world.
  const bool has_read = resumed_ && resumed_->source == FolderSource();
  // A snapshot was taken by this job, whose command line has not changed, after it had read the same.
  const bool is_known = has_read && (is_snapshot || resumed_->step == info.step);
  if (!is_known) RequireSameRun(info, has_read ? &*resumed_ : nullptr, info_);
  data.GoOnAfter(trainer.step(), info.data);
}

void GptSaving::OnStepEnd(Trainer& trainer, int64_t step) {
  if (!folder_) return;
  if (folder_->IsDue(step) || folder_->IsSnapshotDue(step)) {
    trainer.Flush();  // a step whose loss is not finite is not saved
    world_.flight_recorder().SetActivity("saving the checkpoint");
  }
  folder_->AfterStep(step, parts_);
}

void GptSaving::OnLastStep(Trainer& trainer) {
  world_.flight_recorder().SetActivity("saving the checkpoint");
  info_.step = trainer.step();
  info_.data = data_->State();
  // The folder first, from which the run can go on: what becomes of either costs the other nothing.
  std::exception_ptr failed;
  try {
    if (folder_) {
      folder_->Save(trainer.step(), parts_);
      folder_->Wait();
    }
  } catch (const Error& error) {
    // All ranks have it alike. Where one is gone, nobody can gather the file's tensors.
    const bool is_one_gone =
        error.code() == absl::StatusCode::kAborted || error.code() == absl::StatusCode::kDeadlineExceeded;
    if (is_one_gone) throw;
    failed = std::current_exception();
  }
  try {
    if (!save_.empty()) SaveFile(save_, info_, *state_);
  } catch (const std::exception& error) {
    // What went wrong first is what explains the rest.
    if (failed == nullptr) throw;
    if (world_.rank() == 0) std::fprintf(stderr, "weft: the file was not saved, either: %s\n", error.what());
  }
  if (failed != nullptr) std::rethrow_exception(failed);
}

}  // namespace weft
