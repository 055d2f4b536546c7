#include "tools/launcher/rendezvous/store_rendezvous.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// A wait that lasts longer is worth a line.
constexpr std::chrono::seconds kPatience{3};
// Between looks for a signal of whoever waits for the others.
constexpr std::chrono::milliseconds kSignalPoll{100};

}  // namespace

// What one call of Next keeps between its looks at the state.
struct StoreRendezvous::Gathering {
  Clock::time_point begin = Clock::now();
  Clock::time_point gathers_since = begin;  // what join_timeout is of
  std::optional<Clock::time_point> enough_since = std::nullopt;
  Liveness liveness;
  bool said = false;
};

StoreRendezvous::StoreRendezvous(std::shared_ptr<Store> store, StoreRendezvousOptions options)
    : store_(std::move(store)), options_(std::move(options)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  WEFT_CHECK(event_.open(), "eventfd failed");
  current_.generation = -1;
}

StoreRendezvous::~StoreRendezvous() { StopWatching(); }

std::optional<Assignment> StoreRendezvous::Next(const std::function<bool()>& cancelled) {
  if (!watcher_.joinable()) {
    beaten_at_ = Clock::now();
    watcher_ = std::thread([this] { Watch(); });
  }
  TellThatIHaveLeft();
  Gathering gathering = {.liveness = Liveness(*store_, options_.beat, options_.silence)};
  for (;;) {
    if (cancelled()) {
      const MeetingState state = Withdraw(absl::StrCat("node ", options_.host, " was told to stop"));
      if (IsNewToMe(state)) return Begin(state);
      return std::nullopt;
    }
    if (!BeatsGoThrough()) gathering.liveness = Liveness(*store_, options_.beat, options_.silence);
    const std::string text = store_->TryGet(kStateKey).value_or("");
    MeetingState state = text.empty() ? MeetingState{.min_nodes = options_.min_nodes,
                                                     .max_nodes = options_.max_nodes,
                                                     .workers_per_node = options_.workers_per_node}
                                      : MeetingState::FromText(text);
    if (options_.holds_store && state.Find(options_.id) == nullptr && !state.closed.empty()) {
      if (std::optional<Assignment> over = LookOn(state)) return over;
    }
    // Even of a generation that others have ended meanwhile this node was a part.
    if (IsNewToMe(state)) return Begin(state);
    const std::string desired = Advanced(state, &gathering).ToText();
    if (desired != text) {
      if (store_->CompareSet(kStateKey, text, desired) != desired) continue;
      state = MeetingState::FromText(desired);
      if (const MeetingNode* const self = state.Find(options_.id)) arrival_ = self->arrival;
    }
    if (IsNewToMe(state)) return Begin(state);
    if (!CountsJoinTimeout(state, &gathering)) gathering.gathers_since = Clock::now();
    if (Clock::now() - gathering.gathers_since >= options_.join_timeout) {
      const MeetingState without_me = Withdraw(absl::StrCat("node ", options_.host, " has waited in vain"));
      if (IsNewToMe(without_me)) return Begin(without_me);
      ThrowTooFew(state);
    }
    SayWhoIsMissing(state, &gathering);
    WaitToLook(cancelled);
  }
}

// Until the next look at the others, or a signal.
void StoreRendezvous::WaitToLook(const std::function<bool()>& cancelled) const {
  const Clock::time_point until = Clock::now() + options_.poll;
  for (Clock::time_point now = Clock::now(); now < until && !cancelled(); now = Clock::now()) {
    std::this_thread::sleep_for(std::min<Clock::duration>(until - now, kSignalPoll));
  }
}

// A node outside waits as long as the job runs, and one that is left out as long as there are others.
bool StoreRendezvous::CountsJoinTimeout(const MeetingState& state, Gathering* gathering) {
  return !state.running && (!state.IsLeftOut(options_.id) || !AnyMayLive(state, gathering));
}

// Where this node's own signs of life wait for room in the store, those of the others do, too.
bool StoreRendezvous::BeatsGoThrough() const {
  return Clock::now() - beaten_at_.load() < options_.silence / 2;
}

// The generation before is over for this node: whoever holds the store and goes need not wait for it.
void StoreRendezvous::TellThatIHaveLeft() {
  if (current_.generation < 0 || left_generation_ == current_.generation || !End()) return;
  left_generation_ = current_.generation;
  store_->Add(LeftKey(current_.generation), 1);
}

