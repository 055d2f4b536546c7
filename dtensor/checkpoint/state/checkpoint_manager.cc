#include "dtensor/checkpoint/state/checkpoint_manager.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/memory/snapshot_files.h"
#include "dtensor/checkpoint/state/broken_step.h"
#include "dtensor/checkpoint/state/earlier_elements.h"
#include "dtensor/checkpoint/state/shared_folder.h"
#include "dtensor/checkpoint/state/step_contents.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds that this thread has computed.
double ThreadSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Where all cores compute, a writer of the same weight takes a third of what a rank has; at 10 of nice(2), a tenth.
constexpr int kWriterNice = 10;

}  // namespace

CheckpointManager::CheckpointManager(World& world, const CheckpointOptions& options)
    : world_(world),
      options_(options),
      files_(options.files != nullptr ? options.files : MakeDiskFiles()),
      agreement_(world, options.timeout, options.num_ranks) {
  WEFT_REQUIRE(!options_.folder.empty(), "checkpoints: expected a folder");
  WEFT_REQUIRE(options_.save_every >= 0 && options_.keep >= 0 && options_.bytes_per_second >= 0 &&
                   options_.generation >= 0 && options_.snapshot_every >= 0,
               "checkpoints: save_every ", options_.save_every, ", keep ", options_.keep,
               ", bytes_per_second ", options_.bytes_per_second, ", generation ", options_.generation,
               ", snapshot_every ", options_.snapshot_every, "; expected 0 or more of each");
  WEFT_REQUIRE(options_.snapshot_every == 0 || options_.snapshot_memory.has_value(),
               "checkpoints: snapshots every ", options_.snapshot_every,
               " steps, but no memory for them: an agent that outlives the ranks keeps it, weft_run's");
  const std::string no_step = Begin();
  if (options_.snapshot_every == 0) return;
  snapshots_ = std::make_unique<Snapshots>(world, SnapshotOptions{.memory = *options_.snapshot_memory,
                                                                  .folder = options_.folder,
                                                                  .every = options_.snapshot_every,
                                                                  .generation = options_.generation,
                                                                  .timeout = options_.timeout,
                                                                  .num_ranks = options_.num_ranks,
                                                                  .on_taken = options_.on_snapshot,
                                                                  .warn = options_.warn});
  snapshot_step_ = snapshots_->Find(latest_step_);
  if (no_step.empty()) return;
  if (!snapshot_step_) Throw(absl::StatusCode::kDataLoss, no_step);
  if (agreement_.rank() == 0) Warn(absl::StrCat("checkpoint not used: ", no_step));
}

CheckpointManager::~CheckpointManager() {
  if (!writer_.joinable()) return;
  // Where this rank goes under, others may never come to the save; and they learn why only when the stack is unwound.
  if (std::uncaught_exceptions() > 0) agreement_.Cancel();
  hurry_.request_stop();
  writer_.join();
}

// Rank 0: the folder is there then, held unless another job holds it, and without what writers that died left in it.
void CheckpointManager::TakeFolder() {
  MakeFolders(*files_, options_.folder);
  lock_.emplace(*files_, options_.folder, options_.run_id, options_.generation);
  if (lock_->other().empty()) {
    RemoveLeftovers(*files_, options_.folder, [this](const std::string& line) { Warn(line); });
  } else {
    Warn(absl::StrCat("'", options_.folder, "': another job saves there, ", lock_->other(),
                      "; what it is writing is left alone"));
  }
}

// Rank 0: a life of its own, the step to go on from, if there is one, and why there is none if a snapshot may stand in for it;
// with blanks between.
std::string CheckpointManager::Beginning() const {
  FoundStep found;
  std::string no_step;
  try {
    found = FindStepToGoOnFrom(*files_, options_.folder);
  } catch (const Error& error) {
    const bool may_go_on = error.code() == absl::StatusCode::kDataLoss && options_.snapshot_every > 0;
    if (!may_go_on) throw;
    no_step = error.message();
  }
  for (const std::string& line : found.skipped) Warn(absl::StrCat("checkpoint not used: ", line));
  return absl::StrCat(absl::Hex(std::random_device()(), absl::kZeroPad8), " ",
                      found.step ? absl::StrCat(*found.step) : "", " ", no_step);
}

// Returns why there is no step to go on from, if there should be one and a snapshot may stand in for it.
std::string CheckpointManager::Begin() {
  // Before there is a nonce: a job that begins at the same moment would get the lock and take the nonce for a leftover.
  const auto take = [this] {
    if (agreement_.rank() == 0) TakeFolder();
    return std::string();
  };
  agreement_.Agree({.part = take});
  CheckFolderIsShared(agreement_, *files_, options_.folder);
  const std::string word = agreement_.Agree({
      .part = [this] { return agreement_.rank() == 0 ? Beginning() : std::string(); },
      .conclude = [](const std::vector<std::string>& reports) { return reports[0]; },
  });
  const std::vector<std::string> told = absl::StrSplit(word, absl::MaxSplits(' ', 2));
  WEFT_CHECK(told.size() == 3, word);
  life_ = told[0];
  int64_t step = 0;
  if (absl::SimpleAtoi(told[1], &step)) latest_step_ = step;
  return told[2];
}

