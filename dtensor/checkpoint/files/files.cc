#include "dtensor/checkpoint/files/files.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {

void WriteAll(FileWriter& file, const void* data, int64_t num_bytes) {
  const char* next = static_cast<const char*>(data);
  for (int64_t left = num_bytes; left > 0;) {
    const int64_t written = file.Write(next, left);
    WEFT_CHECK(written > 0 && written <= left, "wrote ", written, " of ", left, " bytes");
    next += written;
    left -= written;
  }
}

void ReadAll(FileReader& file, int64_t offset, void* data, int64_t num_bytes) {
  char* next = static_cast<char*>(data);
  for (int64_t left = num_bytes; left > 0;) {
    const int64_t read = file.ReadAt(offset, next, left);
    if (read <= 0) {
      Throw(absl::StatusCode::kDataLoss, "'", file.path(), "' ends at byte ", offset, "; ", left,
            " more were expected");
    }
    next += read;
    offset += read;
    left -= read;
  }
}

std::string ReadText(Files& files, const std::string& path, int64_t max_bytes) {
  const std::unique_ptr<FileReader> file = files.Open(path);
  if (file->num_bytes() > max_bytes) {
    Throw(absl::StatusCode::kDataLoss, "'", path, "' has ", file->num_bytes(), " bytes, at most ", max_bytes,
          " were expected");
  }
  std::string text(static_cast<size_t>(file->num_bytes()), '\0');
  ReadAll(*file, 0, text.data(), file->num_bytes());
  return text;
}

void WriteText(Files& files, const std::string& path, absl::string_view text) {
  const std::unique_ptr<FileWriter> file = files.Create(path);
  WriteAll(*file, text.data(), static_cast<int64_t>(text.size()));
  file->Sync();
  file->Close();
}

void MakeFolders(Files& files, const std::string& path) {
  if (path.empty() || path == "/") return;
  MakeFolders(files, FolderOf(path));
  if (files.MakeFolder(path)) files.SyncFolder(FolderOf(path));
}

void RemoveFolder(Files& files, const std::string& path) {
  std::exception_ptr first;
  const auto try_to = [&](const auto& function) {
    try {
      function();
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kNotFound && first == nullptr) first = std::current_exception();
    }
  };
  if (files.IsFolder(path)) {
    try_to([&] {
      for (const std::string& name : files.List(path)) {
        try_to([&] { RemoveFolder(files, JoinPath(path, name)); });
      }
    });
  }
  if (first == nullptr) try_to([&] { files.Remove(path); });
  if (first != nullptr) std::rethrow_exception(first);
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  if (folder.empty()) return std::string(name);
  return absl::StrCat(folder, folder.back() == '/' ? "" : "/", name);
}

std::string FolderOf(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return "";
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

}  // namespace weft
