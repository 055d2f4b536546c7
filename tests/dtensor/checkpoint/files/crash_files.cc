#include "tests/dtensor/checkpoint/files/crash_files.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_split.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

std::string NameOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

class MemoryReader final : public FileReader {
 public:
  MemoryReader(std::string path, std::string bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {}
  const std::string& path() const override { return path_; }
  int64_t num_bytes() const override { return std::ssize(bytes_); }
  int64_t ReadAt(int64_t offset, void* data, int64_t num_bytes) override {
    if (offset >= std::ssize(bytes_)) return 0;
    const int64_t count = std::min(num_bytes, std::ssize(bytes_) - offset);
    std::memcpy(data, bytes_.data() + offset, static_cast<size_t>(count));
    return count;
  }

 private:
  const std::string path_;
  const std::string bytes_;
};

}  // namespace

class CrashWriter final : public FileWriter {
 public:
  CrashWriter(CrashFiles& files, std::string path, int node)
      : files_(files), path_(std::move(path)), node_(node) {}
  int64_t Write(const void* data, int64_t num_bytes) override {
    return files_.Write(node_, path_, data, num_bytes);
  }
  void Sync() override { files_.SyncFile(node_, path_); }
  void Close() override {}

 private:
  CrashFiles& files_;
  const std::string path_;
  const int node_;
};

void Apply(const DiskOp& op, DiskImage* image) {
  DiskImage::Node& node = image->nodes[op.node];
  switch (op.kind) {
    case DiskOp::kWrite: {
      const auto end = static_cast<size_t>(op.offset) + op.bytes.size();
      if (node.bytes.size() < end) node.bytes.resize(end, '\0');
      std::memcpy(node.bytes.data() + op.offset, op.bytes.data(), op.bytes.size());
      break;
    }
    case DiskOp::kTruncate:
      node.bytes.clear();
      break;
    case DiskOp::kNames:
      for (const DiskOp::Change& change : op.changes) {
        node.names.erase(change.name);
        if (change.to < 0) continue;
        node.names[change.name] = change.to;
        image->nodes[change.to].is_folder = change.is_folder;
      }
      break;
    case DiskOp::kSyncFile:
    case DiskOp::kSyncFolder:
      break;
  }
}

void VisitCrashes(const DiskImage& before, const std::vector<DiskOp>& log, size_t num_done, uint64_t seed,
                  int samples, const std::function<void(const DiskImage& image)>& visit) {
  std::vector<bool> durable(num_done, false);
  for (size_t i = 0; i < num_done; ++i) {
    if (log[i].kind != DiskOp::kSyncFile && log[i].kind != DiskOp::kSyncFolder) continue;
    durable[i] = true;
    for (size_t j = 0; j < i; ++j) {
      const bool is_name = log[j].kind == DiskOp::kNames;
      if (log[j].node == log[i].node && is_name == (log[i].kind == DiskOp::kSyncFolder)) durable[j] = true;
    }
  }
  std::vector<size_t> open;
  for (size_t i = 0; i < num_done; ++i) {
    if (!durable[i]) open.push_back(i);
  }
  const bool all = open.size() <= 12;
  const uint64_t count = all ? uint64_t{1} << open.size() : static_cast<uint64_t>(samples);
  std::mt19937_64 random(seed);
  for (uint64_t sample = 0; sample < count; ++sample) {
    std::vector<bool> kept = durable;
    for (size_t i = 0; i < open.size(); ++i) {
      kept[open[i]] = all ? (sample >> i & 1) != 0 : sample == 0 ? false : sample == 1 || random() % 2 == 0;
    }
    DiskImage image = before;
    for (size_t i = 0; i < num_done; ++i) {
      if (kept[i]) Apply(log[i], &image);
    }
    visit(image);
  }
}

CrashFiles::CrashFiles(DiskImage image) : image_(std::move(image)) {
  next_ = image_.nodes.rbegin()->first + 1;
}

int CrashFiles::Find(const std::string& path) const {
  int node = 0;
  for (const absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    const auto& names = image_.nodes.at(node).names;
    const auto found = names.find(std::string(name));
    if (found == names.end()) return -1;
    node = found->second;
  }
  return node;
}

int CrashFiles::FolderAt(const std::string& path) const {
  const int node = Find(path);
  if (node < 0 || !image_.nodes.at(node).is_folder) {
    Throw(absl::StatusCode::kNotFound, "no folder '", path, "'");
  }
  return node;
}

void CrashFiles::Do(DiskOp op, const std::string& path) {
  const int64_t number = num_changes_++;
  if (fail_at_ >= 0 && (number == fail_at_ || (fail_from_then_on_ && number > fail_at_))) {
    Throw(fail_code_, "cannot change '", path, "': ",
          fail_code_ == absl::StatusCode::kResourceExhausted ? "No space left on device"
                                                             : "Input/output error");
  }
  op.path = path;
  Apply(op, &image_);
  log_.push_back(std::move(op));
}

int CrashFiles::Add(const std::string& path, bool is_folder) {
  const int folder = FolderAt(FolderOf(path));
  const int node = next_;
  DiskOp op = {.kind = DiskOp::kNames, .node = folder};
  op.changes.push_back({NameOf(path), node, is_folder});
  Do(op, path);
  ++next_;
  return node;
}

