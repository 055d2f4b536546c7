#include "tests/parallel/pipeline/token_game.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace weft {
namespace {

// What lies in a place. Those from kInput to kToSendGradient belong to a microbatch, the others to a stage.
enum class Token {
  kInput,
  kKept,
  kGradient,
  kHalf,
  kToSend,
  kToSendGradient,
  kSent,
  kSentGradient,
  kParameterGradient,
  kReduced,
  kReducing,
  kUpdates,
  kWhole,
  kSharded
};

// (token, rank, stage, microbatch): a token is of use on its rank alone.
using Place = std::tuple<Token, int, int, int>;

// What a move does to the tokens.
struct Move {
  bool possible = true;
  std::vector<std::pair<Place, int>> takes;
  std::vector<std::pair<Place, int>> puts;
};

class Game {
 public:
  Game(const PipelineSchedule& schedule, int most_states) : s_(schedule), most_states_(most_states) {
    for (const auto& items : s_.ranks) {
      most_states_ += static_cast<int>(items.size());  // for the first way, to wherever it ends
      for (const auto& item : items) {
        for (const auto& action : item.actions) kinds_.insert(action.kind);
      }
    }
    transfers_ = HasAny({ActionKind::kSendForward, ActionKind::kRecvForward, ActionKind::kSendBackward,
                         ActionKind::kRecvBackward});
    group_ = s_.versions == WeightVersions::kOne || s_.microbatches_per_update < 1
                 ? s_.num_microbatches
                 : s_.microbatches_per_update;
    shards_ = HasAny({ActionKind::kUnshard, ActionKind::kReshard});
    for (int i = 0; i < s_.num_microbatches; ++i) tokens_[{Token::kInput, RankOf(0), 0, i}] = 1;
    for (int stage = 0; stage < Stages(); ++stage) {
      tokens_[{shards_ ? Token::kSharded : Token::kWhole, RankOf(stage), stage, -1}] = 1;
    }
  }

  GameVerdict Play() {
    std::vector<uint16_t> positions(s_.num_ranks(), 0);
    Visit(positions);
    return verdict_;
  }

 private:
  bool HasAny(const std::vector<ActionKind>& kinds) const {
    return std::any_of(kinds.begin(), kinds.end(), [&](ActionKind kind) { return kinds_.count(kind) > 0; });
  }
  int Stages() const { return static_cast<int>(s_.stage_rank.size()); }
  int RankOf(int stage) const { return stage < 0 || stage >= Stages() ? -1 : s_.stage_rank[stage]; }
  int Tokens(const Place& place) const {
    const auto found = tokens_.find(place);
    return found == tokens_.end() ? 0 : found->second;
  }
  int Updates(int stage) const { return Tokens({Token::kUpdates, RankOf(stage), stage, -1}); }

  void Forward(Move& move, int rank, int stage, int i) const {
    move.takes.push_back({{Token::kInput, rank, stage, i}, 1});
    move.puts.push_back({{Token::kKept, rank, stage, i}, 1});
    if (s_.versions == WeightVersions::kPrevious && Updates(stage) + 1 < i / group_) move.possible = false;
    if (stage + 1 == Stages()) {
      move.puts.push_back({{Token::kGradient, rank, stage, i}, 1});
    } else if (transfers_ && RankOf(stage + 1) != rank) {
      move.puts.push_back({{Token::kToSend, rank, stage, i}, 1});
    } else {
      move.puts.push_back({{Token::kInput, RankOf(stage + 1), stage + 1, i}, 1});
    }
  }

  void InputGradient(Move& move, int rank, int stage, int i) const {
    move.takes.push_back({{Token::kKept, rank, stage, i}, 1});
    move.takes.push_back({{Token::kGradient, rank, stage, i}, 1});
    if (stage == 0) return;
    if (transfers_ && RankOf(stage - 1) != rank) {
      move.puts.push_back({{Token::kToSendGradient, rank, stage, i}, 1});
    } else {
      move.puts.push_back({{Token::kGradient, RankOf(stage - 1), stage - 1, i}, 1});
    }
  }

  void ParameterGradient(Move& move, int rank, int stage, int i) const {
    if (kinds_.count(ActionKind::kOpt) > 0 && Updates(stage) != i / group_) move.possible = false;
    move.puts.push_back({{Token::kParameterGradient, rank, stage, -1}, 1});
  }

  // Takes the gradients of the next update.
  void TakeGradients(Move& move, int rank, int stage) const {
    const int count = std::min(group_, s_.num_microbatches - Updates(stage) * group_);
    if (count < 1) move.possible = false;
    move.takes.push_back({{Token::kParameterGradient, rank, stage, -1}, count});
  }

