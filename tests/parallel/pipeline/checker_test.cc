// Certificates against golden tables and closed forms, and what is said of schedules that are rejected.

#include "parallel/pipeline/checker.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/schedule_csv.h"
#include "tests/message_of.h"

namespace weft {
namespace {

constexpr PairTiming kSequential = PairTiming::kSequential;
constexpr PairTiming kAtomic = PairTiming::kAtomic;

struct Figures {
  double makespan;
  double bubble;
};

struct Row {
  const char* name;
  int chunks;
  PairTiming pairs;
  Figures equal;    // F, I, W = 1, 1, 1
  Figures short_w;  // 2, 2, 1
  Figures long_i;   // 2, 3, 2
  std::vector<int> peak_w;
  std::vector<int> peak_i;
  std::vector<double> inner_idle;  // of (1, 1, 1), between a rank's first and last action
};

ScheduleCertificate Certificate(const Row& row, int ranks, int microbatches, double f, double i, double w) {
  return CheckSchedule(
      GenerateSchedule(row.name, {.ranks = ranks, .chunks = row.chunks, .microbatches = microbatches}),
      {.forward = f, .input_gradient = i, .weight_gradient = w, .pairs = row.pairs});
}

std::vector<double> InnerIdle(const ScheduleTimeline& timeline) {
  std::vector<double> idle;
  for (const std::vector<TimedAction>& actions : timeline.ranks) {
    double busy = 0;
    double last = 0;
    for (const TimedAction& timed : actions) {
      if (timed.overlapped && timed.start < last) continue;  // the other part of a pair has the same time
      busy += timed.end - timed.start;
      last = timed.end;
    }
    idle.push_back(actions.back().end - actions.front().start - busy);
  }
  return idle;
}

void ExpectFigures(const Row& row, int ranks, int microbatches, double f, double i, double w,
                   const Figures& expected) {
  const ScheduleCertificate certificate = Certificate(row, ranks, microbatches, f, i, w);
  const std::string what = absl::StrCat(row.name, " v=", row.chunks, " p=", ranks, " m=", microbatches);
  ASSERT_TRUE(certificate.ok) << what << ": " << certificate.error;
  EXPECT_EQ(certificate.timeline.makespan, expected.makespan) << what;
  EXPECT_EQ(certificate.timeline.bubble, expected.bubble) << what;
}

// Ranks and microbatches, and four times their microbatches: bubbles and, but for `many`, peaks are the same.
void ExpectRow(const Row& row, int ranks, int microbatches) {
  ExpectFigures(row, ranks, microbatches, 1, 1, 1, row.equal);
  ExpectFigures(row, ranks, microbatches, 2, 2, 1, row.short_w);
  ExpectFigures(row, ranks, microbatches, 2, 3, 2, row.long_i);
  const ScheduleCertificate certificate = Certificate(row, ranks, microbatches, 1, 1, 1);
  EXPECT_EQ(certificate.holdings.peak_w, row.peak_w) << row.name;
  if (!row.peak_i.empty()) {
    EXPECT_EQ(certificate.holdings.peak_i, row.peak_i) << row.name;
  }
  if (!row.inner_idle.empty()) {
    EXPECT_EQ(InnerIdle(certificate.timeline), row.inner_idle) << row.name;
  }
  const ScheduleCertificate longer = Certificate(row, ranks, 2 * microbatches, 1, 1, 1);
  EXPECT_EQ(longer.timeline.bubble, row.equal.bubble) << row.name;
  if (std::string(row.name) != "gpipe" && std::string(row.name) != "looped_bfs") {
    EXPECT_EQ(longer.holdings.peak_w, row.peak_w) << row.name;
  }
}

// Makespans, bubbles, peaks and idle times computed independently, in exact fractions, by another simulator.
TEST(CheckerTest, GoldenTableOfFourRanks) {
  const std::vector<int> v4 = {4, 4, 4, 4};
  const std::vector<int> v8 = {8, 8, 8, 8};
  const std::vector<int> v9 = {9, 9, 9, 9};
  const std::vector<int> v16 = {16, 16, 16, 16};
  const std::vector<int> falling = {4, 3, 2, 1};
  const std::vector<int> two = {11, 9, 7, 5};
  const std::vector<int> four = {19, 17, 15, 13};
  const std::vector<Row> rows = {
      {"gpipe", 1, kSequential, {33, 9}, {55, 15}, {77, 21}, v8, v8, {9, 6, 3, 0}},
      {"1f1b", 1, kSequential, {33, 9}, {55, 15}, {77, 21}, falling, falling, {9, 6, 3, 0}},
      {"interleaved", 2, kSequential, {28.5, 4.5}, {47.5, 7.5}, {66.5, 10.5}, two, two, {4.5, 3, 1.5, 0}},
      {"interleaved",
       4,
       kSequential,
       {26.25, 2.25},
       {43.75, 3.75},
       {61.25, 5.25},
       four,
       four,
       {2.25, 1.5, .75, 0}},
      {"looped_bfs", 2, kSequential, {28.5, 4.5}, {47.5, 7.5}, {66.5, 10.5}, v16, v16, {4.5, 3, 1.5, 0}},
      {"zb_h1", 1, kSequential, {27, 3}, {49, 9}, {65, 9}, v4, falling, {3, 2, 1, 0}},
      {"interleaved_zb",
       2,
       kSequential,
       {25.5, 1.5},
       {44.5, 4.5},
       {60.5, 4.5},
       v8,
       {8, 7, 6, 5},
       {1.5, 1, .5, 0}},
      {"zb_h2", 1, kSequential, {27, 3}, {46, 6}, {62, 6}, {7, 7, 7, 7}, {7, 5, 3, 1}, {0, 0, 0, 0}},
      {"zbv", 2, kSequential, {25.5, 1.5}, {43, 3}, {60.5, 4.5}, v8, v8, {0, 0, 0, 0}},
      {"dualpipev", 2, kAtomic, {27, 3}, {47.5, 7.5}, {64, 8}, v9, v9, {3, 2.5, 2, 1.5}},
      {"dualpipev", 2, kSequential, {25.5, 1.5}, {44.5, 4.5}, {61, 5}, v9, v9, {1.5, 1, .5, 0}},
  };
  for (const Row& row : rows) ExpectRow(row, /*ranks=*/4, /*microbatches=*/8);
}

TEST(CheckerTest, GoldenTableOfEightRanks) {
  const auto each = [](int peak) { return std::vector<int>(8, peak); };
  const auto falling = [](int from, int by) {
    std::vector<int> peaks;
    for (int rank = 0; rank < 8; ++rank) peaks.push_back(from - rank * by);
    return peaks;
  };
  const std::vector<Row> rows = {
      {"gpipe", 1, kSequential, {69, 21}, {115, 35}, {161, 49}, each(16), {}, {}},
      {"1f1b", 1, kSequential, {69, 21}, {115, 35}, {161, 49}, falling(8, 1), {}, {}},
      {"interleaved", 2, kSequential, {58.5, 10.5}, {97.5, 17.5}, {136.5, 24.5}, falling(23, 2), {}, {}},
      {"interleaved", 4, kSequential, {53.25, 5.25}, {88.75, 8.75}, {124.25, 12.25}, falling(39, 2), {}, {}},
      {"zb_h1", 1, kSequential, {55, 7}, {101, 21}, {133, 21}, each(8), {}, {}},
      {"interleaved_zb", 2, kSequential, {51.5, 3.5}, {90.5, 10.5}, {122.5, 10.5}, each(16), {}, {}},
      {"zb_h2", 1, kSequential, {55, 7}, {94, 14}, {126, 14}, each(15), {}, {}},
      {"zbv", 2, kSequential, {51.5, 3.5}, {87, 7}, {122.5, 10.5}, each(16), {}, {}},
      {"dualpipev", 2, kAtomic, {55, 7}, {97.5, 17.5}, {132, 20}, each(17), {}, {}},
      {"dualpipev", 2, kSequential, {51.5, 3.5}, {90.5, 10.5}, {125, 13}, each(17), {}, {}},
  };
  for (const Row& row : rows) ExpectRow(row, /*ranks=*/8, /*microbatches=*/16);
}

TEST(CheckerTest, GoldenFiguresOfTwoRanks) {
  ExpectFigures({"gpipe", 1, kSequential, {}, {}, {}, {}, {}, {}}, 2, 4, 1, 1, 1, {15, 3});
  ExpectFigures({"1f1b", 1, kSequential, {}, {}, {}, {}, {}, {}}, 2, 4, 1, 1, 1, {15, 3});
  ExpectFigures({"interleaved", 2, kSequential, {}, {}, {}, {}, {}, {}}, 2, 4, 1, 1, 1, {13.5, 1.5});
  ExpectFigures({"zb_h1", 1, kSequential, {}, {}, {}, {}, {}, {}}, 2, 4, 1, 1, 1, {13, 1});
  ExpectFigures({"zbv", 2, kSequential, {}, {}, {}, {}, {}, {}}, 2, 4, 1, 1, 1, {12.5, .5});
  const auto peaks = [](const char* name) {
    return CheckSchedule(GenerateSchedule(name, {.ranks = 2, .microbatches = 4})).holdings.peak_w;
  };
  EXPECT_EQ(peaks("interleaved"), (std::vector<int>{5, 3}));
  EXPECT_EQ(peaks("zbv"), (std::vector<int>{4, 4}));
}

// Bubbles in closed form, of chunks that take F, I and W (times of a rank divided by its chunks).
TEST(CheckerTest, BubblesAreTheirClosedForms) {
  for (int p = 1; p <= 5; ++p) {
    for (const double f : {1, 2, 5}) {
      for (const double i : {1, 3, 4}) {
        for (const double w : {1, 2, 6}) {
          const auto bubble = [&](const char* name, int chunks, PairTiming pairs = kSequential) {
            const ScheduleCertificate certificate =
                CheckSchedule(GenerateSchedule(name, {.ranks = p, .chunks = chunks, .microbatches = 3 * p}),
                              {.forward = f * chunks,
                               .input_gradient = i * chunks,
                               .weight_gradient = w * chunks,
                               .pairs = pairs});
            return certificate.timeline.bubble;
          };
          const std::string what = absl::StrCat("p=", p, " F=", f, " I=", i, " W=", w);
          EXPECT_EQ(bubble("gpipe", 1), (p - 1) * (f + i + w)) << what;
          EXPECT_EQ(bubble("1f1b", 1), (p - 1) * (f + i + w)) << what;
          EXPECT_EQ(bubble("interleaved", 3), (p - 1) * (f + i + w)) << what;
          EXPECT_EQ(bubble("looped_bfs", 2), (p - 1) * (f + i + w)) << what;
          EXPECT_EQ(bubble("zb_h1", 1), (p - 1) * std::max({f, i, f + i - w})) << what;
          EXPECT_EQ(bubble("interleaved_zb", 2), (p - 1) * std::max({f, i, f + i - w})) << what;
          EXPECT_EQ(bubble("zb_h2", 1), (p - 1) * std::max({f, i - f, f + i - 2 * w})) << what;
          if (i >= f && i >= w) {
            EXPECT_EQ(bubble("zbv", 2), (p - 1) * std::max(i, 2 * (i - w))) << what;
          }
          if (f >= i) {
            EXPECT_EQ(bubble("dualpipev", 2, kAtomic), (p - 1) * (2 * f + std::max(0.0, i - w))) << what;
          }
          if (f == i) {
            EXPECT_EQ(bubble("dualpipev", 2), (p - 1) * (f + std::max(0.0, i - w))) << what;
          }
        }
      }
    }
  }
}

TEST(CheckerTest, AGivenTimeOfPairsIsUsed) {
  const PipelineSchedule schedule = GenerateSchedule("dualpipev", {.ranks = 4, .microbatches = 8});
  const ScheduleTimes atomic = {.pairs = PairTiming::kAtomic};
  const ScheduleTimes same = {.pairs = PairTiming::kGiven, .pair = 3};
  const ScheduleTimes overlapped = {.pairs = PairTiming::kGiven, .pair = 2};
  EXPECT_EQ(CheckSchedule(schedule, same).timeline.ranks, CheckSchedule(schedule, atomic).timeline.ranks);
  EXPECT_LT(CheckSchedule(schedule, overlapped).timeline.makespan,
            CheckSchedule(schedule, atomic).timeline.makespan);
}

TEST(CheckerTest, WeightVersions) {
  const auto versions = [](const char* name, int ranks, int microbatches) {
    return CheckSchedule(GenerateSchedule(name, {.ranks = ranks, .microbatches = microbatches}))
        .holdings.versions;
  };
  EXPECT_EQ(versions("1f1b", 3, 6), (std::vector<int>{1, 1, 1}));
  // One per microbatch in flight: Narayanan et al., "PipeDream", 2019.
  EXPECT_EQ(versions("pipedream", 4, 12), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(versions("pipedream", 4, 2), (std::vector<int>{2, 2, 2, 1}));
  // Two, whatever the depth: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021.
  EXPECT_EQ(versions("pipedream_2bw", 4, 16), (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(versions("pipedream_2bw", 2, 2), (std::vector<int>{1, 1}));  // one update, at the end
}

// What the checker says of lists in text form.
std::string ErrorOf(const std::string& csv) { return CheckSchedule(ScheduleFromCsv(csv, "x.csv")).error; }

TEST(CheckerTest, ErrorsNameRankAndAction) {
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F0,1B0\n"), "");
  EXPECT_EQ(ErrorOf("0F0,0B0\n1B0,1F0\n"), "rank 1, action 0, 1B0: 1F0 does not stand before it");
  EXPECT_EQ(ErrorOf("0F0,0F0,0B0\n1F0,1B0\n"), "rank 0, action 1, 0F0: stands in the list twice");
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F0,1I0\n"), "rank 1: 1W0 is missing");
  EXPECT_EQ(ErrorOf("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"), "rank 1: 1B1 is missing, or I and W");
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F1,1B1,1F0,1B0\n"), "rank 0: 0F1 is missing");
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F0,1W0,1I0\n"), "rank 1, action 1, 1W0: 1I0 does not stand before it");
  EXPECT_EQ(ErrorOf("0F0,0B0,1F0\n1I0,1W0\n"), "rank 0, action 2, 1F0: stage 1 lies on rank 1");
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F0,1B0,1W0\n"), "rank 1, action 2, 1W0: 1I0 does not stand before it");
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F0,1B0,1I0\n"),
            "rank 1, action 2, 1I0: B is I and W in one: a microbatch has either");
  EXPECT_EQ(ErrorOf("0F0,1F0,0B0,1B0\n"), "rank 0, action 2, 0B0: 1I0 does not stand before it");
  EXPECT_EQ(ErrorOf("0F0,(1F0;1B0)OVERLAP_F_B,0B0\n"),
            "rank 0, action 1, (1F0;1B0)OVERLAP_F_B: 1F0 does not stand before it");
}

TEST(CheckerTest, ErrorsOfTransfers) {
  const std::string second = "1RECV_F0,1F0,1B0,1SEND_B0\n";
  EXPECT_EQ(ErrorOf("0F0,0SEND_F0,0RECV_B0,0B0\n" + second), "");
  EXPECT_EQ(ErrorOf("0F0,0RECV_B0,0B0\n" + second), "rank 0: 0SEND_F0 is missing");
  EXPECT_EQ(ErrorOf("0F0,0SEND_F0,0B0\n" + second),
            "rank 0, action 2, 0B0: 0RECV_B0 does not stand before it");
  EXPECT_EQ(ErrorOf("0SEND_F0,0F0,0RECV_B0,0B0\n" + second),
            "rank 0, action 0, 0SEND_F0: 0F0 does not stand before it");
  EXPECT_EQ(ErrorOf("0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n" + second),
            "rank 0, action 4, 0SEND_B0: there is no other rank to send to");
  EXPECT_EQ(ErrorOf("0F0,0SEND_F0,0RECV_B0,0B0,0RECV_F0\n" + second),
            "rank 0, action 4, 0RECV_F0: there is no other rank to receive from");
  EXPECT_EQ(ErrorOf("0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n" + second),
            "rank 0, action 1, 0WAIT_SEND_F0: 0SEND_F0 does not stand before it");
}

TEST(CheckerTest, ErrorsOfStages) {
  EXPECT_EQ(ErrorOf("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0OPT\n"), "");
  EXPECT_EQ(ErrorOf("0UNSHARD,0F0,0I0,0RESHARD,0W0\n"), "");
  EXPECT_EQ(ErrorOf("0UNSHARD,0F0,0RESHARD,0I0,0W0\n"), "rank 0, action 3, 0I0: no 0UNSHARD is in force");
  EXPECT_EQ(ErrorOf("0UNSHARD,0F0,0RESHARD,0B0\n"), "rank 0, action 3, 0B0: no 0UNSHARD is in force");
  EXPECT_EQ(ErrorOf("0UNSHARD,0UNSHARD,0F0,0B0\n"), "rank 0, action 1, 0UNSHARD: the stage is not sharded");
  EXPECT_EQ(ErrorOf("0RESHARD,0F0,0B0\n"), "rank 0, action 0, 0RESHARD: the stage is sharded");
  EXPECT_EQ(ErrorOf("0UNSHARD,0F0,0B0\n"), "rank 0: 0RESHARD is missing at the end");
  EXPECT_EQ(ErrorOf("0F0,0F1,0B0,0REDUCE_GRAD,0B1\n"),
            "rank 0, action 3, 0REDUCE_GRAD: 1 gradients stand before it, expected 2");
  EXPECT_EQ(ErrorOf("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n"),
            "rank 0, action 3, 0REDUCE_GRAD: the gradients are reduced already");
  EXPECT_EQ(ErrorOf("0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n"), "rank 1: 1REDUCE_GRAD is missing");
  EXPECT_EQ(ErrorOf("0F0,0B0,0OPT,0REDUCE_GRAD\n"),
            "rank 0, action 2, 0OPT: no 0REDUCE_GRAD stands before it");
  EXPECT_EQ(ErrorOf("0F0,0B0,0OPT\n1F0,1B0\n"), "rank 1: 1OPT is missing: 1 gradients are in no update");
  EXPECT_EQ(ErrorOf("0F0,0B0,0WAIT_REDUCE_GRAD\n"),
            "rank 0, action 2, 0WAIT_REDUCE_GRAD: no 0REDUCE_GRAD stands before it");
  EXPECT_EQ(ErrorOf("0F0,0B0,0OPT,0OPT\n"),
            "rank 0, action 3, 0OPT: 0 gradients stand before it, expected 0");
}

TEST(CheckerTest, ErrorsOfUpdatesWithinTheStep) {
  PipelineSchedule schedule = GenerateSchedule("pipedream_2bw", {.ranks = 2, .microbatches = 6});
  // rank 0: 0F0,0F1,0B0,0F2,0B1,0OPT,0F3,0B2,0F4,0B3,0OPT,0F5,0B4,0B5,0OPT. The first update behind what
  // reads it:
  std::vector<ScheduleItem>& items = schedule.ranks[0];
  ASSERT_EQ(items[5].ToString(), "0OPT");
  std::rotate(items.begin() + 5, items.begin() + 6, items.begin() + 7);
  EXPECT_EQ(CheckSchedule(schedule).error, "");
  std::swap(items[6], items[7]);
  EXPECT_EQ(CheckSchedule(schedule).error,
            "rank 0, action 6, 0B2: belongs to update 1 of its stage, but 0 updates stand before it");
}

TEST(CheckerTest, ReadingWeightsThatAreNotThereYet) {
  PipelineSchedule schedule = GenerateSchedule("pipedream_2bw", {.ranks = 1, .microbatches = 3});
  schedule.versions = WeightVersions::kPrevious;
  // 0F0,0B0,0OPT,0F1,0B1,0OPT,0F2,0B2,0OPT, with 0F2 before the first update.
  std::vector<ScheduleItem>& items = schedule.ranks[0];
  std::rotate(items.begin() + 2, items.begin() + 6, items.begin() + 7);
  EXPECT_EQ(CheckSchedule(schedule).error,
            "rank 0, action 2, 0F2: reads weights behind 1 updates of its stage, but 0 stand before it");
}

TEST(CheckerTest, DeadlocksNameTheCircle) {
  // Rank 0 wants the gradient of microbatch 1 first, rank 1 works on microbatch 0.
  EXPECT_EQ(ErrorOf("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"),
            "deadlock: rank 0 waits in 0B0 (action 1) for 1B0 of rank 1; rank 1 waits in 1F1 (action 0) for "
            "0F1 of rank 0");
  // Both send first: a rendezvous that nobody comes to.
  EXPECT_EQ(ErrorOf("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"),
            "deadlock: rank 0 waits in 0SEND_F1 (action 3) for 1RECV_F1 of rank 1; rank 1 waits in 1SEND_B0 "
            "(action 3) for "
            "0RECV_B0 of rank 0");
  // Three in a circle, and a fourth that only waits for it.
  const std::string error = ErrorOf(
      "0F0,0F1,0B1,0B0\n"
      "1F0,1F1,1B0,1B1\n"
      "2F0,2B0,2F1,2B1\n"
      "3F1,3B1,3F0,3B0\n");
  EXPECT_EQ(error,
            "deadlock: rank 2 waits in 2B0 (action 1) for 3B0 of rank 3; rank 3 waits in 3F1 (action 0) for "
            "2F1 of rank 2");
  // A pair begins when both inputs are there: in turn, it would run.
  EXPECT_EQ(ErrorOf("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n"),
            "deadlock: rank 0 waits in (0F1;0B0)OVERLAP_F_B (action 1) for 1B0 of rank 1; rank 1 waits in "
            "1F1 (action 1) "
            "for 0F1 of rank 0");
}

TEST(CheckerTest, SchedulesThatAreNone) {
  EXPECT_EQ(CheckSchedule({}).error, "expected stages and microbatches, got 0 and 0");
  PipelineSchedule schedule = GenerateSchedule("gpipe", {.ranks = 2, .microbatches = 2});
  schedule.stage_rank[1] = 2;
  EXPECT_EQ(CheckSchedule(schedule).error, "stage 1 lies on rank 2, but there are 2 ranks");
  schedule.stage_rank[1] = 1;
  schedule.ranks[1][0].actions[0].stage = 7;
  EXPECT_EQ(CheckSchedule(schedule).error, "rank 1, action 0, 7F0: there are 2 stages");
  schedule.ranks[1][0].actions[0] = {ActionKind::kForward, 1, 2};
  EXPECT_EQ(CheckSchedule(schedule).error, "rank 1, action 0, 1F2: there are 2 microbatches");
}

TEST(CheckerTest, TimesHaveToBeTimes) {
  const PipelineSchedule schedule = GenerateSchedule("gpipe", {.ranks = 2, .microbatches = 2});
  EXPECT_EQ(InvalidArgumentMessage([&] { CheckSchedule(schedule, {.forward = -1}); }),
            "expected times of 0 or more, got -1");
  EXPECT_EQ(InvalidArgumentMessage([&] { CheckSchedule(schedule, {.weight_gradient = INFINITY}); }),
            "expected times of 0 or more, got inf");
  EXPECT_EQ(InvalidArgumentMessage([&] { CheckSchedule(schedule, {.forward = 1e308}); }),
            "expected times that add up to a finite number, got 1e+308, 1 and 1 of F, I and W, 0 of a pair");
  EXPECT_EQ(CheckSchedule(schedule, {.forward = 1e300}).error, "");
  EXPECT_EQ(
      CheckSchedule(schedule, {.forward = 0, .input_gradient = 0, .weight_gradient = 0}).timeline.makespan,
      0);
}

}  // namespace
}  // namespace weft
