#include "tools/schedule_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace weft {
namespace {

constexpr int kRow = 26;
constexpr int kRowGap = 4;
constexpr int kMargin = 14;
constexpr int kLabel = 52;
constexpr int kTop = 58;
constexpr int kLeastBox = 17;  // the width of the shortest action: two digits fit
constexpr int kMostWidth = 4000;

struct Colour {
  int red, green, blue;
};

// F blue, I orange, W green, B red, as in the papers.
constexpr std::array<Colour, 4> kColours = {
    {{158, 202, 244}, {253, 200, 130}, {170, 222, 160}, {244, 178, 170}}};

class Drawing {
 public:
  explicit Drawing(const ScheduleReport& report) : report_(report), timeline_(report.certificate.timeline) {
    for (int rank = 0; rank < report.size->ranks; ++rank) {
      const std::vector<int> stages = report.schedule.StagesOf(rank);
      for (size_t chunk = 0; chunk < stages.size(); ++chunk) chunk_[stages[chunk]] = static_cast<int>(chunk);
    }
    double shortest = timeline_.makespan;
    for (const auto& actions : timeline_.ranks) {
      for (const TimedAction& timed : actions) {
        if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
      }
    }
    const double makespan = std::max(timeline_.makespan, 1e-9);
    scale_ = std::min(kLeastBox / std::max(shortest, makespan * 1e-6), kMostWidth / makespan);
  }

  std::string Draw() {
    std::string body;
    for (int rank = 0; rank < report_.size->ranks; ++rank) {
      const double y = kTop + rank * (kRow + kRowGap);
      absl::StrAppend(&body, Text(kMargin, y + kRow / 2 + 4, "", absl::StrCat("rank ", rank)));
      absl::StrAppendFormat(&body,
                            "<rect x=\"%d\" y=\"%g\" width=\"%.1f\" height=\"%d\" fill=\"#f3f3f3\"/>\n",
                            kMargin + kLabel, y, timeline_.makespan * scale_, kRow);
      DrawRank(timeline_.ranks[rank], y, body);
    }
    const double bottom = kTop + report_.size->ranks * (kRow + kRowGap);
    absl::StrAppend(
        &body, Text(kMargin + kLabel, bottom + 12, "", "0"),
        Text(X(timeline_.makespan), bottom + 12, "end", absl::StrFormat("%g", timeline_.makespan)));
    const int height = static_cast<int>(bottom + 12 + kMargin);
    const int width = std::max(static_cast<int>(std::ceil(X(timeline_.makespan))) + kMargin, 640);
    return absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
                        "\" viewBox=\"0 0 ", width, " ", height,
                        "\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222222\">\n",
                        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
                        Text(kMargin, 20, "", Title(), 13), Legend(), body, "</svg>\n");
  }

 private:
  double X(double time) const { return kMargin + kLabel + time * scale_; }

  std::string Title() const {
    const std::string name =
        absl::StrReplaceAll(report_.name, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
    return absl::StrFormat(
        "%s: %d ranks, %d %s per rank, %d microbatches; F, I, W = %g, %g, %g: makespan %g, bubble %g", name,
        report_.size->ranks, report_.size->chunks, report_.size->chunks == 1 ? "chunk" : "chunks",
        report_.size->microbatches, report_.times.forward, report_.times.input_gradient,
        report_.times.weight_gradient, timeline_.makespan, timeline_.bubble);
  }

  // Darker with each chunk.
  std::string Fill(ActionKind kind, int chunk) const {
    const Colour& colour = kColours[static_cast<size_t>(kind)];
    const double part = 1 - 0.3 * chunk / std::max(1, report_.size->chunks - 1);
    const auto shade = [&](int value) { return static_cast<int>(value * part + 0.5); };
    return absl::StrFormat("#%02x%02x%02x", shade(colour.red), shade(colour.green), shade(colour.blue));
  }

  // One box per kind that is drawn.
  std::string Legend() const {
    constexpr std::array<const char*, 4> kMeaning = {"F forward", "I gradient of the input",
                                                     "W gradients of the parameters", "B both"};
    std::array<bool, 4> drawn = {};
    for (const auto& actions : timeline_.ranks) {
      for (const TimedAction& timed : actions) drawn[static_cast<size_t>(timed.action.kind)] = true;
    }
    std::string text;
    double x = kMargin;
    for (size_t kind = 0; kind < drawn.size(); ++kind) {
      if (!drawn[kind]) continue;
      absl::StrAppendFormat(&text, "<rect x=\"%g\" y=\"32\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                            Fill(static_cast<ActionKind>(kind), 0));
      absl::StrAppend(&text, Text(x + 17, 42, "", kMeaning[kind]));
      x += 36 + 6.2 * std::string(kMeaning[kind]).size();
    }
    if (report_.size->chunks > 1) absl::StrAppend(&text, Text(x, 42, "", "darker: later chunks of the rank"));
    return text;
  }

  // The boxes, then the numbers in them.
  void DrawRank(const std::vector<TimedAction>& actions, double y, std::string& body) const {
    std::string numbers;
    absl::StrAppend(&body, "<g stroke=\"#ffffff\">\n");
    for (size_t i = 0; i < actions.size(); ++i) {
      const TimedAction& timed = actions[i];
      // F of a pair that shares its time lies above, the rest below.
      const bool upper = timed.overlapped && timed.action.kind == ActionKind::kForward;
      const double height = timed.overlapped ? kRow / 2.0 : kRow;
      const double top = timed.overlapped && !upper ? y + height : y;
      const double width = (timed.end - timed.start) * scale_;
      absl::StrAppendFormat(&body,
                            "<rect x=\"%.1f\" y=\"%g\" width=\"%.1f\" height=\"%g\" fill=\"%s\">"
                            "<title>%s %g to %g</title></rect>\n",
                            X(timed.start), top, width, height,
                            Fill(timed.action.kind, chunk_.at(timed.action.stage)), timed.action.ToString(),
                            timed.start, timed.end);
      if (width < 10) continue;
      absl::StrAppend(&numbers, Text((X(timed.start) + X(timed.end)) / 2, top + height / 2 + 4, "",
                                     absl::StrCat(timed.action.microbatch)));
    }
    absl::StrAppend(&body, "</g>\n<g text-anchor=\"middle\">\n", numbers, "</g>\n");
  }

  static std::string Text(double x, double y, absl::string_view anchor, absl::string_view text,
                          int size = 11) {
    const std::string font = size == 11 ? "" : absl::StrCat(" font-size=\"", size, "\"");
    const std::string place = anchor.empty() ? "" : absl::StrCat(" text-anchor=\"", anchor, "\"");
    return absl::StrFormat("<text x=\"%.1f\" y=\"%g\"%s%s>%s</text>\n", x, y, place, font, text);
  }

  const ScheduleReport& report_;
  const ScheduleTimeline& timeline_;
  std::map<int, int> chunk_;  // by stage: which of its rank's it is
  double scale_ = 1;          // pixels of a unit of time
};

}  // namespace

std::string ScheduleSvg(const ScheduleReport& report) { return Drawing(report).Draw(); }

}  // namespace weft