  void Add(Move& move, int rank, const PipelineAction& action) const {
    const int stage = action.stage;
    const int i = action.microbatch;
    const Place whole = {Token::kWhole, rank, stage, -1};
    const Place sharded = {Token::kSharded, rank, stage, -1};
    // W has x and dY.
    const bool reads = IsCompute(action.kind) && action.kind != ActionKind::kWeightGradient;
    if (reads && Tokens(whole) == 0) move.possible = false;
    switch (action.kind) {
      case ActionKind::kForward:
        return Forward(move, rank, stage, i);
      case ActionKind::kInputGradient:
        move.puts.push_back({{Token::kHalf, rank, stage, i}, 1});
        return InputGradient(move, rank, stage, i);
      case ActionKind::kWeightGradient:
        move.takes.push_back({{Token::kHalf, rank, stage, i}, 1});
        return ParameterGradient(move, rank, stage, i);
      case ActionKind::kBackward:
        InputGradient(move, rank, stage, i);
        return ParameterGradient(move, rank, stage, i);
      case ActionKind::kUnshard:
        move.takes.push_back({sharded, 1});
        return move.puts.push_back({whole, 1});
      case ActionKind::kReshard:
        move.takes.push_back({whole, 1});
        return move.puts.push_back({sharded, 1});
      case ActionKind::kReduceGrad:
        TakeGradients(move, rank, stage);
        if (Tokens({Token::kReducing, rank, stage, -1}) == 0)
          move.puts.push_back({{Token::kReducing, rank, stage, -1}, 1});
        return move.puts.push_back({{Token::kReduced, rank, stage, -1}, 1});
      case ActionKind::kOpt:
        if (kinds_.count(ActionKind::kReduceGrad) > 0) {
          move.takes.push_back({{Token::kReduced, rank, stage, -1}, 1});
        } else {
          TakeGradients(move, rank, stage);
        }
        return move.puts.push_back({{Token::kUpdates, rank, stage, -1}, 1});
      case ActionKind::kWaitSendForward:
        return move.takes.push_back({{Token::kSent, rank, stage, i}, 1});
      case ActionKind::kWaitSendBackward:
        return move.takes.push_back({{Token::kSentGradient, rank, stage, i}, 1});
      case ActionKind::kWaitReduceGrad:
        return move.takes.push_back({{Token::kReducing, rank, stage, -1}, 1});
      default:
        move.possible = false;  // a transfer: it needs its other end
    }
  }

  // A send by `rank` with the receive of `peer`.
  Move Transfer(int rank, int peer, const PipelineAction& send, const PipelineAction& receive) const {
    Move move;
    const bool forward = send.kind == ActionKind::kSendForward;
    const int to = forward ? send.stage + 1 : send.stage - 1;
    move.possible = (forward || send.kind == ActionKind::kSendBackward) && RankOf(to) == peer &&
                    receive == PipelineAction{forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward,
                                              to, send.microbatch};
    move.takes.push_back(
        {{forward ? Token::kToSend : Token::kToSendGradient, rank, send.stage, send.microbatch}, 1});
    move.puts.push_back({{forward ? Token::kInput : Token::kGradient, peer, to, send.microbatch}, 1});
    move.puts.push_back(
        {{forward ? Token::kSent : Token::kSentGradient, rank, send.stage, send.microbatch}, 1});
    return move;
  }

  // All that a move takes has to lie there before it begins.
  bool CanMove(const Move& move) const {
    if (!move.possible) return false;
    std::map<Place, int> needed;
    for (const auto& [place, count] : move.takes) needed[place] += count;
    return std::all_of(needed.begin(), needed.end(),
                       [&](const auto& entry) { return Tokens(entry.first) >= entry.second; });
  }

  void Change(const Move& move, int sign) {
    for (const auto& [place, count] : move.takes) tokens_[place] -= sign * count;
    for (const auto& [place, count] : move.puts) tokens_[place] += sign * count;
  }

  // Nothing left over, nothing missing, when all lists are done.
  bool IsEnd() const {
    const bool updates = kinds_.count(ActionKind::kOpt) > 0 || s_.versions != WeightVersions::kOne;
    for (const auto& [place, count] : tokens_) {
      const Token token = std::get<0>(place);
      if (count > 0 && token <= Token::kToSendGradient) return false;
      if (count > 0 && token == Token::kWhole && shards_) return false;
    }
    for (int stage = 0; stage < Stages(); ++stage) {
      const int needed = (s_.num_microbatches + group_ - 1) / group_;
      if (updates && Updates(stage) != needed) return false;
      if (!updates && kinds_.count(ActionKind::kReduceGrad) > 0 &&
          Tokens({Token::kReduced, RankOf(stage), stage, -1}) != 1) {
        return false;
      }
    }
    return true;
  }

  void Visit(std::vector<uint16_t>& positions) {
    if (visited_.contains(positions)) return;
    if (static_cast<int>(visited_.size()) >= most_states_) {
      verdict_.has_more = true;
      return;
    }
    visited_.insert(positions);
    bool done = true;
    bool moved = false;
    for (int rank = 0; rank < s_.num_ranks(); ++rank) {
      if (positions[rank] == s_.ranks[rank].size()) continue;
      done = false;
      const ScheduleItem& item = s_.ranks[rank][positions[rank]];
      Move move;
      for (const PipelineAction& action : item.actions) Add(move, rank, action);
      moved |= Try(move, positions, {rank});
      for (int peer = 0; peer < s_.num_ranks(); ++peer) {
        if (peer == rank || item.overlapped() || positions[peer] == s_.ranks[peer].size()) continue;
        const ScheduleItem& other = s_.ranks[peer][positions[peer]];
        if (other.overlapped()) continue;
        moved |= Try(Transfer(rank, peer, item.actions[0], other.actions[0]), positions, {rank, peer});
      }
    }
    if (done && IsEnd()) {
      verdict_.ends = true;
    } else if (!moved) {
      verdict_.stuck = true;
    }
  }

  bool Try(const Move& move, std::vector<uint16_t>& positions, const std::vector<int>& ranks) {
    if (!CanMove(move)) return false;
    Change(move, 1);
    for (int rank : ranks) ++positions[rank];
    Visit(positions);
    for (int rank : ranks) --positions[rank];
    Change(move, -1);
    return true;
  }

  const PipelineSchedule& s_;
  int most_states_;
  std::set<ActionKind> kinds_;
  bool transfers_ = false;
  bool shards_ = false;
  int group_ = 1;
  std::map<Place, int> tokens_;
  absl::flat_hash_set<std::vector<uint16_t>> visited_;
  GameVerdict verdict_;
};

}  // namespace

GameVerdict PlayTokenGame(const PipelineSchedule& schedule, int most_states) {
  return Game(schedule, most_states).Play();
}

}  // namespace weft
