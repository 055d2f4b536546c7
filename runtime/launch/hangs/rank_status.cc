#include "runtime/launch/hangs/rank_status.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/comm/group_text.h"

namespace weft {
namespace {

double Seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

PendingOperation ToPending(const FlightEntry& entry, const FlightGroup& group, const FlightRecorder& recorder,
                           int64_t now_ns) {
  PendingOperation pending;
  pending.group = group.Key();
  pending.axis = group.name;
  pending.ranks = group.ranks;
  pending.sequence = entry.sequence;
  pending.call = entry.Call();
  pending.where = recorder.TagText(entry.tag);
  pending.collective = entry.kind != CollectiveKind::kSendRecv;
  pending.blocking = !entry.async;
  pending.begun = entry.begun_ns > 0;
  pending.queue = entry.queue;
  pending.issued_seconds = Seconds(now_ns - entry.issued_ns);
  pending.seconds = Seconds(now_ns - (pending.begun ? entry.begun_ns : entry.issued_ns));
  return pending;
}

}  // namespace

std::string PendingOperation::ToString() const {
  std::string text = absl::StrCat(call, " #", sequence, " on axis ", axis);
  if (!where.empty()) absl::StrAppend(&text, " (", where, ")");
  return text;
}

const PendingOperation* RankStatus::blocked_in() const {
  const auto found = std::find_if(pending.begin(), pending.end(), [](const PendingOperation& operation) {
    return operation.blocking && operation.begun;
  });
  if (found != pending.end()) return &*found;
  const auto awaited = std::find_if(pending.begin(), pending.end(),
                                    [](const PendingOperation& operation) { return operation.awaited; });
  return awaited == pending.end() ? nullptr : &*awaited;
}

const PendingOperation* RankStatus::held_by() const {
  const PendingOperation* const operation = blocked_in();
  if (operation == nullptr || operation->begun) return operation;
  const auto running = std::find_if(pending.begin(), pending.end(), [&](const PendingOperation& other) {
    return other.begun && !other.blocking && other.queue == operation->queue;
  });
  return running == pending.end() ? nullptr : &*running;
}

const PendingOperation* RankStatus::waits_in() const {
  if (const PendingOperation* const operation = held_by()) return operation;
  const auto found = std::find_if(pending.begin(), pending.end(),
                                  [](const PendingOperation& operation) { return operation.begun; });
  return found == pending.end() ? nullptr : &*found;
}

RankStatus StatusOf(int rank, const FlightRecorder& recorder) {
  const FlightSnapshot snapshot = recorder.Snapshot();
  RankStatus status;
  status.rank = rank;
  status.place = snapshot.place;
  std::map<int, const FlightGroup*> groups;
  for (const FlightGroup& group : snapshot.groups) {
    groups[group.id] = &group;
    status.num_collectives[group.Key()] = group.num_collectives;
  }
  int64_t last_ns = 0;
  if (!snapshot.activity.empty()) {
    last_ns = snapshot.activity_ns;
    status.last = snapshot.activity;
    status.activity = snapshot.activity;
  }
  for (const FlightEntry& entry : snapshot.entries) {
    const auto group = groups.find(entry.group);
    if (group == groups.end()) continue;  // closed long ago
    const PendingOperation operation = ToPending(entry, *group->second, recorder, snapshot.now_ns);
    if (entry.ended_ns == 0) {
      status.pending.push_back(operation);
      status.pending.back().awaited = entry.async && entry.id == snapshot.awaited;
    } else if (entry.ended_ns > last_ns) {
      last_ns = entry.ended_ns;
      status.last = absl::StrCat("done with ", operation.ToString());
    }
  }
  if (last_ns > 0) status.last_seconds = Seconds(snapshot.now_ns - last_ns);
  return status;
}

std::string RankStatus::ToJson() const {
  nlohmann::json json = {{"rank", rank},
                         {"num_collectives", num_collectives},
                         {"last", last},
                         {"last_seconds", last_seconds},
                         {"place", place},
                         {"activity", activity},
                         {"pending", nlohmann::json::array()}};
  for (const PendingOperation& operation : pending) {
    json["pending"].push_back({{"group", operation.group},
                               {"axis", operation.axis},
                               {"ranks", RankSetText(operation.ranks)},
                               {"sequence", operation.sequence},
                               {"call", operation.call},
                               {"where", operation.where},
                               {"collective", operation.collective},
                               {"blocking", operation.blocking},
                               {"begun", operation.begun},
                               {"awaited", operation.awaited},
                               {"queue", operation.queue},
                               {"issued_seconds", operation.issued_seconds},
                               {"seconds", operation.seconds}});
  }
  // Names and activities may be any bytes.
  return JsonText(json);
}

RankStatus RankStatus::FromJson(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    RankStatus status;
    status.rank = json.at("rank").get<int>();
    status.num_collectives = json.at("num_collectives").get<std::map<std::string, uint64_t>>();
    status.last = json.at("last").get<std::string>();
    status.last_seconds = json.at("last_seconds").get<double>();
    json.at("place").get_to(status.place);
    json.at("activity").get_to(status.activity);
    for (const nlohmann::json& item : json.at("pending")) {
      PendingOperation operation;
      item.at("group").get_to(operation.group);
      item.at("axis").get_to(operation.axis);
      operation.ranks = ParseRankSet(item.at("ranks").get<std::string>());
      item.at("sequence").get_to(operation.sequence);
      item.at("call").get_to(operation.call);
      item.at("where").get_to(operation.where);
      item.at("collective").get_to(operation.collective);
      item.at("blocking").get_to(operation.blocking);
      item.at("begun").get_to(operation.begun);
      item.at("awaited").get_to(operation.awaited);
      item.at("queue").get_to(operation.queue);
      item.at("issued_seconds").get_to(operation.issued_seconds);
      item.at("seconds").get_to(operation.seconds);
      status.pending.push_back(std::move(operation));
    }
    return status;
  } catch (const nlohmann::json::exception& error) {
    ThrowInvalidArgument("not a rank's status: ", error.what());
  }
}

}  // namespace weft
