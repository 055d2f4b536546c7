#include "dtensor/checkpoint/state/snapshots.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/tensor_functions.h"

namespace weft {
namespace {

// Of the four segments of a local rank: two for snapshots, two for copies.
int SegmentOf(int local_rank, bool is_copy, int parity) {
  return local_rank * kSegmentsPerRank + (is_copy ? 2 : 0) + parity;
}

// What a thread copies at once, as HostPieces.
constexpr int64_t kPart = 1 << 20;
constexpr std::chrono::milliseconds kPoll(2);
// As the thread of a save that runs beside training.
constexpr int kNice = 10;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// SnapshotKey::folder: the same from wherever the folder is named.
uint64_t FolderKey(const std::string& folder) {
  std::error_code ignored;  // where there is no current folder the path stays as it is
  const std::filesystem::path absolute = std::filesystem::absolute(folder, ignored);
  std::filesystem::path path =
      (absolute.empty() ? std::filesystem::path(folder) : absolute).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // of "runs/a/"
  const std::string text = path.string();
  return Crc64(text.data(), std::ssize(text));
}

}  // namespace

Snapshots::Snapshots(World& world, const SnapshotOptions& options)
    : world_(world), options_(options), agreement_(world, options.timeout, options.num_ranks) {
  const SnapshotMemory& memory = options_.memory;
  WEFT_REQUIRE(std::ssize(memory.paths) == int64_t{kSegmentsPerRank} * memory.local_size &&
                   memory.local_rank >= 0 && memory.local_rank < memory.local_size,
               "snapshots: ", memory.paths.size(), " segments of memory for ", memory.local_size,
               " ranks of a node; expected ", kSegmentsPerRank, " for each");
  std::vector<int> ranks(agreement_.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  group_ = world_.NewHostGroup("snapshots", ranks);
  group_->SetInBackground();
  std::vector<int> here;
  for (const std::string& text :
       agreement_.AllGather(absl::StrCat(memory.node, " ", FolderKey(options_.folder)))) {
    const std::pair<std::string, std::string> words = absl::StrSplit(text, ' ');
    int node = 0;
    uint64_t folder = 0;
    WEFT_CHECK(absl::SimpleAtoi(words.first, &node) && absl::SimpleAtoi(words.second, &folder), text);
    if (node_of_rank_.empty()) folder_ = folder;
    if (node == memory.node) here.push_back(static_cast<int>(node_of_rank_.size()));
    node_of_rank_.push_back(node);
  }
  copies_ = BuddyCopies(node_of_rank_);
  // The node's ranks share its segments out: those of a rank that is a spare now are told of, too.
  const int64_t place = std::find(here.begin(), here.end(), agreement_.rank()) - here.begin();
  for (int64_t i = place; i < std::ssize(memory.paths); i += std::ssize(here)) {
    own_segments_.push_back(static_cast<int>(i));
  }
}

Snapshots::~Snapshots() {
  if (!finisher_.joinable()) return;
  // Where this rank goes under, others may never come to the end.
  if (std::uncaught_exceptions() > 0) {
    cancelled_ = true;
    agreement_.Cancel();
    group_->Abort("the rank has given its snapshot up");
  }
  finisher_.join();
}

void Snapshots::Warn(const std::string& line) const {
  if (agreement_.rank() != 0) return;
  if (options_.warn != nullptr) return options_.warn(line);
  std::fprintf(stderr, "weft: %s\n", line.c_str());
}

// The segments that are written now, without stamps and with room: the rank's own first, then copies.
std::vector<Snapshots::Incoming> Snapshots::Begin(const Manifest& manifest) {
  std::vector<Incoming> incoming(1);
  incoming[0].source = agreement_.rank();
  std::vector<int> segments = {SegmentOf(options_.memory.local_rank, /*is_copy=*/false, parity_)};
  for (const BuddyCopy& copy : copies_) {
    if (copy.to != agreement_.rank()) continue;
    Incoming& other = incoming.emplace_back();
    other.source = other.peer = copy.from;
    segments.push_back(SegmentOf(copy.slot, /*is_copy=*/true, parity_));
  }
  for (size_t i = 0; i < incoming.size(); ++i) {
    Incoming& piece = incoming[i];
    piece.pieces = PiecesOwnedBy(manifest, piece.source);
    piece.segment = std::make_shared<MemorySegment>(options_.memory.paths[segments[i]]);
    const int64_t num_bytes = NumBytes(piece.pieces);
    BeginPiece(*piece.segment, num_bytes);
    piece.elements = piece.segment->Map(kSnapshotElements, num_bytes);
  }
  return incoming;
}

void Snapshots::CopyOwn(const std::vector<LocalStateTensor>& tensors, const Incoming& own) {
  struct Part {
    const char* from = nullptr;
    char* to = nullptr;
    int64_t num_bytes = 0;
  };
  std::map<std::string, const LocalStateTensor*> by_name;
  for (const LocalStateTensor& local : tensors) by_name[local.tensor.name] = &local;
  std::vector<Tensor> on_host;  // of the CPU's; kept until all is copied
  std::vector<Part> parts;
  char* next = static_cast<char*>(own.elements.data());
  for (const PieceToSave& piece : own.pieces) {
    const Tensor& local = by_name.at(piece.name)->tensor.tensor.ToLocal();
    const int64_t num_bytes = local.num_bytes();
    WEFT_CHECK(num_bytes == piece.record.num_bytes(), piece.name);
    if (num_bytes == 0) continue;
    char* const to = std::exchange(next, next + num_bytes);
    if (local.device().type != DeviceType::kCpu) {
      // A copy between would take the state's size once more of a node that has room for what TellCost says.
      TensorFunctionsOf(local.device().type).to_host(local, to);
      continue;
    }
    const Tensor from = on_host.emplace_back(OnHost(local));
    for (int64_t done = 0; done < num_bytes; done += kPart) {
      parts.push_back(
          {static_cast<const char*>(from.data()) + done, to + done, std::min(kPart, num_bytes - done)});
    }
  }
  world_.pool().Run(std::ssize(parts), [&](int64_t i) {
    std::memcpy(parts[i].to, parts[i].from, static_cast<size_t>(parts[i].num_bytes));
  });
  world_.ThrowIfCutOff();  // such elements would be anything
}

// The messages by which each copy goes to its node, under way.
Work Snapshots::Shift(const std::vector<Incoming>& incoming) {
  std::vector<Message> sends, receives;
  for (const BuddyCopy& copy : copies_) {
    if (copy.from == agreement_.rank() && incoming[0].elements.num_bytes() > 0) {
      sends.push_back({copy.to, incoming[0].elements});
    }
  }
  for (const Incoming& piece : incoming) {
    if (piece.peer >= 0 && piece.elements.num_bytes() > 0) receives.push_back({piece.peer, piece.elements});
  }
  if (sends.empty() && receives.empty()) return Work();
  return group_->SendRecv(sends, receives, {.async = true});
}

// The place that does not hold the last whole snapshot. A rank may not have heard that it is whole: then one that has, says so.
int Snapshots::PlaceForNext() {
  int64_t newest = -1;
  int place = -1;
  for (const std::string& text : agreement_.AllGather(absl::StrCat(whole_, " ", whole_parity_))) {
    const std::pair<std::string, std::string> words = absl::StrSplit(text, ' ');
    int64_t serial = 0;
    int parity = 0;
    WEFT_CHECK(absl::SimpleAtoi(words.first, &serial) && absl::SimpleAtoi(words.second, &parity), text);
    if (parity < 0 || (place >= 0 && serial < newest)) continue;
    newest = serial;
    place = parity;
  }
  whole_ = newest;
  whole_parity_ = place;
  return place < 0 ? 0 : 1 - place;
}

void Snapshots::Take(int64_t step, const State& state) {
  // One that failed is told behind this one, which all ranks go through, whenever each learns of the other.
  std::exception_ptr older;
  try {
    Wait();
  } catch (...) {
    older = std::current_exception();
  }
  try {
    TakeNow(step, state);
    if (older != nullptr) Wait();
  } catch (const std::exception& error) {
    // What went wrong first is what explains the rest.
    if (older == nullptr) throw;
    Warn(absl::StrCat("the next snapshot failed, too: ", error.what()));
  }
  if (older == nullptr) return;
  std::rethrow_exception(older);
}

void Snapshots::TakeNow(int64_t step, const State& state) {
  const double begun = Now();
  StepContents contents = ContentsOf(step, options_.generation, state, agreement_);
  parity_ = PlaceForNext();
  std::vector<Incoming> incoming;
  // Nobody waits for the message of a rank that has failed.
  const std::vector<std::string> all = TellOutcome(step, [&] {
    if (contents.failure != nullptr) std::rethrow_exception(contents.failure);
    incoming = Begin(contents.manifest);
    CopyOwn(contents.tensors, incoming[0]);
    stats_ = {.step = step, .own_bytes = incoming[0].elements.num_bytes()};
    for (const Incoming& piece : incoming) {
      if (piece.peer >= 0) stats_.copied_bytes += piece.elements.num_bytes();
    }
    return absl::StrCat(stats_.own_bytes, " ", stats_.copied_bytes);
  });
  if (serial_ == 0) TellCost(all);
  Work messages;
  TellOutcome(step, [&] {
    messages = Shift(incoming);
    return std::string();
  });
  stats_.stall = Now() - begun;
  Start(std::move(incoming), std::move(contents.manifest), messages);
}

// Does a part of a snapshot, and tells all what came of it: returns what the parts return, by rank, or throws on all.
std::vector<std::string> Snapshots::TellOutcome(int64_t step, const std::function<std::string()>& part) {
  std::string mine;
  try {
    mine = absl::StrCat("+", part());
  } catch (const std::exception& error) {
    mine = absl::StrCat("-", error.what());
  }
  std::vector<std::string> all = agreement_.AllGather(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const bool is_well = all[rank][0] == '+';
    all[rank].erase(0, 1);
    if (is_well) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "no snapshot of step ", step, ": rank ", rank, ": ",
          all[rank]);
  }
  return all;
}

void Snapshots::TellCost(const std::vector<std::string>& told) {
  int64_t own = 0, copied = 0, most = 0;
  for (const std::string& text : told) {
    const std::pair<std::string, std::string> words = absl::StrSplit(text, ' ');
    int64_t mine = 0, others = 0;
    WEFT_CHECK(absl::SimpleAtoi(words.first, &mine) && absl::SimpleAtoi(words.second, &others), text);
    own += mine;
    copied += others;
    most = std::max(most, mine + others);
  }
  const auto mb = [](int64_t num_bytes) { return absl::StrFormat("%.1f MB", 1e-6 * num_bytes); };
  Warn(absl::StrCat("snapshots", options_.every > 0 ? absl::StrCat(" every ", options_.every, " steps") : "",
                    " take ", mb(2 * (own + copied)), " of memory: twice ", mb(own), " of the ranks' state",
                    copied > 0 ? absl::StrCat(", twice ", mb(copied), " of copies on other nodes")
                               : std::string(", no copies, as there is one node"),
                    "; ", mb(2 * most), " for one rank at most"));
}

// What becomes of a snapshot beside training; returns the checksums of this rank's heads, "SOURCE CRC,...".
std::string Snapshots::Finish(std::vector<Incoming>& incoming, const Manifest& manifest,
                              const SnapshotKey& key, const Work& messages) {
  std::string report;
  for (Incoming& piece : incoming) {
    // Not Wait: that is for the rank's thread.
    while (piece.peer >= 0 && !messages.Test()) {
      if (cancelled_) Throw(absl::StatusCode::kAborted, "this rank has given its snapshot up");
      std::this_thread::sleep_for(kPoll);
    }
    if (piece.peer >= 0) messages.Wait();
    const SnapshotStamp stamp =
        EndPiece(*piece.segment, piece.elements, std::move(piece.pieces), manifest, key, piece.source);
    absl::StrAppend(&report, piece.source, " ", stamp.header_crc32c, ",");
  }
  // What is sent must stay until it has arrived.
  while (!messages.Test() && !cancelled_) std::this_thread::sleep_for(kPoll);
  messages.Wait();
  return report;
}

void Snapshots::Start(std::vector<Incoming> incoming, Manifest manifest, const Work& messages) {
  const SnapshotKey key = {.step = manifest.step,
                           .generation = options_.generation,
                           .serial = serial_++,
                           .world = agreement_.size(),
                           .folder = folder_};
  is_over_ = false;
  failure_ = nullptr;
  // The head of a piece has the checksums of its boxes: a copy whose head is the owner's is a copy.
  const auto compare = [](const std::vector<std::string>& reports) {
    std::map<std::string, std::string> crcs;  // by source
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      for (const absl::string_view line : absl::StrSplit(reports[rank], ',', absl::SkipEmpty())) {
        const std::pair<std::string, std::string> words = absl::StrSplit(line, ' ');
        if (crcs.emplace(words.first, words.second).first->second == words.second) continue;
        Throw(absl::StatusCode::kDataLoss, "the copy of the snapshot of rank ", words.first, " that rank ",
              rank, " has got is not what was sent");
      }
    }
    return std::string();
  };
  finisher_ = std::thread([this, key, compare, messages, begun = Now(),
                           shared = std::make_shared<std::pair<std::vector<Incoming>, Manifest>>(
                               std::move(incoming), std::move(manifest))] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);  // of this thread; if not, so be it
    try {
      agreement_.Agree({.part = [&] { return Finish(shared->first, shared->second, key, messages); },
                        .conclude = compare});
    } catch (...) {
      failure_ = std::current_exception();
    }
    // It is whole, whatever becomes of the word about it.
    try {
      if (failure_ == nullptr && options_.on_taken != nullptr && agreement_.rank() == 0) {
        options_.on_taken(key.step);
      }
    } catch (const std::exception& error) {
      Warn(absl::StrCat("snapshot of step ", key.step,
                        ": it is whole, but was not counted as a save: ", error.what()));
    }
    stats_.finishing = Now() - begun;
    is_over_ = true;
  });
}

void Snapshots::Wait() {
  if (!finisher_.joinable()) return;
  finisher_.join();
  is_over_ = false;
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
  whole_ = serial_ - 1;
  whole_parity_ = parity_;
  last_ = stats_;
}

}  // namespace weft
