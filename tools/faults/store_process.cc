#include "tools/faults/store_process.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "tools/faults/processes.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{20};
// A connection of anybody may have the port for a moment, since it is one that was free.
constexpr int kMostRefusals = 20;
constexpr milliseconds kPause{200};

}  // namespace

StoreProcess::StoreProcess(const std::string& weft_run, const std::string& folder,
                           const std::vector<std::string>& flags, const std::string& log,
                           std::function<void()> enter)
    : weft_run_(weft_run), folder_(folder), flags_(flags), log_(log), enter_(std::move(enter)) {}

void StoreProcess::Begin(const std::string& port) {
  // It writes the file when it may be joined.
  std::error_code error;
  std::filesystem::remove(absl::StrCat(folder_, "/address"), error);
  std::vector<std::string> command = {weft_run_, "store", absl::StrCat("--dir=", folder_),
                                      absl::StrCat("--port=", port)};
  command.insert(command.end(), flags_.begin(), flags_.end());
  process_ = std::make_unique<ChaosJob>(command, log_, enter_);
  process_->Start();
  is_back_ = false;
  begun_ = Clock::now();
}

void StoreProcess::Start() {
  Begin("0");
  while (!is_back_) {
    process_->Pump(milliseconds(5));
    Tend();
  }
  std::ifstream(absl::StrCat(folder_, "/address")) >> address_;
}

void StoreProcess::Kill(milliseconds absence) {
  if (!IsRunning()) return;
  kill(process_->pid(), SIGKILL);
  while (process_->IsRunning()) process_->Pump(milliseconds(1));
  process_.reset();
  is_back_ = false;
  due_ = Clock::now() + absence;
}

void StoreProcess::Tend() {
  if (process_ == nullptr) {
    if (Clock::now() >= due_) Begin(address_.substr(address_.rfind(':') + 1));
    return;
  }
  process_->Pump(milliseconds(0));
  if (!process_->IsRunning()) {
    const int code = process_->exit_code();
    if (is_back_ || address_.empty() || ++num_refusals_ > kMostRefusals) {
      Throw(absl::StatusCode::kFailedPrecondition, "the store has ended by itself, with exit code ", code,
            ": see ", log_);
    }
    process_.reset();
    due_ = Clock::now() + kPause;
    return;
  }
  if (is_back_) return;
  if (std::filesystem::exists(absl::StrCat(folder_, "/address"))) {
    is_back_ = true;
    back_since_ = Clock::now();
    num_refusals_ = 0;
  } else if (Clock::now() - begun_ > kPatience) {
    Throw(absl::StatusCode::kFailedPrecondition, "the store cannot be joined ", kPatience.count(),
          " s after its start: see ", log_);
  }
}

bool StoreProcess::End() {
  if (!IsRunning()) return false;
  kill(process_->pid(), SIGTERM);
  const Clock::time_point begin = Clock::now();
  while (process_->IsRunning() && Clock::now() - begin < kPatience) process_->Pump(milliseconds(5));
  const bool is_well = !process_->IsRunning() && process_->exit_code() == 0;
  process_.reset();
  return is_well;
}

std::vector<std::string> StoreProcess::FilesTooMany() const {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name != "journal" && name != "lock" && name != "address") files.push_back(entry.path().string());
  }
  return files;
}

std::vector<pid_t> StoreProcess::Processes() const { return ProcessesGiven(absl::StrCat("--dir=", folder_)); }

}  // namespace weft
