#include "runtime/launch/hangs/flight_record.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

FlightEntry Entry(CollectiveKind kind, uint64_t sequence, int64_t count) {
  FlightEntry entry;
  entry.kind = kind;
  entry.sequence = sequence;
  entry.dtype = DType::kF32;
  entry.count = count;
  entry.issued_ns = FlightClock() - 2'000'000'000;
  return entry;
}

// Of three ranks: all agree on #1; of #2 rank 1 has another count, rank 2 has not entered.
std::vector<std::string> Records(const FlightLife& life = {}) {
  std::vector<std::string> records;
  for (int rank = 0; rank < 3; ++rank) {
    FlightRecorder recorder;
    recorder.NamePath(4, "head");
    recorder.SetActivity(rank == 2 ? "data loader" : "training step");
    FlightRecorder::OpenedGroup* const dp = recorder.OpenGroup("dp", {0, 1, 2});
    const FlightEntry first = Entry(CollectiveKind::kAllReduce, 1, 8);
    recorder.End(recorder.Issue(dp, first), first.issued_ns + 1'000'000, /*ok=*/true);
    FlightEntry second = Entry(CollectiveKind::kAllReduce, 2, rank == 1 ? 5 : 4);
    second.tag.path_id = 4;
    if (rank < 2) recorder.Issue(dp, second);
    records.push_back(FlightToJson(rank, 3, recorder, life));
  }
  return records;
}

TEST(FlightRecordTest, JsonHoldsWhatTheHeaderSays) {
  const nlohmann::json record =
      nlohmann::json::parse(Records({.run_id = "tale", .generation = 2, .time_ms = 1234})[0]);
  EXPECT_EQ(record["rank"], 0);
  EXPECT_EQ(record["world_size"], 3);
  EXPECT_EQ(record["run_id"], "tale");
  EXPECT_EQ(record["generation"], 2);
  EXPECT_EQ(record["time_ms"], 1234);
  EXPECT_EQ(record["activity"], "training step");
  EXPECT_EQ(record["groups"][0]["key"], "dp[0,1,2]#0");
  EXPECT_EQ(record["groups"][0]["ranks"], nlohmann::json({0, 1, 2}));
  EXPECT_EQ(record["groups"][0]["num_collectives"], 2);
  ASSERT_EQ(record["entries"].size(), 2u);
  EXPECT_EQ(record["entries"][0]["state"], "done");
  EXPECT_NEAR(record["entries"][0]["seconds"].get<double>(), 0.001, 1e-6);
  EXPECT_NEAR(record["entries"][0]["issued_ago"].get<double>(), 2, 0.5);
  EXPECT_EQ(record["entries"][1]["kind"], "all_reduce");
  EXPECT_EQ(record["entries"][1]["call"], "all_reduce(f32, sum, count 4)");
  EXPECT_EQ(record["entries"][1]["where"], "head");
  EXPECT_EQ(record["entries"][1]["group"], "dp[0,1,2]#0");
  EXPECT_EQ(record["entries"][1]["async"], false);
  EXPECT_EQ(record["entries"][1]["state"], "running");
}

TEST(FlightRecordTest, TheReportNamesDisagreementsAndWhoHasNotEntered) {
  const std::string report = FlightReport(Records());
  for (const char* part :
       {"rank 2: data loader\n", "group dp[0,1,2]#0: 2 collectives\n  #2\n",
        "    rank 0: all_reduce(f32, sum, count 4) (head), running, 2.", "    rank 2: not entered\n",
        "    rank 1: all_reduce(f32, sum, count 5) (head), running, 2."}) {
    EXPECT_NE(report.find(part), std::string::npos) << part << "\nin\n" << report;
  }
  EXPECT_EQ(report.find("#1"), std::string::npos) << report;
}

// Rank 1 has issued #1 and #2 long ago; what it has done since in other groups has taken their places.
TEST(FlightRecordTest, ARankThatHasForgottenACollectiveHasIssuedIt) {
  std::vector<std::string> records;
  for (int rank = 0; rank < 2; ++rank) {
    FlightRecorder recorder(/*capacity=*/4);
    FlightRecorder::OpenedGroup* const dp = recorder.OpenGroup("dp", {0, 1});
    FlightRecorder::OpenedGroup* const solo = recorder.OpenGroup("solo", {rank});
    for (int i = 1; i <= 3 - rank; ++i) recorder.Issue(dp, Entry(CollectiveKind::kAllReduce, i, 8));
    for (int i = 1; rank == 1 && i <= 4; ++i) {
      const FlightEntry other = Entry(CollectiveKind::kBarrier, i, 0);
      recorder.End(recorder.Issue(solo, other), FlightClock(), /*ok=*/true);
    }
    records.push_back(FlightToJson(rank, 2, recorder));
  }
  const std::string report = FlightReport(records);
  EXPECT_NE(report.find("  #2\n    rank 0: all_reduce(f32, sum, count 8), running, "), std::string::npos)
      << report;
  EXPECT_NE(report.find(" s\n    rank 1: issued, no longer on record\n  #3\n"), std::string::npos) << report;
  EXPECT_NE(report.find(" s\n    rank 1: not entered\n"), std::string::npos) << report;
  EXPECT_LT(report.find("no longer on record"), report.find("not entered")) << report;
}

