#include "runtime/launch/hangs/flight_record.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/base/random_id.h"

namespace weft {
namespace {

using nlohmann::json;

double Seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

json ToJson(const FlightEntry& entry, const std::string& group, const FlightRecorder& recorder,
            int64_t now_ns) {
  const int64_t end_ns = entry.ended_ns > 0 ? entry.ended_ns : now_ns;
  const int64_t from_ns = entry.begun_ns > 0 ? entry.begun_ns : entry.issued_ns;
  return {{"id", entry.id},
          {"group", group},
          {"sequence", entry.sequence},
          {"kind", std::string(CollectiveName(entry.kind))},
          {"call", entry.Call()},
          {"where", recorder.TagText(entry.tag)},
          {"async", entry.async},
          {"state", std::string(FlightStateName(entry.state))},
          {"issued_ago", Seconds(now_ns - entry.issued_ns)},
          {"seconds", Seconds(end_ns - from_ns)}};
}

// One rank's record, as FlightReport reads it.
struct Operation {
  std::string call;
  std::string where;
  std::string state;
  double seconds = 0;
};
struct Record {
  int rank = 0;
  int world_size = 0;
  FlightLife life;
  std::string activity;
  std::map<std::string, std::vector<int>> groups;                    // ranks by key
  std::map<std::string, uint64_t> num_collectives;                   // by key
  std::map<std::string, std::map<uint64_t, Operation>> collectives;  // by key and sequence
  std::vector<std::string> messages;                                 // send_recv that have not ended
};

Record Parse(const std::string& text) {
  try {
    const json item = json::parse(text);
    Record record;
    item.at("rank").get_to(record.rank);
    item.at("world_size").get_to(record.world_size);
    item.at("run_id").get_to(record.life.run_id);
    item.at("generation").get_to(record.life.generation);
    item.at("time_ms").get_to(record.life.time_ms);
    item.at("activity").get_to(record.activity);
    for (const json& group : item.at("groups")) {
      const std::string key = group.at("key").get<std::string>();
      group.at("ranks").get_to(record.groups[key]);
      group.at("num_collectives").get_to(record.num_collectives[key]);
    }
    for (const json& entry : item.at("entries")) {
      const std::string key = entry.at("group").get<std::string>();
      const Operation operation = {entry.at("call").get<std::string>(), entry.at("where").get<std::string>(),
                                   entry.at("state").get<std::string>(), entry.at("seconds").get<double>()};
      if (entry.at("kind").get<std::string>() != "send_recv") {
        record.collectives[key][entry.at("sequence").get<uint64_t>()] = operation;
      } else if (operation.state != "done") {
        record.messages.push_back(absl::StrFormat("%s on %s, %s for %.1f s", operation.call, key,
                                                  operation.state, operation.seconds));
      }
    }
    return record;
  } catch (const json::exception& error) {
    ThrowInvalidArgument("not a flight record: ", error.what());
  }
}

std::string Told(const Operation& operation) {
  std::string text = operation.call;
  if (!operation.where.empty()) absl::StrAppend(&text, " (", operation.where, ")");
  return absl::StrFormat("%s, %s, %.1f s", text, operation.state, operation.seconds);
}

// Of a member whose record does not have the collective. A recorder keeps the last operations of all groups, so that a rank
// which has gone on elsewhere has lost old ones of this group.
std::string WhyNotThere(const Record& record, const std::string& key, uint64_t sequence) {
  const auto count = record.num_collectives.find(key);
  const bool was_issued = count != record.num_collectives.end() && count->second >= sequence;
  return was_issued ? "issued, no longer on record" : "not entered";
}

// The lines about one group: nothing if all members have come as far and all is done.
std::string GroupReport(const std::string& key, const std::vector<int>& ranks,
                        const std::map<int, Record>& records) {
  std::string lines;
  std::map<uint64_t, std::map<int, Operation>> by_sequence;
  uint64_t furthest = 0;
  for (int rank : ranks) {
    const auto record = records.find(rank);
    if (record == records.end()) {
      absl::StrAppend(&lines, "  rank ", rank, ": no record\n");
      continue;
    }
    const auto count = record->second.num_collectives.find(key);
    if (count != record->second.num_collectives.end()) furthest = std::max(furthest, count->second);
    const auto operations = record->second.collectives.find(key);
    if (operations == record->second.collectives.end()) continue;
    for (const auto& [sequence, operation] : operations->second) by_sequence[sequence][rank] = operation;
  }
  for (const auto& [sequence, members] : by_sequence) {
    const std::string& call = members.begin()->second.call;
    const bool all_alike = std::all_of(members.begin(), members.end(), [&](const auto& member) {
      return member.second.call == call && member.second.state == "done";
    });
    if (all_alike) continue;
    absl::StrAppend(&lines, "  #", sequence, "\n");
    for (int rank : ranks) {
      const auto member = members.find(rank);
      if (member != members.end()) {
        absl::StrAppend(&lines, "    rank ", rank, ": ", Told(member->second), "\n");
      } else if (const auto record = records.find(rank); record != records.end()) {
        absl::StrAppend(&lines, "    rank ", rank, ": ", WhyNotThere(record->second, key, sequence), "\n");
      }
    }
  }
  if (lines.empty()) return "";
  return absl::StrCat("group ", key, ": ", furthest, " collectives\n", lines);
}

// Takes out the records that are not of the last life, and returns a line for each. By time, since a run that is begun
// again under the same name counts its generations from 0.
std::string TakeOutEarlierLives(std::map<int, Record>* records) {
  FlightLife last = {.time_ms = -1};
  for (const auto& [rank, record] : *records) {
    if (record.life.time_ms > last.time_ms) last = record.life;
  }
  std::string lines;
  std::erase_if(*records, [&](const auto& entry) {
    const FlightLife& life = entry.second.life;
    if (life.run_id == last.run_id && life.generation == last.generation) return false;
    absl::StrAppend(&lines, "rank ", entry.first, ": its record is of generation ", life.generation,
                    " of run ", life.run_id, ", not of generation ", last.generation, " of run ", last.run_id,
                    ": left out\n");
    return true;
  });
  return lines;
}

}  // namespace

std::string FlightToJson(int rank, int world_size, const FlightRecorder& recorder, const FlightLife& life) {
  const FlightSnapshot snapshot = recorder.Snapshot();
  json record = {{"rank", rank},
                 {"world_size", world_size},
                 {"run_id", life.run_id},
                 {"generation", life.generation},
                 {"time_ms", life.time_ms},
                 {"activity", snapshot.activity},
                 {"groups", json::array()},
                 {"entries", json::array()}};
  std::map<int, std::string> keys;
  for (const FlightGroup& group : snapshot.groups) {
    keys[group.id] = group.Key();
    record["groups"].push_back({{"key", group.Key()},
                                {"name", group.name},
                                {"ranks", group.ranks},
                                {"num_collectives", group.num_collectives}});
  }
  for (const FlightEntry& entry : snapshot.entries) {
    const auto key = keys.find(entry.group);
    if (key == keys.end()) continue;  // closed long ago
    record["entries"].push_back(ToJson(entry, key->second, recorder, snapshot.now_ns));
  }
  // Names and activities may be any bytes.
  return JsonText(record, /*indent=*/1);
}

void WriteFlight(const std::string& folder, int rank, int world_size, const FlightRecorder& recorder,
                 const FlightLife& life) {
  const std::string text = FlightToJson(rank, world_size, recorder, life);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = absl::StrCat(folder, "/flight_rank_", rank, ".json");
  // Whole at once: another thread may write it too, and a signal may end the process meanwhile.
  const std::string draft = absl::StrCat(path, ".", RandomId().substr(0, 16));
  std::ofstream file(draft);
  file << text << "\n";
  file.close();
  if (file.good()) std::filesystem::rename(draft, path, error);
  if (file.good() && !error) return;
  std::filesystem::remove(draft, error);
  ThrowInvalidArgument("flight record: cannot write ", path);
}

void RequireFlightRecord(const std::string& text) { Parse(text); }

std::string FlightReport(const std::vector<std::string>& records) {
  std::map<int, Record> by_rank;
  for (const std::string& text : records) {
    Record record = Parse(text);
    const int rank = record.rank;
    WEFT_REQUIRE(by_rank.emplace(rank, std::move(record)).second, "two flight records of rank ", rank);
  }
  std::string report = TakeOutEarlierLives(&by_rank);
  std::map<std::string, std::vector<int>> groups;
  for (const auto& [rank, record] : by_rank) {
    groups.insert(record.groups.begin(), record.groups.end());
    if (!record.activity.empty()) absl::StrAppend(&report, "rank ", rank, ": ", record.activity, "\n");
    for (const std::string& message : record.messages) {
      absl::StrAppend(&report, "rank ", rank, ": ", message, "\n");
    }
  }
  std::string stuck;
  for (const auto& [key, ranks] : groups) absl::StrAppend(&stuck, GroupReport(key, ranks, by_rank));
  if (stuck.empty()) stuck = "every collective on record is done, and all members agree\n";
  return absl::StrCat(report, stuck);
}

}  // namespace weft
