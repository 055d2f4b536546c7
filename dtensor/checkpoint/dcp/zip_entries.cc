#include "dtensor/checkpoint/dcp/zip_entries.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int64_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kCentralBytes = 46, kLocalBytes = 30;
// The list of files of a tensor's archive has some hundred bytes.
constexpr int64_t kMaxListBytes = int64_t{16} << 20;
constexpr uint32_t kIn64 = 0xffffffff;

// Numbers in bytes, little-endian.
// Errors: DataLoss outside of them.
class Fields {
 public:
  Fields(const std::string& path, std::string bytes) : path_(path), bytes_(std::move(bytes)) {}

  uint64_t At(int64_t offset, int size) const {
    Check(offset, size);
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + offset, static_cast<size_t>(size));
    return value;
  }
  std::string Text(int64_t offset, int64_t size) const {
    Check(offset, size);
    return bytes_.substr(static_cast<size_t>(offset), static_cast<size_t>(size));
  }
  int64_t size() const { return std::ssize(bytes_); }
  void Expect(int64_t offset, uint32_t signature) const {
    if (At(offset, 4) != signature) Fail();
  }
  [[noreturn]] void Fail() const {
    Throw(absl::StatusCode::kDataLoss, "'", path_, "' is not a whole zip archive where a tensor should be");
  }

 private:
  void Check(int64_t offset, int64_t size) const {
    if (offset < 0 || size < 0 || offset > std::ssize(bytes_) || size > std::ssize(bytes_) - offset) Fail();
  }
  const std::string path_;
  const std::string bytes_;
};

// Bytes of the archive, which lies in a part of the file.
class Archive {
 public:
  Archive(FileReader& file, int64_t offset, int64_t num_bytes)
      : file_(file), offset_(offset), num_bytes_(num_bytes) {
    if (offset < 0 || num_bytes < 0 || offset > file.num_bytes() || num_bytes > file.num_bytes() - offset) {
      Fields(file.path(), "").Fail();
    }
  }
  Fields Read(int64_t at, int64_t count) const {
    if (at < 0 || count < 0 || at > num_bytes_ || count > num_bytes_ - at) Fields(file_.path(), "").Fail();
    std::string bytes(static_cast<size_t>(count), '\0');
    ReadAll(file_, offset_ + at, bytes.data(), count);
    return Fields(file_.path(), std::move(bytes));
  }
  int64_t offset() const { return offset_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  FileReader& file_;
  const int64_t offset_;
  const int64_t num_bytes_;
};

// A field of 32 bits, or, if that says so, the next 64-bit number of the extra field of type 1.
uint64_t Number64(const Fields& list, uint64_t narrow, int64_t extra, int64_t extra_bytes, int64_t* taken) {
  if (narrow != kIn64) return narrow;
  for (int64_t at = extra; at + 4 <= extra + extra_bytes;) {
    const auto size = static_cast<int64_t>(list.At(at + 2, 2));
    if (list.At(at, 2) == 1 && *taken + 8 <= size) {
      *taken += 8;
      return list.At(at + 4 + *taken - 8, 8);
    }
    at += 4 + size;
  }
  list.Fail();
}

struct ListPlace {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
};

// The list of files, from the record at the archive's end.
ListPlace FindList(const Archive& archive) {
  const Fields end = archive.Read(archive.num_bytes() - kEndBytes, kEndBytes);
  end.Expect(0, 0x06054b50);
  ListPlace place = {.offset = end.At(16, 4), .num_bytes = end.At(12, 4)};
  if (place.offset != kIn64 && place.num_bytes != kIn64) return place;
  const Fields locator = archive.Read(archive.num_bytes() - kEndBytes - kLocatorBytes, kLocatorBytes);
  locator.Expect(0, 0x07064b50);
  const Fields end64 = archive.Read(static_cast<int64_t>(locator.At(8, 8)), kEnd64Bytes);
  end64.Expect(0, 0x06064b50);
  return {.offset = end64.At(48, 8), .num_bytes = end64.At(40, 8)};
}

}  // namespace

std::map<std::string, ZipEntry> ReadZipEntries(FileReader& file, int64_t offset, int64_t num_bytes) {
  const Archive archive(file, offset, num_bytes);
  const ListPlace place = FindList(archive);
  if (place.num_bytes > kMaxListBytes) Fields(file.path(), "").Fail();
  const Fields list = archive.Read(static_cast<int64_t>(place.offset), static_cast<int64_t>(place.num_bytes));
  std::map<std::string, ZipEntry> entries;
  for (int64_t at = 0; at < list.size();) {
    list.Expect(at, 0x02014b50);
    const auto name_bytes = static_cast<int64_t>(list.At(at + 28, 2));
    const auto extra_bytes = static_cast<int64_t>(list.At(at + 30, 2));
    const auto comment_bytes = static_cast<int64_t>(list.At(at + 32, 2));
    const std::string name = list.Text(at + kCentralBytes, name_bytes);
    if (list.At(at + 10, 2) != 0) {
      Throw(absl::StatusCode::kUnimplemented, "'", file.path(), "': '", name, "' is compressed");
    }
    // Sizes and the place stand in this order in the extra field, those that do not fit here.
    const int64_t extra = at + kCentralBytes + name_bytes;
    int64_t taken = 0;
    const uint64_t size = Number64(list, list.At(at + 24, 4), extra, extra_bytes, &taken);
    const uint64_t stored = Number64(list, list.At(at + 20, 4), extra, extra_bytes, &taken);
    const auto begin = static_cast<int64_t>(Number64(list, list.At(at + 42, 4), extra, extra_bytes, &taken));
    const Fields local = archive.Read(begin, kLocalBytes);
    local.Expect(0, 0x04034b50);
    const int64_t first = begin + kLocalBytes + static_cast<int64_t>(local.At(26, 2) + local.At(28, 2));
    if (size != stored || first > num_bytes || size > static_cast<uint64_t>(num_bytes - first)) list.Fail();
    entries[name] = {.offset = offset + first, .num_bytes = static_cast<int64_t>(size)};
    at = extra + extra_bytes + comment_bytes;
  }
  return entries;
}

}  // namespace weft