bool StoreRendezvous::IsNewToMe(const MeetingState& state) const {
  return state.running && state.generation > current_.generation && state.Find(options_.id) != nullptr;
}

MeetingState StoreRendezvous::Advanced(MeetingState state, Gathering* gathering) {
  if (!state.closed.empty()) {
    Throw(absl::StatusCode::kAborted, "the job is over: ", state.closed);
  }
  RequireFit(state);
  if (state.IsLeftOut(options_.id) && !options_.holds_store) Throw(absl::StatusCode::kAborted, WhyLeftOut());
  const bool member = state.Find(options_.id) != nullptr;
  if (state.running && member && state.generation == current_.generation) {
    const std::optional<GenerationEnd> end = End();
    WEFT_CHECK(end && end->restart, "generation ", state.generation, " has not ended, or is the last");
    Reopen(&state, *end);
  }
  const bool left_out = state.IsLeftOut(options_.id);
  if (state.running) {
    if (!member && !left_out && !absl::c_linear_search(state.waiting, options_.id)) {
      state.waiting.push_back(options_.id);
    }
    if (!EndedUnseen(&state, gathering)) return state;
  }
  if (left_out) return state;
  JoinIfAbsent(&state, gathering);
  RunIfComplete(&state, gathering);
  return state;
}

// Looks at each every time, so that it knows of all as long.
bool StoreRendezvous::AnyMayLive(const MeetingState& state, Gathering* gathering) {
  std::vector<std::string> ids = state.expected;
  for (const MeetingNode& node : state.nodes) ids.push_back(node.id);
  return absl::c_count_if(ids, [&](const std::string& id) { return MayLive(id, gathering); }) > 0;
}

bool StoreRendezvous::MayLive(const std::string& id, Gathering* gathering) {
  return gathering->liveness.Of(id) != Liveness::Life::kSilent;
}

bool StoreRendezvous::EndedUnseen(MeetingState* state, Gathering* gathering) {
  if (!options_.store_apart && !options_.holds_store) return false;
  if (state->Find(options_.id) != nullptr || AnyMayLive(*state, gathering)) return false;
  GenerationEnd end = {.kind = GenerationEnd::Kind::kLost,
                       .restart = true,
                       .exit_code = 1,
                       .headline = "all nodes were lost",
                       .saved = HasSaved(state->generation)};
  // In a store apart others go on, however often that happens.
  end.restart = options_.store_apart || MayGoOn(end, *state);
  end = GenerationEnd::FromText(store_->CompareSet(EndKey(state->generation), "", end.ToText()));
  if (!end.restart) state->closed = end.WhyOver();
  if (end.restart) Reopen(state, end);
  return end.restart;
}

void StoreRendezvous::RequireFit(const MeetingState& state) {
  if (state.workers_per_node != options_.workers_per_node) {
    const std::string why =
        absl::StrCat("node ", options_.host, " starts ", options_.workers_per_node, " workers, the others ",
                     state.workers_per_node, ": --nproc_per_node must be the same on all nodes");
    // At the start a job like this is a mistake for all; later a stray node must not stop it.
    if (state.generation == 0 && !state.running) Close(why);
    ThrowInvalidArgument(why);
  }
  WEFT_REQUIRE(state.min_nodes == options_.min_nodes && state.max_nodes == options_.max_nodes, "node ",
               options_.host, " was started with --nnodes=", options_.min_nodes, ":", options_.max_nodes,
               ", the others with ", state.min_nodes, ":", state.max_nodes);
}

std::optional<Assignment> StoreRendezvous::LookOn(const MeetingState& state) {
  const std::optional<std::string> end = store_->TryGet(EndKey(state.generation));
  if (!end) return std::nullopt;
  const GenerationEnd last = GenerationEnd::FromText(*end);
  // The job is over for what came after, such as too few nodes that stay.
  if (last.restart) return std::nullopt;
  looks_on_ = true;
  const std::lock_guard<std::mutex> lock(mutex_);
  current_ = state;
  end_.reset();
  SetEndLocked(state.generation, last);
  return Assignment{.generation = state.generation,
                    .restarts = state.restarts,
                    .num_nodes = static_cast<int>(state.nodes.size()),
                    .world_size = static_cast<int>(state.nodes.size()) * options_.workers_per_node,
                    .master_addr = options_.master_addr,
                    .master_port = options_.master_port};
}