void CheckpointManager::Warn(const std::string& line) const {
  if (options_.warn != nullptr) return options_.warn(line);
  std::fprintf(stderr, "weft: %s\n", line.c_str());
}

std::optional<int64_t> CheckpointManager::Resume(State& state, const RestoreOptions& options) {
  Wait();
  if (snapshots_ != nullptr && std::exchange(looks_again_, false)) {
    snapshot_step_ = snapshots_->Find(latest_step_);
  }
  if (snapshot_step_) {
    looks_again_ = true;
    RestoreSnapshot(state, options, &resumed_texts_);
    LoadTexts(resumed_texts_, state, options);
    snapshots_->NoteLoaded();
    return std::exchange(snapshot_step_, std::nullopt);
  }
  if (!latest_step_) return std::nullopt;
  StateTexts& texts = resumed_texts_;
  try {
    RestoreStep(*latest_step_, state, options, &texts);
  } catch (const Error& error) {
    // It is the same on every rank. Other errors say that the state does not fit, or that a file could not be read now.
    if (error.code() == absl::StatusCode::kDataLoss) GiveUp(*latest_step_, error);
    throw;
  }
  LoadTexts(texts, state, options);
  current_step_ = latest_step_;
  return latest_step_;
}

RestoreResult CheckpointManager::Load(int64_t step, State& state, const RestoreOptions& options) {
  Wait();
  // What is trained from here on is another step than the one that has its number.
  current_step_ = std::nullopt;
  StateTexts texts;
  RestoreResult result = RestoreStep(step, state, options, &texts);
  LoadTexts(texts, state, options);
  return result;
}

RestoreResult CheckpointManager::RestoreStep(int64_t step, State& state, const RestoreOptions& options,
                                             StateTexts* texts) {
  const auto open = [&] {
    auto reader = std::make_unique<StepReader>(files_, options_.folder, step);
    *texts = reader->manifest().texts;
    return reader;
  };
  return Restore(agreement_, open, state, options);
}

void CheckpointManager::RestoreSnapshot(State& state, const RestoreOptions& options, StateTexts* texts) {
  const std::shared_ptr<Files> files = snapshots_->Fetch(state, options);
  const auto open = [&] {
    auto reader = std::make_unique<SnapshotReader>(files, Snapshots::kFolder, *snapshot_step_);
    *texts = reader->manifest().texts;
    return reader;
  };
  // Each rank has the pieces that it needs.
  RestoreOptions by_each = options;
  by_each.replicas = ReplicaReads::kByEach;
  Restore(agreement_, open, state, by_each);
}

void CheckpointManager::GiveUp(int64_t step, const Error& error) {
  Throw(error.code(), error.message(), "; ", SetBrokenStepAside(agreement_, *files_, options_.folder, step));
}

void CheckpointManager::LoadTexts(const StateTexts& texts, State& state, const RestoreOptions& options) {
  agreement_.Agree({.part = [&] {
    for (const auto& [name, part] : state.parts()) {
      const bool is_wanted =
          options.parts.empty() || std::count(options.parts.begin(), options.parts.end(), name) > 0;
      if (is_wanted) part->LoadTexts(texts);
    }
    return std::string();
  }});
}

// An error on this rank alone becomes its part in WriteStep, so that all ranks take part in the same rounds.
StepToWrite CheckpointManager::Prepare(int64_t step, const State& state) {
  StepToWrite write;
  write.keep = options_.keep;
  write.life = life_;
  write.options = {.step = step,
                   .rank = world_.rank(),
                   .world = agreement_.size(),
                   .with_crc64 = options_.incremental,
                   .bytes_per_second = options_.background ? options_.bytes_per_second : 0,
                   .hurry = hurry_.get_token()};
  StepContents contents = ContentsOf(step, options_.generation, state, agreement_);
  write.manifest = std::move(contents.manifest);
  write.failure = contents.failure;
  if (write.failure != nullptr) return write;
  try {
    AddPieces(std::move(contents.tensors), &write);
  } catch (...) {
    write.failure = std::current_exception();
  }
  return write;
}

// By name, as a load reads them: so a disk reads the file from its beginning to its end.
void CheckpointManager::AddPieces(std::vector<LocalStateTensor> tensors, StepToWrite* write) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.tensor.name < b.tensor.name; });
  std::vector<std::pair<std::string, Tensor>> live;
  for (const LocalStateTensor& local : tensors) {
    const TensorPlace place = PlaceOf(local.tensor.tensor);
    // What several stages have, the first of them saves. What is not there belongs to a rank that has failed.
    const auto known = write->manifest.tensors.find(local.tensor.name);
    if (known == write->manifest.tensors.end() || place != known->second) continue;
    const std::optional<ShardBox> box = BoxOwnedBy(place, world_.rank());
    if (!box) continue;
    PieceToSave& piece = write->pieces.emplace_back();
    piece.name = local.tensor.name;
    piece.record.dtype = place.type.dtype;
    piece.record.box = *box;
    live.push_back({local.tensor.name, local.tensor.tensor.ToLocal()});
  }
  if (options_.background) {
    const std::vector<Tensor> copies = host_.Copy(live, world_.pool());
    for (size_t i = 0; i < copies.size(); ++i) write->pieces[i].elements = copies[i];
  } else {
    for (size_t i = 0; i < live.size(); ++i) write->pieces[i].elements = OnHost(live[i].second);
  }
  world_.ThrowIfCutOff();  // such elements would be anything
}

