#include "runtime/data/loader/read_ahead.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/clamp_timeout.h"
#include "runtime/base/error.h"

namespace weft {

// A job under way. All but `job` is guarded by Shared::mutex; a row of its tensors belongs to the thread that has claimed it.
class ReadAhead::Ticket {
 public:
  enum RowState : uint8_t { kAwaited, kThere, kFailed };

  explicit Ticket(ReadJob made) : job(std::move(made)), rows(job.positions.size(), kAwaited) {}

  int64_t num_rows() const { return static_cast<int64_t>(job.positions.size()); }

  const ReadJob job;
  int64_t next_row = 0;   // from here on none is claimed; those before that are there are not read again
  int64_t num_ended = 0;  // there, or failed
  std::vector<RowState> rows;
  int64_t failed_row = 0;    // the first of those that failed
  std::exception_ptr error;  // of that row
  bool is_told = false;      // the error: the next Wait reads again
};

// What the threads share with their owner, and keep alive.
struct ReadAhead::Shared {
  Shared(std::shared_ptr<const Dataset> read, std::shared_ptr<const Sampler> order,
         std::chrono::milliseconds wait)
      : dataset(std::move(read)), sampler(std::move(order)), patience(wait) {}

  void Read(Ticket& ticket, int64_t row) const;
  std::exception_ptr TryToRead(Ticket& ticket, int64_t row) const noexcept;
  [[noreturn]] void ThrowError(const Ticket& ticket) const;
  std::string NameOf(const Ticket& ticket, int64_t row) const;

  const std::shared_ptr<const Dataset> dataset;
  const std::shared_ptr<const Sampler> sampler;
  const std::chrono::milliseconds patience;

  std::mutex mutex;
  std::condition_variable work;              // there are rows to claim, or it is time to stop
  std::condition_variable there;             // a job is done, or a thread has ended
  std::deque<std::shared_ptr<Ticket>> open;  // with rows to claim, in order
  int num_threads = 0;
  std::vector<uint8_t> has_ended;  // by thread
  bool stop = false;