std::string StoreRendezvous::WhyLeftOut() const {
  return absl::StrCat("node ", options_.host, " is left out of the job: its workers failed ",
                      MeetingState::kMostFailures, " times within ", MeetingState::kFailureWindow / 60,
                      " minutes without a save between them");
}

void StoreRendezvous::JoinIfAbsent(MeetingState* state, Gathering* gathering) {
  if (state->Find(options_.id) != nullptr || !RankIsFree(*state, gathering)) return;
  if (options_.fixed_rank >= 0) {
    // Whoever had this rank has fallen silent.
    std::erase_if(state->nodes,
                  [&](const MeetingNode& node) { return node.fixed_rank == options_.fixed_rank; });
  }
  state->Join(
      {.id = options_.id, .host = options_.host, .fixed_rank = options_.fixed_rank, .arrival = arrival_});
}

bool StoreRendezvous::RankIsFree(const MeetingState& state, Gathering* gathering) {
  if (options_.fixed_rank < 0) return HasPlace(state, gathering);
  for (const MeetingNode& node : state.nodes) {
    if (node.fixed_rank != options_.fixed_rank) continue;
    const Liveness::Life life = gathering->liveness.Of(node.id);
    WEFT_REQUIRE(life != Liveness::Life::kAlive, "--node_rank=", options_.fixed_rank, " is that of node ",
                 node.host, " already: each node needs its own");
    return life == Liveness::Life::kSilent;
  }
  return true;
}

// Places are kept for those of the generation before, until they are known to be gone.
bool StoreRendezvous::HasPlace(const MeetingState& state, Gathering* gathering) {
  auto taken = std::ssize(state.nodes);
  if (!absl::c_linear_search(state.expected, options_.id)) {
    taken += absl::c_count_if(state.expected, [&](const std::string& id) {
      return state.Find(id) == nullptr && MayLive(id, gathering);
    });
  }
  return taken < state.max_nodes;
}

void StoreRendezvous::RunIfComplete(MeetingState* state, Gathering* gathering) {
  std::vector<MeetingNode>& nodes = state->nodes;
  const auto self = std::find_if(nodes.begin(), nodes.end(),
                                 [&](const MeetingNode& node) { return node.id == options_.id; });
  if (self == nodes.end()) return;
  // Each looks after the one before it, so that a node that died here does not keep its place.
  const auto previous = self == nodes.begin() ? nodes.end() - 1 : self - 1;
  if (previous != self && gathering->liveness.Of(previous->id) == Liveness::Life::kSilent)
    nodes.erase(previous);

  const int num_nodes = static_cast<int>(nodes.size());
  if (num_nodes < state->min_nodes) {
    gathering->enough_since.reset();
    return;
  }
  if (!gathering->enough_since) gathering->enough_since = Clock::now();
  bool all_back = !state->expected.empty();
  for (const std::vector<std::string>* const ids : {&state->expected, &state->waiting}) {
    for (const std::string& id : *ids) {
      if (state->Find(id) == nullptr && MayLive(id, gathering)) all_back = false;
    }
  }
  if (num_nodes >= state->max_nodes || all_back ||
      Clock::now() - *gathering->enough_since >= options_.last_call) {
    state->Run();
  }
}

Assignment StoreRendezvous::Begin(const MeetingState& state) {
  const MeetingNode* const self = state.Find(options_.id);
  const int node_rank = static_cast<int>(self - state.nodes.data());
  const int num_nodes = static_cast<int>(state.nodes.size());
  const std::optional<std::string> end = store_->TryGet(EndKey(state.generation));
  const std::lock_guard<std::mutex> lock(mutex_);
  current_ = state;
  end_.reset();
  for (uint64_t events = 0; read(event_.get(), &events, sizeof(events)) > 0;) continue;
  if (end) SetEndLocked(state.generation, GenerationEnd::FromText(*end));
  return {.generation = state.generation,
          .restarts = state.restarts,
          .node_rank = node_rank,
          .num_nodes = num_nodes,
          .rank_offset = node_rank * options_.workers_per_node,
          .world_size = num_nodes * options_.workers_per_node,
          .master_addr = options_.master_addr,
          .master_port = options_.master_port};
}