// In the background: on the writer's thread.
void CheckpointManager::Write(const StepToWrite& step) {
  const double cpu = ThreadSeconds();
  // What a save that fails would have referred to is written anew by the next.
  PieceTable before = std::exchange(last_table_, {});
  if (!options_.incremental) {
    written_ = WriteStep(agreement_, *files_, options_.folder, step, &known_steps_);
  } else {
    StepToWrite shorter = step;
    EarlierElements earlier(*files_, options_.folder, step.manifest.step, std::move(before));
    for (PieceToSave& piece : shorter.pieces) {
      if (!agreement_.cancelled().stop_requested()) earlier.ReferFrom(&piece);
    }
    written_ = WriteStep(agreement_, *files_, options_.folder, shorter, &known_steps_);
  }
  stats_.cpu = ThreadSeconds() - cpu;
  if (options_.on_saved == nullptr || world_.rank() != 0) return;
  // The step is there, whatever becomes of the word about it; and other ranks would not hear of an error.
  try {
    options_.on_saved(step.manifest.step);
  } catch (const std::exception& error) {
    Warn(absl::StrCat("step ", step.manifest.step,
                      ": it is saved, but was not counted as a save: ", error.what()));
  }
}

void CheckpointManager::TakeOver(const WrittenPieces& written, int64_t step) {
  latest_step_ = current_step_ = step;
  looks_again_ = true;
  stats_.written_bytes = written.num_bytes;
  last_save_ = stats_;
  last_table_ = written.table;
  for (auto& [name, record] : last_table_) {
    if (!record.at) record.at = PieceReference{step, RankFileName(world_.rank()), record.offset};
  }
}

void CheckpointManager::Save(int64_t step, const State& state) {
  WEFT_REQUIRE(step >= 0, "checkpoints: step ", step, "; expected 0 or more");
  // A save that failed is told behind this one, which all ranks go through, whenever each learns of the other.
  std::exception_ptr older;
  try {
    WaitForSave();
  } catch (...) {
    older = std::current_exception();
  }
  try {
    if (current_step_ != step) StartSave(step, state);
    if (older != nullptr) WaitForSave();
  } catch (const std::exception& error) {
    // What went wrong first is what explains the rest.
    if (older == nullptr) throw;
    if (agreement_.rank() == 0) Warn(absl::StrCat("the next save failed, too: ", error.what()));
  }
  if (older != nullptr) std::rethrow_exception(older);
}

void CheckpointManager::StartSave(int64_t step, const State& state) {
  const double begun = Now();
  if (lock_) lock_->Retake();
  hurry_ = std::stop_source();
  auto write = std::make_shared<const StepToWrite>(Prepare(step, state));
  stats_ = {.step = step};
  for (const PieceToSave& piece : write->pieces) stats_.num_bytes += piece.record.num_bytes();
  if (!options_.background) {
    Write(*write);
    stats_.stall = stats_.writing = Now() - begun;
    TakeOver(written_, step);
    return;
  }
  stats_.stall = Now() - begun;
  is_over_ = false;
  failure_ = nullptr;
  writer_ = std::thread([this, begun, write] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kWriterNice);  // of this thread; if not, so be it
    try {
      Write(*write);
    } catch (...) {
      failure_ = std::current_exception();
    }
    stats_.writing = Now() - begun;
    is_over_ = true;
  });
}

bool CheckpointManager::AfterStep(int64_t step, const State& state) {
  // A snapshot that failed is told behind the save, which all ranks go through, whenever each learns of it.
  std::exception_ptr snapshot;
  try {
    if (IsSnapshotDue(step)) {
      looks_again_ = true;
      snapshots_->Take(step, state);
    } else if (snapshots_ != nullptr) {
      snapshots_->Poll();
    }
  } catch (...) {
    snapshot = std::current_exception();
  }
  try {
    if (IsDue(step)) {
      Save(step, state);
    } else if (is_over_) {
      WaitForSave();
    }
  } catch (const std::exception& error) {
    if (snapshot == nullptr) throw;
    if (agreement_.rank() == 0) Warn(absl::StrCat("a save failed, too: ", error.what()));
  }
  if (snapshot != nullptr) std::rethrow_exception(snapshot);
  return IsDue(step);
}

void CheckpointManager::Wait() {
  WaitForSave();
  if (snapshots_ != nullptr) snapshots_->Wait();
}

void CheckpointManager::WaitForSave() {
  if (!writer_.joinable()) return;
  hurry_.request_stop();
  writer_.join();
  is_over_ = false;
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  TakeOver(written_, stats_.step);
}

}  // namespace weft