TEST(FlightRecordTest, ARankWithoutARecordAndMessagesUnderWayAreTold) {
  FlightRecorder recorder;
  FlightRecorder::OpenedGroup* const pp = recorder.OpenGroup("pp", {0, 1});
  recorder.Issue(pp, Entry(CollectiveKind::kSendRecv, 7, 96));
  const std::string report = FlightReport({FlightToJson(0, 2, recorder)});
  EXPECT_NE(report.find("rank 0: send_recv(96 bytes) on pp[0,1]#0, running for 2."), std::string::npos)
      << report;
  EXPECT_NE(report.find("rank 1: no record"), std::string::npos) << report;
}

// A rank that was killed leaves no record, and its file of an earlier failure stays.
TEST(FlightRecordTest, RecordsOfEarlierLivesAreNamedAndLeftOut) {
  const FlightLife last = {.run_id = "tale", .generation = 1, .time_ms = 5000};
  const std::vector<std::string> present = Records(last);
  // Of the same run; of another; of one of the same name that had restarted more often.
  for (const FlightLife& earlier : {FlightLife{.run_id = "tale", .generation = 0, .time_ms = 4000},
                                    FlightLife{.run_id = "other", .generation = 1, .time_ms = 4000},
                                    FlightLife{.run_id = "tale", .generation = 3, .time_ms = 4000}}) {
    const std::string report = FlightReport({present[0], present[1], Records(earlier)[2]});
    for (const std::string& part :
         {absl::StrCat("rank 2: its record is of generation ", earlier.generation, " of run ", earlier.run_id,
                       ", not of generation 1 of run tale: left out\n"),
          std::string("  rank 2: no record\n"),
          std::string("    rank 0: all_reduce(f32, sum, count 4) (head), running, 2.")}) {
      EXPECT_NE(report.find(part), std::string::npos) << part << "\nin\n" << report;
    }
    for (const char* part : {"rank 2: not entered", "rank 2: data loader"}) {
      EXPECT_EQ(report.find(part), std::string::npos) << report;
    }
  }
}

TEST(FlightRecordTest, ARunWithoutTroubleSaysSo) {
  FlightRecorder recorder;
  FlightRecorder::OpenedGroup* const solo = recorder.OpenGroup("solo", {0});
  recorder.End(recorder.Issue(solo, Entry(CollectiveKind::kBarrier, 1, 0)), FlightClock(), /*ok=*/true);
  EXPECT_EQ(FlightReport({FlightToJson(0, 1, recorder)}),
            "every collective on record is done, and all members agree\n");
}

TEST(FlightRecordTest, WritesAFileARank) {
  const std::string folder = testing::TempDir() + "/flight/deep";
  FlightRecorder recorder;
  WriteFlight(folder, 3, 4, recorder);
  std::ifstream file(folder + "/flight_rank_3.json");
  EXPECT_EQ(nlohmann::json::parse(file)["rank"], 3);
  EXPECT_NE(MessageOf([&] {
              WriteFlight("/proc/none", 3, 4, recorder);
            }).find("flight record: cannot write /proc/none/flight_rank_3.json"),
            std::string::npos);
}

// Such as paths in another encoding than UTF-8.
TEST(FlightRecordTest, NamesMayBeAnyBytes) {
  const std::string folder = testing::TempDir() + "/flight_of_any_bytes";
  FlightRecorder recorder;
  recorder.SetActivity(
      "lade gr\xf6\xdf"
      "e.bin");
  recorder.OpenGroup("t\xf6rk", {0, 1});
  WriteFlight(folder, 0, 2, recorder);
  std::ifstream file(folder + "/flight_rank_0.json");
  const nlohmann::json record = nlohmann::json::parse(file);
  EXPECT_EQ(record["activity"], "lade gr\uFFFD\uFFFDe.bin");
  EXPECT_EQ(record["groups"][0]["name"], "t\uFFFDrk");
}

// As a rank that fails while its watch hears of a peer that has.
TEST(FlightRecordTest, TheFileIsWholeWhoeverWritesIt) {
  const std::string folder = testing::TempDir() + "/flight_of_two";
  std::filesystem::remove_all(folder);
  const auto record = [](int num_entries) {
    auto recorder = std::make_unique<FlightRecorder>();
    FlightRecorder::OpenedGroup* const dp = recorder->OpenGroup("dp", {0, 1});
    for (int i = 1; i <= num_entries; ++i) recorder->Issue(dp, Entry(CollectiveKind::kAllReduce, i, 8));
    return recorder;
  };
  const std::unique_ptr<FlightRecorder> recorders[] = {record(3), record(900)};
  WriteFlight(folder, 0, 2, *recorders[0]);
  std::atomic<int> num_writing = 2;
  std::vector<std::thread> writers;
  for (const auto& recorder : recorders) {
    writers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) WriteFlight(folder, 0, 2, *recorder);
      --num_writing;
    });
  }
  int num_broken = 0;
  do {
    std::ifstream file(folder + "/flight_rank_0.json");
    const nlohmann::json read = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (read.is_discarded() || (read["entries"].size() != 3 && read["entries"].size() != 900)) ++num_broken;
  } while (num_writing > 0);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(num_broken, 0);
  const std::filesystem::directory_iterator files(folder);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "drafts are left";
}

TEST(FlightRecordTest, BadRecordsAreNamed) {
  EXPECT_EQ(MessageOf([] { FlightReport({"[]"}); }).find("not a flight record: "), 0u);
  EXPECT_EQ(MessageOf([] { FlightReport({"{\"rank\": 1"}); }).find("not a flight record: "), 0u);
  const std::string record = FlightToJson(1, 2, FlightRecorder());
  EXPECT_EQ(MessageOf([&] { FlightReport({record, record}); }), "two flight records of rank 1");
}

}  // namespace
}  // namespace weft
