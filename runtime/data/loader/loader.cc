#include "runtime/data/loader/loader.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/device/device_backend.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

LoaderOptions Checked(const Dataset* dataset, const Sampler* sampler, LoaderOptions options) {
  WEFT_REQUIRE(dataset != nullptr && sampler != nullptr, "data loader: expected a dataset and a sampler");
  WEFT_REQUIRE(sampler->num_samples() == dataset->num_samples(), "data loader: ", sampler->ToString(),
               " draws from ", sampler->num_samples(), " samples, the dataset has ", dataset->num_samples());
  WEFT_REQUIRE(options.batch >= 1, "data loader: batch: expected at least 1 sample, got ", options.batch);
  WEFT_REQUIRE(options.num_threads >= 0, "data loader: threads: expected at least 0, got ",
               options.num_threads);
  WEFT_REQUIRE(options.ahead >= 1, "data loader: batches ahead: expected at least 1, got ", options.ahead);
  WEFT_REQUIRE(options.position >= 0, "data loader: position: expected at least 0, got ", options.position);
  if (options.rows.empty()) options.rows = {{.first = 0, .count = options.batch}};
  for (const RowRange& range : options.rows) {
    WEFT_REQUIRE(range.first >= 0 && range.count >= 0 && range.first <= options.batch - range.count,
                 "data loader: rows [", range.first, ", ", range.first + range.count,
                 ") are not within a batch of ", options.batch);
  }
  return options;
}

// What threads can write to and the device can read: pinned memory beside a GPU.
std::shared_ptr<Allocator> HostAllocatorOf(const std::shared_ptr<Allocator>& allocator) {
  const DeviceType type = allocator->device().type;
  WEFT_REQUIRE(type != DeviceType::kMeta, "data loader: expected memory of a device, got meta");
  return type == DeviceType::kCpu ? allocator : MakeHostAllocator(type);
}

}  // namespace

Loader::~Loader() = default;

Loader::Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
               const LoaderOptions& options, std::shared_ptr<Allocator> allocator)
    : dataset_(std::move(dataset)),
      sampler_(std::move(sampler)),
      options_(Checked(dataset_.get(), sampler_.get(), options)),
      allocator_(allocator != nullptr ? std::move(allocator) : MakeCpuAllocator()),
      host_allocator_(HostAllocatorOf(allocator_)),
      position_(options.position),
      reader_(dataset_, sampler_, options.num_threads, options.patience) {
  for (const RowRange& range : options_.rows) num_rows_ += range.count;
  Seek(position_);
}

Loader::Pending Loader::Begin(int64_t position) {
  ReadJob job;
  job.positions.reserve(static_cast<size_t>(num_rows_));
  for (const RowRange& range : options_.rows) {
    for (int64_t i = 0; i < range.count; ++i) job.positions.push_back(position + range.first + i);
  }
  for (const SampleField& field : dataset_->fields()) {
    Shape shape = {num_rows_};
    for (int dim = 0; dim < field.shape.ndim(); ++dim) shape.push_back(field.shape[dim]);
    job.fields.push_back(Tensor::Empty(host_allocator_, field.dtype, shape));
  }
  return {.position = position, .ticket = reader_.Submit(std::move(job))};
}

void Loader::BeginCopy(Pending& pending, const ReadJob& job) {
  std::unique_ptr<DeviceCopy> copy = std::move(spare_copy_);
  if (copy == nullptr) copy = std::make_unique<DeviceCopy>();
  std::vector<Tensor> fields;
  for (const Tensor& field : job.fields) fields.push_back(copy->Begin(field, allocator_));
  pending.fields = std::move(fields);
  pending.copy = std::move(copy);
}

LoaderBatch Loader::Get() {
  // After a Seek that could not allocate, the queue may be shorter, or empty.
  if (ahead_.empty()) ahead_.push_back(Begin(position_));
  Pending& next = ahead_.front();
  const Clock::time_point begun = Clock::now();
  const ReadJob& job = reader_.Wait(next.ticket);
  if (next.fields.empty()) BeginCopy(next, job);
  LoaderBatch batch = {.position = next.position, .fields = next.fields};
  batch.wait_s = std::chrono::duration<double>(Clock::now() - begun).count();
  // Before anything changes: where there is no memory, this batch comes again.
  std::deque<Pending> more;
  const auto missing = static_cast<size_t>(options_.ahead) - (ahead_.size() - 1);
  for (size_t i = 0; i < missing; ++i) {
    more.push_back(Begin(ahead_.back().position + static_cast<int64_t>(i + 1) * options_.batch));
  }
  // The next one goes to the device beside this one's step. An error of it is told by the Get that wants it.
  const ReadJob* const done =
      ahead_.size() > 1 && ahead_[1].fields.empty() ? reader_.IfDone(*ahead_[1].ticket) : nullptr;
  if (done != nullptr) BeginCopy(ahead_[1], *done);
  next.copy->Join();
  if (last_copy_ != nullptr) last_copy_->Wait();  // of the step before: long there
  spare_copy_ = std::move(last_copy_);
  last_copy_ = std::move(next.copy);
  ahead_.pop_front();
  for (Pending& pending : more) ahead_.push_back(std::move(pending));
  position_ += options_.batch;
  return batch;
}

void Loader::Seek(int64_t position) {
  WEFT_REQUIRE(position >= 0, "data loader: position: expected at least 0, got ", position);
  reader_.Clear();
  ahead_.clear();
  position_ = position;
  for (int64_t i = 0; i < options_.ahead; ++i) ahead_.push_back(Begin(position + i * options_.batch));
}

void Loader::Restore(const DataPosition& state) {
  WEFT_REQUIRE(state.sampler == sampler_->ToString(), "data loader: the position is one of ", state.sampler,
               ", this run's data is ", sampler_->ToString());
  Seek(state.samples);
}

}  // namespace weft
