#include "tools/launcher/rendezvous/meeting_state.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"

namespace weft {

using Json = nlohmann::json;

const MeetingNode* MeetingState::Find(absl::string_view id) const {
  for (const MeetingNode& node : nodes) {
    if (node.id == id) return &node;
  }
  return nullptr;
}

bool MeetingState::IsLeftOut(absl::string_view id) const { return absl::c_linear_search(left_out, id); }

void MeetingState::Count(const GenerationEnd& end) {
  if (end.saved) {
    restarts = 0;
    failures.clear();
  }
  if (end.IsFailure()) ++restarts;
  if (end.kind != GenerationEnd::Kind::kFailed) return;
  failures.push_back({end.node, end.time_s});
  // Others' clocks may be hours away from this node's, and its own may have been set back.
  std::erase_if(failures, [&](const NodeFailure& failure) {
    const bool is_recent = failure.time_s >= end.time_s - kFailureWindow && failure.time_s <= end.time_s;
    return failure.id == end.node && !is_recent;
  });
  const auto count =
      absl::c_count_if(failures, [&](const NodeFailure& failure) { return failure.id == end.node; });
  // Those that wait outside may be gone: nobody watches them.
  const int others = NumStaying() - 1;
  if (count >= kMostFailures && others >= min_nodes) left_out.push_back(end.node);
}

void MeetingState::Reopen(const GenerationEnd& end) {
  Count(end);
  expected.clear();
  for (const MeetingNode& node : nodes) {
    const bool is_gone = (end.EndsANode() && node.id == end.node) || absl::c_linear_search(gone, node.id) ||
                         IsLeftOut(node.id);
    if (!is_gone) expected.push_back(node.id);
  }
  gone.clear();
  nodes.clear();
  running = false;
  ++generation;
}

void MeetingState::Join(MeetingNode node) {
  if (std::erase(waiting, node.id) > 0) expected.push_back(node.id);
  if (node.arrival < 0) node.arrival = num_arrivals++;
  nodes.push_back(std::move(node));
}

void MeetingState::Remove(absl::string_view id) {
  std::erase(expected, std::string(id));
  std::erase(waiting, std::string(id));
  if (!running) {
    std::erase_if(nodes, [&](const MeetingNode& node) { return node.id == id; });
  } else if (Find(id) != nullptr && !absl::c_linear_search(gone, id)) {
    gone.emplace_back(id);
  }
}

int MeetingState::NumStaying() const {
  const auto absent = absl::c_count_if(expected, [&](const std::string& id) { return Find(id) == nullptr; });
  const auto outside = running ? 0 : std::ssize(waiting);
  return static_cast<int>(std::ssize(nodes) + absent + outside - std::ssize(gone));
}

void MeetingState::Run() {
  std::sort(nodes.begin(), nodes.end(), [](const MeetingNode& a, const MeetingNode& b) {
    return std::tie(a.fixed_rank, a.arrival) < std::tie(b.fixed_rank, b.arrival);
  });
  expected.clear();
  waiting.clear();  // whoever lives says so again
  running = true;
}

std::string MeetingState::ToText() const {
  Json list = Json::array();
  for (const MeetingNode& node : nodes) {
    list.push_back(Json::array({node.id, node.host, node.fixed_rank, node.arrival}));
  }
  Json failure_list = Json::array();
  for (const NodeFailure& failure : failures) {
    failure_list.push_back(Json::array({failure.id, failure.time_s}));
  }
  const Json json = {{"failures", failure_list},
                     {"left_out", left_out},
                     {"generation", generation},
                     {"running", running},
                     {"restarts", restarts},
                     {"min_nodes", min_nodes},
                     {"max_nodes", max_nodes},
                     {"workers_per_node", workers_per_node},
                     {"num_arrivals", num_arrivals},
                     {"nodes", list},
                     {"expected", expected},
                     {"waiting", waiting},
                     {"gone", gone},
                     {"closed", closed}};
  return JsonText(json);
}

MeetingState MeetingState::FromText(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    MeetingState state = {.generation = json.at("generation"),
                          .running = json.at("running"),
                          .restarts = json.at("restarts"),
                          .min_nodes = json.at("min_nodes"),
                          .max_nodes = json.at("max_nodes"),
                          .workers_per_node = json.at("workers_per_node"),
                          .num_arrivals = json.at("num_arrivals"),
                          .nodes = {},
                          .expected = json.at("expected").get<std::vector<std::string>>(),
                          .waiting = json.at("waiting").get<std::vector<std::string>>(),
                          .gone = json.at("gone").get<std::vector<std::string>>(),
                          .failures = {},
                          .left_out = json.at("left_out").get<std::vector<std::string>>(),
                          .closed = json.at("closed").get<std::string>()};
    for (const Json& node : json.at("nodes")) {
      state.nodes.push_back({node.at(0).get<std::string>(), node.at(1).get<std::string>(),
                             node.at(2).get<int>(), node.at(3).get<int64_t>()});
    }
    for (const Json& failure : json.at("failures")) {
      state.failures.push_back({failure.at(0).get<std::string>(), failure.at(1).get<int64_t>()});
    }
    return state;
  } catch (const Json::exception& error) {
    Throw(absl::StatusCode::kDataLoss, "the nodes' meeting cannot be read from the store: ", error.what());
  }
}

}  // namespace weft
