#include "dtensor/checkpoint/state/restore.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/checkpoint/folder/tensor_place.h"
#include "dtensor/checkpoint/state/replica_read.h"
#include "dtensor/checkpoint/state/state_table.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

std::string NameOutside(const RestoreOptions& options, const std::string& name) {
  return options.rename != nullptr ? options.rename(name) : name;
}

bool IsKnown(const State& state, const std::string& name) {
  return std::any_of(state.parts().begin(), state.parts().end(),
                     [&](const auto& part) { return part.second->Knows(name); });
}

// Errors: InvalidArgument that lists all that does not fit.
RestoreResult Match(const TensorSource& source, const State& state, const StateTable& table,
                    const RestoreOptions& options) {
  RestoreResult result;
  std::vector<std::string> problems;
  std::set<std::string> taken;
  for (const auto& [name, entry] : table) {
    const std::string outside = NameOutside(options, name);
    if (outside.empty()) continue;
    taken.insert(outside);
    if (!entry.is_exact) continue;
    const TensorType* const saved = source.Find(outside);
    if (saved == nullptr) {
      result.missing.push_back(name);
      if (options.strict) problems.push_back(absl::StrCat("it has no '", outside, "'"));
      continue;
    }
    const TensorType& own = entry.place.type;
    const bool is_cast = options.cast && IsFloating(saved->dtype) && IsFloating(own.dtype);
    if (saved->shape != own.shape || (saved->dtype != own.dtype && !is_cast)) {
      problems.push_back(
          absl::StrCat("'", outside, "' is ", saved->ToString(), ", expected ", own.ToString()));
    }
  }
  for (const std::string& name : options.parts.empty() ? source.Names() : std::vector<std::string>()) {
    if (taken.count(name) > 0 || IsKnown(state, name)) continue;
    result.unexpected.push_back(name);
    if (options.strict) problems.push_back(absl::StrCat("'", name, "' is of no part of the state"));
  }
  WEFT_REQUIRE(problems.empty(), "'", source.path(), "' does not fit: ", absl::StrJoin(problems, "; "));
  return result;
}

// What is read in part alone has no checksum that reading could compare: that is checked before anything is changed.
void CheckPieces(TensorSource& source, const State& state, const StateTable& table,
                 const RestoreOptions& options, const TensorSource::Share& share) {
  std::map<std::string, std::vector<ShardBox>> read;
  for (const auto& [name, entry] : table) {
    const std::string outside = NameOutside(options, name);
    if (outside.empty() || source.Find(outside) == nullptr) continue;
    std::vector<ShardBox>& boxes = read[outside];
    if (!entry.is_exact) continue;  // of which nobody knows what is read
    for (const OwnedBox& owned : OwnedBoxes(entry.place)) boxes.push_back(owned.box);
  }
  for (const std::string& name : options.parts.empty() ? source.Names() : std::vector<std::string>()) {
    if (IsKnown(state, name)) read.try_emplace(name);
  }
  for (const auto& [name, boxes] : read) source.CheckPieces(name, boxes, share);
}

// A tensor on its way from the checkpoint to this rank.
class PieceOnItsWay {
 public:
  PieceOnItsWay(TensorSource& source, const StateTensor& tensor, const std::string& outside)
      : source_(source), tensor_(tensor), outside_(outside) {}

  // On the host, of the checkpoint's dtype: the state's own memory where that will do.
  const Tensor& OnHost() {
    if (on_host_.defined()) return on_host_;
    const DTensor& own = tensor_.tensor;
    const DType dtype = source_.Find(outside_)->dtype;
    const Tensor& in_place = own.ToLocal();
    is_in_place_ = tensor_.set == nullptr && dtype == own.dtype() && in_place.IsContiguous() &&
                   in_place.device().type == DeviceType::kCpu;
    const std::shared_ptr<Allocator>& allocator = own.context()->allocator();
    const bool on_cpu = allocator->device().type == DeviceType::kCpu;
    on_host_ = is_in_place_
                   ? in_place
                   : Tensor::Empty(on_cpu ? allocator : MakeCpuAllocator(), dtype, own.LocalBox().shape);
    return on_host_;
  }

  void Read() { source_.ReadInto(outside_, tensor_.tensor.LocalBox(), OnHost()); }