  bool AllEnded() const { return std::find(has_ended.begin(), has_ended.end(), 0) == has_ended.end(); }
};

namespace {

// How long the end of a reader waits for reads that are under way. They take milliseconds, or they are stuck; and an error of
// the program that destroys the reader, or of this read, is to be told now.
constexpr std::chrono::milliseconds kLastPatience = std::chrono::seconds(1);

// Rows that a thread claims at once: few enough that all threads have a part of each job, many enough that the lock does
// not count.
int64_t RowsAtOnce(int64_t num_rows, int num_threads) {
  return std::clamp<int64_t>(num_rows / (4 * std::max(num_threads, 1)), 1, 64);
}

}  // namespace

void ReadAhead::Shared::Read(Ticket& ticket, int64_t row) const {
  const int64_t index = sampler->AtPosition(ticket.job.positions[row]);
  std::vector<FieldBytes> fields;
  fields.reserve(ticket.job.fields.size());
  for (size_t f = 0; f < ticket.job.fields.size(); ++f) {
    const int64_t num_bytes = dataset->fields()[f].num_bytes();
    fields.emplace_back(static_cast<uint8_t*>(ticket.job.fields[f].data()) + row * num_bytes,
                        static_cast<size_t>(num_bytes));
  }
  dataset->Read(index, fields);
}

std::string ReadAhead::Shared::NameOf(const Ticket& ticket, int64_t row) const {
  const int64_t position = ticket.job.positions[row];
  const std::string place = absl::StrCat("sample ", position % sampler->epoch_size(), " of epoch ",
                                         position / sampler->epoch_size());
  const auto without = [&](absl::string_view why) {
    return absl::StrCat(place, " (without a name: ", why, ")");
  };
  try {
    return absl::StrCat(place, " (", dataset->NameOf(sampler->AtPosition(position)), ")");
  } catch (const std::exception& error) {
    return without(error.what());
  } catch (...) {
    return without("an exception that is no std::exception");
  }
}

// Says nothing of it: what a thread of the reader's own throws would end the process, and texts take memory, which may be what
// is lacking.
std::exception_ptr ReadAhead::Shared::TryToRead(Ticket& ticket, int64_t row) const noexcept {
  try {
    Read(ticket, row);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// On the thread of whoever waits.
void ReadAhead::Shared::ThrowError(const Ticket& ticket) const {
  const auto say = [&](absl::StatusCode code, absl::string_view what) {
    return Error(code, absl::StrCat("data loader: ", NameOf(ticket, ticket.failed_row), ": ", what));
  };
  try {
    std::rethrow_exception(ticket.error);
  } catch (const Error& error) {
    throw say(error.code(), error.message());
  } catch (const std::bad_alloc&) {
    throw say(absl::StatusCode::kResourceExhausted, "out of memory");
  } catch (const std::exception& error) {
    throw say(absl::StatusCode::kUnknown, error.what());
  } catch (...) {
    throw say(absl::StatusCode::kUnknown, "an exception that is no std::exception");
  }
}

ReadAhead::ReadAhead(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
                     int num_threads, std::chrono::milliseconds patience)
    : shared_(std::make_shared<Shared>(std::move(dataset), std::move(sampler), ClampTimeout(patience))) {
  shared_->num_threads = num_threads;
  shared_->has_ended.assign(static_cast<size_t>(num_threads), 0);
  try {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back(&ReadAhead::Work, shared_, i);
  } catch (const std::system_error& error) {
    const size_t num_started = threads_.size();
    {
      const std::lock_guard lock(shared_->mutex);
      std::fill(shared_->has_ended.begin() + static_cast<std::ptrdiff_t>(num_started),
                shared_->has_ended.end(), 1);
    }
    Stop();
    Throw(absl::StatusCode::kResourceExhausted, "data loader: thread ", num_started, " of ", num_threads,
          ": ", error.what());
  }
}

ReadAhead::~ReadAhead() { Stop(); }

void ReadAhead::Stop() noexcept {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->open.clear();
  shared_->work.notify_all();
  shared_->there.wait_for(lock, std::min(shared_->patience, kLastPatience),
                          [&] { return shared_->AllEnded(); });
  for (size_t i = 0; i < threads_.size(); ++i) {
    const bool has_ended = shared_->has_ended[i] != 0;
    lock.unlock();
    if (has_ended) {
      threads_[i].join();
    } else {
      threads_[i].detach();
    }
    lock.lock();
  }
}

void ReadAhead::Work(std::shared_ptr<Shared> shared, int thread) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->work.wait(lock, [&] { return shared->stop || !shared->open.empty(); });
    if (shared->stop) break;
    // Let go of under the lock, before anybody learns that the job is done: then its consumer alone holds its tensors.
    const std::shared_ptr<Ticket> ticket = shared->open.front();
    const int64_t first = ticket->next_row;
    const int64_t end =
        std::min(first + RowsAtOnce(ticket->num_rows(), shared->num_threads), ticket->num_rows());
    ticket->next_row = end;
    if (end == ticket->num_rows()) shared->open.pop_front();
    for (int64_t row = first; row < end && !shared->stop; ++row) {
      if (ticket->rows[row] == Ticket::kThere) continue;  // when the job was read before
      lock.unlock();
      std::exception_ptr error = shared->TryToRead(*ticket, row);
      lock.lock();
      ticket->rows[row] = error ? Ticket::kFailed : Ticket::kThere;
      if (error && (!ticket->error || row < ticket->failed_row)) {
        ticket->failed_row = row;
        ticket->error = std::move(error);
      }
      if (++ticket->num_ended == ticket->num_rows()) shared->there.notify_all();
    }
  }
  shared->has_ended[thread] = 1;
  shared->there.notify_all();
}

std::shared_ptr<ReadAhead::Ticket> ReadAhead::Submit(ReadJob job) {
  auto ticket = std::make_shared<Ticket>(std::move(job));
  if (ticket->num_rows() > 0 && shared_->num_threads > 0) {
    const std::lock_guard lock(shared_->mutex);
    shared_->open.push_back(ticket);
    shared_->work.notify_all();
  }
  return ticket;
}

const ReadJob* ReadAhead::IfDone(const Ticket& ticket) const {
  const std::lock_guard lock(shared_->mutex);
  return ticket.num_ended == ticket.num_rows() && !ticket.error ? &ticket.job : nullptr;
}

// Reads the rows that failed again.
void ReadAhead::Reopen(const std::shared_ptr<Ticket>& ticket) {
  shared_->open.push_front(ticket);
  for (Ticket::RowState& row : ticket->rows) {
    if (row != Ticket::kFailed) continue;
    row = Ticket::kAwaited;
    --ticket->num_ended;
  }
  ticket->next_row = ticket->failed_row;
  ticket->error = nullptr;
  ticket->is_told = false;
  shared_->work.notify_all();
}

const ReadJob& ReadAhead::Wait(const std::shared_ptr<Ticket>& ticket) {
  if (shared_->num_threads == 0) {
    // Goes on with the row that failed last time, which fails again or has become readable.
    for (; ticket->next_row < ticket->num_rows(); ++ticket->next_row, ++ticket->num_ended) {
      ticket->error = shared_->TryToRead(*ticket, ticket->next_row);
      ticket->failed_row = ticket->next_row;
      if (ticket->error) shared_->ThrowError(*ticket);
    }
    return ticket->job;
  }
  std::unique_lock lock(shared_->mutex);
  if (ticket->is_told) Reopen(ticket);
  const bool done = shared_->there.wait_for(lock, shared_->patience,
                                            [&] { return ticket->num_ended == ticket->num_rows(); });
  if (!done) {
    const int64_t row =
        std::find(ticket->rows.begin(), ticket->rows.end(), Ticket::kAwaited) - ticket->rows.begin();
    lock.unlock();
    Throw(absl::StatusCode::kDeadlineExceeded, "data loader: ", shared_->NameOf(*ticket, row),
          ": not read within ", shared_->patience.count() / 1000.0, " s");
  }
  if (!ticket->error) return ticket->job;
  ticket->is_told = true;
  lock.unlock();  // no thread touches a job all of whose rows have ended
  shared_->ThrowError(*ticket);
}

void ReadAhead::Clear() {
  const std::lock_guard lock(shared_->mutex);
  shared_->open.clear();
}

}  // namespace weft
