// The folder of a store's journal, as bytes and as records.

#ifndef WEFT_TESTS_RUNTIME_STORE_JOURNAL_FOLDER_H_
#define WEFT_TESTS_RUNTIME_STORE_JOURNAL_FOLDER_H_

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/base/error.h"
#include "runtime/store/store_journal.h"

namespace weft {

class JournalFolder {
 public:
  JournalFolder() {
    std::string folder = "/tmp/weft_journal.XXXXXX";
    WEFT_CHECK(mkdtemp(folder.data()) != nullptr, "no folder");
    path_ = folder;
  }
  ~JournalFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string Bytes() const {
    std::ifstream in(path_ + "/journal", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void SetBytes(const std::string& bytes) const {
    std::ofstream(path_ + "/journal", std::ios::binary | std::ios::trunc) << bytes;
  }

 private:
  std::string path_;
};

inline std::vector<std::string> RecordsIn(const JournalFolder& folder) {
  std::vector<std::string> records;
  const StoreJournal journal({.folder = folder.path()},
                             [&](absl::string_view record) { records.emplace_back(record); });
  return records;
}

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_STORE_JOURNAL_FOLDER_H_
