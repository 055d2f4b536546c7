#include "runtime/comm/gloo/meeting.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"
#include "runtime/comm/gloo/store_adapter.h"

namespace weft {
namespace {

class Round {
 public:
  Round(GlooHub& hub, const std::string& name, const std::vector<int>& ranks, int rank)
      : hub_(hub),
        name_(name),
        ranks_(ranks),
        rank_(rank),
        size_(static_cast<int>(ranks.size())),
        deadline_(std::chrono::steady_clock::now() + hub.options().connect_timeout) {
    meeting_.prefix = hub.NextPrefix(ranks);
    meeting_.peers.resize(size_);
  }

  Meeting Run() {
    ReadIdentities();
    bool all_shared = static_cast<int>(meeting_.hosted.size()) == size_;
    if (meeting_.hosted.size() > 1) {
      ShareMemory();
      all_shared &= AgreeOnMemory();
    }
    if (!all_shared) {
      WEFT_CHECK(size_ > 1, "alone");
      Connect();
    }
    CleanUp();
    return std::move(meeting_);
  }

 private:
  std::string Key(absl::string_view what, int member) const {
    return absl::StrCat(meeting_.prefix, what, "/", member);
  }
  void Say(absl::string_view what, const std::string& value) { hub_.store().Set(Key(what, rank_), value); }

  // What `member` said.
  // Errors: DeadlineExceeded names all who have not.
  std::string Hear(absl::string_view what, int member) {
    try {
      return hub_.Get(Key(what, member), deadline_);
    } catch (const Error& error) {
      if (error.code() == absl::StatusCode::kAborted) {
        Throw(error.code(), "new group '", name_, "': ", error.message());
      }
      if (error.code() != absl::StatusCode::kDeadlineExceeded) throw;
    }
    std::vector<int> missing;
    for (int peer = 0; peer < size_; ++peer) {
      if (!hub_.store().Check({Key(what, peer)})) missing.push_back(ranks_[peer]);
    }
    Throw(absl::StatusCode::kDeadlineExceeded, "new group '", name_, "': world rank ", ranks_[rank_],
          " waited ", hub_.options().connect_timeout.count(), " ms; world ranks [",
          absl::StrJoin(missing, ", "), "] have not made it");
  }

  // Who is here, by which name, and on which host.
  void ReadIdentities() {
    const bool shares = hub_.options().path != GlooPath::kTcp;
    const std::string mine = shares ? hub_.host_identity() : absl::StrCat("alone: ", rank_);
    Say("member", absl::StrCat(mine, "\n", name_));
    for (int peer = 0; peer < size_; ++peer) {
      const std::vector<std::string> said = absl::StrSplit(Hear("member", peer), absl::MaxSplits('\n', 1));
      WEFT_REQUIRE(said.size() == 2 && said[1] == name_, meeting_.prefix, ": rank ", ranks_[rank_],
                   " names the group '", name_, "', rank ", ranks_[peer], " '", said.back(),
                   "': members must make their groups in the same order");
      if (said[0] == mine) meeting_.hosted.push_back(peer);
    }
  }

  void ShareMemory() {
    const std::string& folder = hub_.options().shared_memory_folder;
    std::string address;
    try {
      meeting_.own = MemberMemory::Make(folder, meeting_.hosted, rank_);
      address = meeting_.own->address();
    } catch (const Error& error) {
      meeting_.why_not_shared = error.message();
    }
    Say("memory", address);
    for (int peer : meeting_.hosted) {
      if (peer == rank_) continue;
      const std::string theirs = Hear("memory", peer);
      if (theirs.empty() || meeting_.own == nullptr) continue;
      try {
        meeting_.peers[peer] = MemberMemory::Open(theirs, folder, meeting_.hosted, peer);
      } catch (const Error& error) {
        meeting_.why_not_shared = error.message();
      }
    }
  }

  // Keeps what both ends of a pair can open. True if every pair on this host shares memory.
  bool AgreeOnMemory() {
    std::string opened(size_, '0');
    for (int peer : meeting_.hosted) {
      if (meeting_.peers[peer] != nullptr) opened[peer] = '1';
    }
    Say("opened", opened);
    bool all_shared = true;
    for (int peer : meeting_.hosted) {
      const std::string theirs = Hear("opened", peer);
      for (int other : meeting_.hosted) all_shared &= other == peer || theirs[other] == '1';
      if (peer != rank_ && theirs[rank_] != '1') meeting_.peers[peer] = nullptr;
    }
    if (!all_shared && hub_.options().path == GlooPath::kSharedMemory) {
      Throw(absl::StatusCode::kFailedPrecondition, "new group '", name_, "': not all members share memory: ",
            meeting_.why_not_shared.empty() ? "a peer cannot" : meeting_.why_not_shared);
    }
    return all_shared;
  }

  void Connect() {
    if (hub_.options().path == GlooPath::kSharedMemory) {
      Throw(absl::StatusCode::kFailedPrecondition, "new group '", name_,
            "': its members are on several hosts, so memory alone does not connect them");
    }
    GlooStoreAdapter adapter(
        absl::StrCat(meeting_.prefix, "tcp/"),
        [this](const std::string& key, const std::string& value) { hub_.store().Set(key, value); },
        [this](const std::string& key) { return hub_.Get(key, deadline_); });
    try {
      const auto device = hub_.Device();
      meeting_.mesh = std::make_shared<TcpMesh>(device, adapter, rank_, size_, hub_.options().connect_timeout,
                                                &hub_.event_thread(), &hub_.ticker());
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      Throw(absl::StatusCode::kAborted, "new group '", name_, "': world rank ", ranks_[rank_],
            " cannot connect to its peers: ", error.what());
    }
  }

  // The last to come takes away what nobody reads any more. Gloo's own keys stay: it names them.
  void CleanUp() {
    const std::string key = absl::StrCat(meeting_.prefix, "done");
    if (hub_.store().Add(key, 1) != size_) return;
    for (int peer = 0; peer < size_; ++peer) {
      for (absl::string_view what : {"member", "memory", "opened"}) hub_.store().Delete(Key(what, peer));
    }
    hub_.store().Delete(key);
  }

  GlooHub& hub_;
  const std::string& name_;
  const std::vector<int>& ranks_;
  const int rank_;
  const int size_;
  const std::chrono::steady_clock::time_point deadline_;
  Meeting meeting_;
};

}  // namespace

Meeting Meet(GlooHub& hub, const std::string& name, const std::vector<int>& ranks, int rank) {
  return Round(hub, name, ranks, rank).Run();
}

}  // namespace weft