  // What OnHost has is the state's.
  void Arrive() {
    const DTensor& own = tensor_.tensor;
    if (!is_in_place_) {
      const std::shared_ptr<Allocator>& allocator = own.context()->allocator();
      Tensor piece =
          allocator->device().type == DeviceType::kCpu ? on_host_ : CloneTensor(on_host_, allocator);
      if (tensor_.set != nullptr) {
        if (piece.dtype() != own.dtype()) piece = CastTensor(piece, own.dtype(), allocator);
        tensor_.set(piece);
      } else {
        CopyTensor(piece, own.ToLocal());
      }
    }
    if (tensor_.set == nullptr) own.impl()->MarkWritten("load");
    on_host_ = Tensor();
  }

 private:
  TensorSource& source_;
  const StateTensor& tensor_;
  const std::string outside_;
  Tensor on_host_;
  bool is_in_place_ = false;
};

// The exact tensors of this rank, by name.
class Loading {
 public:
  Loading(TensorSource& source, const StateTable& table, const std::vector<LocalStateTensor>& tensors,
          const RestoreOptions& options, bool once, int rank)
      : rank_(rank) {
    if (once) replicas_ = DivideReplicas(table, tensors, rank);
    for (const LocalStateTensor& local : tensors) {
      const std::string outside = NameOutside(options, local.tensor.name);
      if (!local.is_exact || outside.empty() || source.Find(outside) == nullptr) continue;
      pieces_.emplace(local.tensor.name, PieceOnItsWay(source, local.tensor, outside));
    }
  }

  // What this rank reads itself.
  void Read() {
    for (auto& [name, piece] : pieces_) {
      const auto replica = replicas_.find(name);
      if (replica != replicas_.end() && replica->second.reader != rank_) continue;
      piece.Read();
      if (replica == replicas_.end()) piece.Arrive();
    }
  }

  // What it has read goes to the others, what they have read comes here. All ranks have the messages in the order of the names:
  // the first that is not over waits for none.
  void Exchange(Agreement& agreement) {
    std::vector<Message> sends, receives;
    std::vector<PieceOnItsWay*> arriving;
    int64_t num_bytes = 0;
    const auto flush = [&] {
      agreement.SendRecv(sends, receives);
      for (PieceOnItsWay* const piece : arriving) piece->Arrive();
      sends.clear(), receives.clear(), arriving.clear();
      num_bytes = 0;
    };
    for (auto& [name, piece] : pieces_) {
      const auto replica = replicas_.find(name);
      if (replica == replicas_.end()) continue;
      const Tensor& on_host = piece.OnHost();
      if (replica->second.reader != rank_) receives.push_back({replica->second.reader, on_host});
      for (const int holder : replica->second.holders) {
        if (replica->second.reader == rank_ && holder != rank_) sends.push_back({holder, on_host});
      }
      arriving.push_back(&piece);
      num_bytes += on_host.num_bytes();
      if (num_bytes >= kMostInFlight) flush();
    }
    if (!arriving.empty()) flush();
  }

 private:
  static constexpr int64_t kMostInFlight = 16 << 20;

  const int rank_;
  std::map<std::string, ReplicaRead> replicas_;
  std::map<std::string, PieceOnItsWay> pieces_;
};

bool ReadsOnce(Agreement& agreement, ReplicaReads replicas) {
  if (replicas != ReplicaReads::kAuto) return replicas == ReplicaReads::kOnce;
  const std::vector<std::string> hosts = agreement.AllGather(HostName());
  return std::any_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host != hosts[0]; });
}

}  // namespace

RestoreResult Restore(Agreement& agreement, const std::function<std::unique_ptr<TensorSource>()>& open,
                      const State& state, const RestoreOptions& options) {
  const std::vector<LocalStateTensor> tensors = TensorsOf(state, options.parts);
  const StateTable table = GatherStateTable(agreement, tensors);
  const bool once = ReadsOnce(agreement, options.replicas);
  std::unique_ptr<TensorSource> source;
  std::optional<Loading> loading;
  RestoreResult result;
  agreement.Agree({.part = [&] {
    source = open();
    result = Match(*source, state, table, options);
    CheckPieces(*source, state, table, options, {agreement.rank(), agreement.size()});
    return std::string();
  }});
  agreement.Agree({.part = [&] {
    loading.emplace(*source, table, tensors, options, once, agreement.rank());
    loading->Read();
    for (const auto& [name, part] : state.parts()) {
      const bool is_wanted =
          options.parts.empty() || std::count(options.parts.begin(), options.parts.end(), name) > 0;
      if (is_wanted && !part->is_exact()) part->Load(*source);
    }
    return std::string();
  }});
  loading->Exchange(agreement);
  return result;
}

}  // namespace weft