template <class Change>
MeetingState StoreRendezvous::ChangeState(const Change& change) {
  for (;;) {
    const std::string text = store_->TryGet(kStateKey).value_or("");
    if (text.empty()) return {};
    MeetingState state = MeetingState::FromText(text);
    change(&state);
    const std::string desired = state.ToText();
    if (desired == text || store_->CompareSet(kStateKey, text, desired) == desired) return state;
  }
}

MeetingState StoreRendezvous::Withdraw(const std::string& why) {
  return ChangeState([&](MeetingState* state) {
    if (IsNewToMe(*state)) return;
    state->Remove(options_.id);
    if (!state->closed.empty() || (state->generation == 0 && !state->running)) return;
    const bool are_too_few = options_.max_restarts == 0 && state->NumStaying() < state->min_nodes;
    if (are_too_few || options_.holds_store) state->closed = why;
  });
}

void StoreRendezvous::Close(const std::string& why) {
  ChangeState([&](MeetingState* state) {
    if (state->closed.empty()) state->closed = why;
  });
}

std::string StoreRendezvous::Presence(const MeetingState& state) const {
  const std::string where = absl::StrCat(options_.master_addr, ":", options_.master_port);
  if (state.running) {
    return absl::StrCat("there is no room in the job at ", where, ", which runs on ", state.nodes.size(),
                        " of at most ", state.max_nodes, " nodes");
  }
  const std::string hosts = absl::StrJoin(
      state.nodes, ", ", [](std::string* out, const MeetingNode& node) { absl::StrAppend(out, node.host); });
  return absl::StrCat(state.nodes.size(), " of ", state.min_nodes, " nodes are at ", where,
                      hosts.empty() ? "" : absl::StrCat(" (", hosts, ")"));
}

void StoreRendezvous::SayWhoIsMissing(const MeetingState& state, Gathering* gathering) const {
  if (gathering->said || !options_.say || Clock::now() - gathering->begin < kPatience) return;
  gathering->said = true;
  options_.say(state.IsLeftOut(options_.id)
                   ? absl::StrCat(WhyLeftOut(), "; it keeps the store until the job is over")
                   : absl::StrCat("waiting: ", Presence(state)));
}

void StoreRendezvous::ThrowTooFew(const MeetingState& state) const {
  Throw(absl::StatusCode::kDeadlineExceeded, "waited ", Seconds(options_.join_timeout), ": ", Presence(state),
        "; --rdzv_conf=join_timeout=SECONDS waits longer");
}

void StoreRendezvous::Done() {
  const int64_t done = store_->Add(absl::StrCat("done/", current_.generation), 1);
  if (done == static_cast<int64_t>(current_.nodes.size())) Publish({.kind = GenerationEnd::Kind::kFinished});
}

bool StoreRendezvous::HasSaved(int64_t generation) const {
  return options_.has_saved && options_.has_saved(generation);
}

bool StoreRendezvous::MayGoOn(const GenerationEnd& end, const MeetingState& state) const {
  if (end.kind == GenerationEnd::Kind::kGrow) return true;
  if (IsMyEnd(end) && options_.holds_store) return false;
  if (end.kind != GenerationEnd::Kind::kLeft) return (end.saved ? 0 : state.restarts) < options_.max_restarts;
  const int others = static_cast<int>(state.nodes.size()) - 1;
  return others >= options_.min_nodes || options_.max_restarts > 0;
}

// Those that were told to stop save after the end was published; and who published it may not know of saves.
void StoreRendezvous::Reopen(MeetingState* state, GenerationEnd end) const {
  end.saved = end.saved || HasSaved(state->generation);
  state->Reopen(end);
}

GenerationEnd StoreRendezvous::Publish(GenerationEnd end) {
  MeetingState current;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    current = current_;
  }
  end.saved = HasSaved(current.generation);
  end.time_s = options_.now_s ? options_.now_s() : absl::ToUnixSeconds(absl::Now());
  end.restart = end.restart && MayGoOn(end, current);
  const std::string won = store_->CompareSet(EndKey(current.generation), "", end.ToText());
  GenerationEnd first = GenerationEnd::FromText(won);
  if (!first.restart) {
    Close(first.WhyOver());
  } else if (IsMyEnd(end)) {
    Withdraw(end.headline);
  }
  SetEnd(current.generation, first);
  return first;
}

std::optional<GenerationEnd> StoreRendezvous::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

}  // namespace weft
