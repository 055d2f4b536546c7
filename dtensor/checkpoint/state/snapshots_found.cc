// The half of Snapshots that finds one and brings it to the ranks that need it.

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/memory/snapshot_files.h"
#include "dtensor/checkpoint/state/snapshots.h"
#include "mesh/redistribution/region.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

int ParityOf(int segment) { return segment % 2; }

}  // namespace

std::vector<HeldPiece> Snapshots::Held() const {
  std::vector<HeldPiece> held;
  for (const int segment : own_segments_) {
    if (broken_.count(segment) > 0) continue;
    const MemorySegment memory(options_.memory.paths[segment]);
    const auto stamp = ReadStamp(memory);
    const bool is_of_run = stamp && stamp->key.folder == folder_;
    if (is_of_run && TriesOf(memory) < kMostTries)
      held.push_back({.holder = agreement_.rank(), .segment = segment, .stamp = *stamp});
  }
  return held;
}

// What is wrong with the pieces that were chosen and that this rank tells of; they are told of no more.
std::string Snapshots::CheckChosen() {
  std::string problem;
  std::vector<HeldPiece> all = choice_->pieces;
  all.insert(all.end(), choice_->others.begin(), choice_->others.end());
  for (const HeldPiece& piece : all) {
    if (piece.holder != agreement_.rank()) continue;
    const std::string broken = CheckPiece(MemorySegment(options_.memory.paths[piece.segment]), piece.stamp);
    if (broken.empty()) continue;
    broken_.insert(piece.segment);
    problem = absl::StrCat("the piece of rank ", piece.stamp.source, " of ", choice_->key.ToString(),
                           " that rank ", agreement_.rank(), " has: ", broken);
  }
  return problem;
}

// What lies in the segments of all nodes.
std::vector<HeldPiece> Snapshots::HeldByAll() {
  std::string mine;
  try {
    mine = absl::StrCat("+", FormatHeld(Held()));
  } catch (const Error& error) {
    mine = absl::StrCat("-", error.message());
  }
  std::string all;
  const std::vector<std::string> told = agreement_.AllGather(mine);
  for (size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank][0] == '-') {
      Throw(absl::StatusCode::kFailedPrecondition, "rank ", rank, ": ", told[rank].substr(1));
    }
    absl::StrAppend(&all, told[rank].substr(1));
  }
  return ParseHeld(all);
}

std::optional<int64_t> Snapshots::Find(std::optional<int64_t> above) {
  choice_.reset();
  broken_.clear();  // others may have been written there since
  std::optional<SnapshotKey> newest;
  for (;;) {
    const std::vector<HeldPiece> held = HeldByAll();
    if (!newest) newest = NewestKey(held);
    choice_ = ChooseSnapshot(held, above);
    if (!choice_) break;
    const auto first_problem = [](const std::vector<std::string>& reports) {
      for (const std::string& report : reports) {
        if (!report.empty()) return report;
      }
      return std::string();
    };
    const std::string broken =
        agreement_.Agree({.part = [this] { return CheckChosen(); }, .conclude = first_problem});
    if (broken.empty()) break;
    Warn(absl::StrCat("snapshot not used: ", broken));
  }
  if (newest && (!above || newest->step > *above) && (!choice_ || choice_->key < *newest)) {
    Warn(absl::StrCat("snapshot not used: not every piece of ", newest->ToString(), " is in memory"));
  }
  if (!choice_) return std::nullopt;
  whole_parity_ = ParityOf(choice_->pieces[0].segment);
  return choice_->key.step;
}

void Snapshots::SetTriesOfChoice(int tries) const {
  for (const int segment : own_segments_) {
    MemorySegment memory(options_.memory.paths[segment]);
    const auto stamp = ReadStamp(memory);
    if (stamp && stamp->key == choice_->key) SetTries(memory, tries < 0 ? TriesOf(memory) + 1 : tries);
  }
}

void Snapshots::NoteLoaded() { SetTriesOfChoice(0); }

std::string Snapshots::ManifestOfChoice() {
  const HeldPiece& first = choice_->pieces[0];
  std::string mine;
  if (first.holder == agreement_.rank()) {
    mine = ReadSnapshotManifest(MemorySegment(options_.memory.paths[first.segment]), first.stamp);
  }
  return agreement_.AllGather(mine)[first.holder];
}