std::unique_ptr<FileWriter> CrashFiles::Create(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int node = Find(path);
  if (node < 0) {
    node = Add(path, /*is_folder=*/false);
  } else {
    Do({.kind = DiskOp::kTruncate, .node = node}, path);
  }
  return std::make_unique<CrashWriter>(*this, path, node);
}

int64_t CrashFiles::Write(int node, const std::string& path, const void* data, int64_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t count = longest_write_ > 0 ? std::min(num_bytes, longest_write_) : num_bytes;
  const std::string bytes(static_cast<const char*>(data), static_cast<size_t>(count));
  const int64_t offset = std::ssize(image_.nodes.at(node).bytes);
  // In two halves, of which a crash may keep either.
  const int64_t half = count / 2;
  if (half > 0)
    Do({.kind = DiskOp::kWrite, .node = node, .offset = offset, .bytes = bytes.substr(0, half)}, path);
  Do({.kind = DiskOp::kWrite, .node = node, .offset = offset + half, .bytes = bytes.substr(half)}, path);
  return count;
}

void CrashFiles::SyncFile(int node, const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Do({.kind = DiskOp::kSyncFile, .node = node}, path);
}

std::unique_ptr<FileReader> CrashFiles::Open(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int node = Find(path);
  if (node < 0 || image_.nodes.at(node).is_folder) {
    Throw(absl::StatusCode::kNotFound, "cannot read '", path, "'");
  }
  if (!unreadable_.empty() && path.find(unreadable_) != std::string::npos) {
    Throw(unreadable_code_, "cannot read '", path, "': it is told to fail");
  }
  return std::make_unique<MemoryReader>(path, image_.nodes.at(node).bytes);
}

bool CrashFiles::MakeFolder(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Find(path) >= 0) return false;
  Add(path, /*is_folder=*/true);
  return true;
}

void CrashFiles::SyncFolder(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Do({.kind = DiskOp::kSyncFolder, .node = FolderAt(path)}, path);
}

void CrashFiles::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int node = Find(from), there = Find(to);
  if (node < 0) Throw(absl::StatusCode::kNotFound, "cannot rename '", from, "'");
  if (there >= 0 && !image_.nodes.at(there).names.empty()) {
    Throw(absl::StatusCode::kFailedPrecondition, "cannot rename '", from, "': '", to, "' is not empty");
  }
  DiskOp op = {.kind = DiskOp::kNames, .node = FolderAt(FolderOf(from))};
  const bool is_folder = image_.nodes.at(node).is_folder;
  op.changes = {{NameOf(from), -1, is_folder}, {NameOf(to), node, is_folder}};
  Do(op, to);
}

std::vector<std::string> CrashFiles::List(const std::string& folder) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, node] : image_.nodes.at(FolderAt(folder)).names) names.push_back(name);
  return names;
}

void CrashFiles::Remove(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int node = Find(path);
  if (node < 0) Throw(absl::StatusCode::kNotFound, "cannot remove '", path, "'");
  if (!unremovable_.empty() && path.find(unremovable_) != std::string::npos) {
    Throw(absl::StatusCode::kFailedPrecondition, "cannot remove '", path, "': Device or resource busy");
  }
  if (!image_.nodes.at(node).names.empty()) {
    Throw(absl::StatusCode::kFailedPrecondition, "cannot remove '", path, "': not empty");
  }
  DiskOp op = {.kind = DiskOp::kNames, .node = FolderAt(FolderOf(path))};
  op.changes.push_back({NameOf(path), -1, false});
  Do(op, path);
}

bool CrashFiles::IsFolder(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int node = Find(path);
  return node >= 0 && image_.nodes.at(node).is_folder;
}

std::optional<int64_t> CrashFiles::SizeOf(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int node = Find(path);
  if (node < 0 || image_.nodes.at(node).is_folder) return std::nullopt;
  return std::ssize(image_.nodes.at(node).bytes);
}

DiskImage CrashFiles::StartLog() {
  const std::lock_guard<std::mutex> lock(mutex_);
  log_.clear();
  return image_;
}

std::vector<DiskOp> CrashFiles::log() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

DiskImage CrashFiles::image() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return image_;
}

void CrashFiles::FailAt(int64_t index, absl::StatusCode code, bool from_then_on) {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_changes_ = 0;
  fail_at_ = index;
  fail_code_ = code;
  fail_from_then_on_ = from_then_on;
}

void CrashFiles::FailNever() { FailAt(-1, absl::StatusCode::kDataLoss); }

int64_t CrashFiles::num_changes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_changes_;
}

void CrashFiles::FailReads(const std::string& path_part, absl::StatusCode code) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unreadable_ = path_part;
  unreadable_code_ = code;
}

void CrashFiles::FailRemoves(const std::string& path_part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unremovable_ = path_part;
}

void CrashFiles::set_longest_write(int64_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  longest_write_ = num_bytes;
}

void CrashFiles::Damage(const std::string& path, int64_t offset) {
  const std::lock_guard<std::mutex> lock(mutex_);
  image_.nodes.at(Find(path)).bytes.at(static_cast<size_t>(offset)) ^= 0x10;
}

void CrashFiles::Replace(const std::string& path, const std::string& bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  image_.nodes.at(Find(path)).bytes = bytes;
}

std::string CrashFiles::BytesOf(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return image_.nodes.at(Find(path)).bytes;
}

}  // namespace weft
