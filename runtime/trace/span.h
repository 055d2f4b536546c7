#ifndef WEFT_RUNTIME_TRACE_SPAN_H_
#define WEFT_RUNTIME_TRACE_SPAN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// Collects timed spans of all ranks and writes them as a Chrome trace (chrome://tracing, Perfetto).
//
// Threads: any. A span costs two clock reads and one locked append; with no tracer, one null check.
class Tracer {
 public:
  Tracer();
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Nanoseconds since the tracer was made.
  int64_t Now() const;

  // Adds a finished span of a rank's lane: 0 is the rank's own thread, others run beside it. `category`: "op",
  // "comm", "step". With no memory left the span is dropped.
  void Add(int rank, absl::string_view category, absl::string_view name, int64_t begin_ns, int64_t end_ns,
           int lane = 0) noexcept;

  // What a lane is called in the trace; lanes without a name have their number.
  void NameLane(int lane, absl::string_view name);

  // How many nanoseconds another process's tracer, to which all are to be referred, is ahead of this one
  // (runtime/launch/clock_offset.h). Written as a metadata event "clock_offset"; spans stay as they are.
  void SetClockOffset(int64_t ns);

  // Chrome's JSON array format: the names of ranks and lanes ("ph":"M"), then one complete event ("ph":"X") per
  // span; pid is the rank, tid the lane, microseconds. So a lane that communicates lies beside what its rank
  // computes.
  std::string ToChromeJson() const;

  // Errors: InvalidArgument that names the path if it cannot be written.
  void WriteChromeTrace(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Times its own lifetime. Does nothing if `tracer` is null.
//
// Lifetime: the tracer and the characters of `category` and `name` must outlive the span.
class Span {
 public:
  Span(Tracer* tracer, int rank, absl::string_view category, absl::string_view name, int lane = 0)
      : tracer_(tracer),
        rank_(rank),
        lane_(lane),
        category_(category),
        name_(name),
        begin_ns_(tracer ? tracer->Now() : 0) {}
  ~Span() {
    if (tracer_ != nullptr) tracer_->Add(rank_, category_, name_, begin_ns_, tracer_->Now(), lane_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Tracer* tracer_;
  int rank_;
  int lane_;
  absl::string_view category_;
  absl::string_view name_;
  int64_t begin_ns_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_TRACE_SPAN_H_