// The ranks in whose pieces lies what this rank's state reads.
std::set<int> Snapshots::Needs(const Manifest& manifest, const State& state,
                               const RestoreOptions& options) const {
  std::set<int> needs;
  const auto add = [&](const std::string& name, const std::optional<ShardBox>& box) {
    const auto found = manifest.tensors.find(name);
    if (found == manifest.tensors.end()) return;
    for (const OwnedBox& owned : OwnedBoxes(found->second)) {
      const Region stored = {owned.box.offset, owned.box.shape};
      if (box && box->offset.ndim() != owned.box.offset.ndim())
        continue;  // does not fit, as Restore will say
      if (!box || !Intersect(stored, {box->offset, box->shape}).empty()) needs.insert(owned.rank);
    }
  };
  for (const LocalStateTensor& local : TensorsOf(state, options.parts)) {
    const std::string& name = local.tensor.name;
    const std::string outside = options.rename != nullptr ? options.rename(name) : name;
    if (local.is_exact) {
      add(outside, local.tensor.tensor.LocalBox());
      continue;
    }
    // Of what a part adapts nobody knows what it reads, nor by which of the names.
    add(outside, std::nullopt);
    add(name, std::nullopt);
  }
  // Nor of what a part knows and has none of now.
  for (const auto& [part_name, part] : state.parts()) {
    for (const auto& [name, place] : manifest.tensors) {
      if (part->Knows(name)) add(name, std::nullopt);
    }
  }
  return needs;
}

// Who needs which piece, by source.
std::map<int, std::vector<int>> Snapshots::ReadersOf(const std::set<int>& mine) {
  std::map<int, std::vector<int>> readers;
  const std::vector<std::string> needs = agreement_.AllGather(absl::StrJoin(mine, ","));
  for (size_t rank = 0; rank < needs.size(); ++rank) {
    for (const absl::string_view word : absl::StrSplit(needs[rank], ',', absl::SkipEmpty())) {
      int source = 0;
      WEFT_CHECK(absl::SimpleAtoi(word, &source), word);
      readers[source].push_back(static_cast<int>(rank));
    }
  }
  return readers;
}

// A piece where it lies on this rank's node, its own or a copy, or as it was received; undefined, if this rank does not read
// it. Whoever holds it sends it to `readers` on nodes that do not have it.
Tensor Snapshots::Bring(const HeldPiece& piece, const std::vector<int>& readers) {
  const int64_t num_bytes = piece.stamp.num_bytes + piece.stamp.header_bytes;
  std::map<int, const HeldPiece*> by_node = {{node_of_rank_[piece.holder], &piece}};
  for (const HeldPiece& other : choice_->others) {
    if (other.stamp.source == piece.stamp.source) by_node.emplace(node_of_rank_[other.holder], &other);
  }
  const int self = agreement_.rank();
  const bool is_mine = std::count(readers.begin(), readers.end(), self) > 0;
  Tensor bytes;
  const auto here = by_node.find(node_of_rank_[self]);
  if (here != by_node.end() && (is_mine || piece.holder == self)) {
    bytes = MemorySegment(options_.memory.paths[here->second->segment]).Map(kSnapshotElements, num_bytes);
  }
  for (const int reader : readers) {
    if (by_node.count(node_of_rank_[reader]) > 0) continue;
    if (piece.holder == self) group_->Send(bytes, reader).Wait();
    if (reader != self) continue;
    bytes = Tensor::Empty(MakeCpuAllocator(), DType::kU8, {num_bytes});
    group_->Recv(bytes, piece.holder).Wait();
    const std::string problem = CheckPieceBytes("as received", bytes, piece.stamp);
    if (problem.empty()) continue;
    Throw(absl::StatusCode::kDataLoss, "the piece of rank ", piece.stamp.source, " of ",
          choice_->key.ToString(), ", as rank ", piece.holder, " sent it to rank ", self, ": ", problem);
  }
  return is_mine ? bytes : Tensor();
}

std::shared_ptr<Files> Snapshots::Fetch(const State& state, const RestoreOptions& options) {
  WEFT_CHECK(choice_.has_value(), "no snapshot has been found");
  SetTriesOfChoice(-1);
  Manifest manifest = ParseManifest(kFolder, ManifestOfChoice());
  for (const HeldPiece& piece : choice_->pieces) {
    manifest.files[RankFileName(piece.stamp.source)] = {
        .num_bytes = piece.stamp.num_bytes + piece.stamp.header_bytes,
        .header_crc32c = piece.stamp.header_crc32c};
  }
  auto files = std::make_shared<SnapshotFiles>();
  const std::string folder = JoinPath(kFolder, StepName(manifest.step));
  files->AddText(JoinPath(folder, kManifestName), FormatManifest(manifest));
  std::map<int, std::vector<int>> readers = ReadersOf(Needs(manifest, state, options));
  // All go through the same messages in the same order, so none waits for one that waits for it.
  for (const HeldPiece& piece : choice_->pieces) {
    const Tensor bytes = Bring(piece, readers[piece.stamp.source]);
    if (!bytes.defined()) continue;
    files->Add(JoinPath(folder, RankFileName(piece.stamp.source)), bytes, piece.stamp.header_bytes);
  }
  Warn(absl::StrCat("going on from the snapshot of ", choice_->key.ToString(), " in memory"));
  return files;
}

}  // namespace weft
