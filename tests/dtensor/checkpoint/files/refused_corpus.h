#ifndef WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_REFUSED_CORPUS_H_
#define WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_REFUSED_CORPUS_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "dtensor/checkpoint/files/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {

// Expects that `read(files, path)` refuses every file of `folder`, by an Error that has the file's path and its text of
// `reasons`, by name; and that each of these is there.
template <class Read>
void ExpectRefused(const std::string& folder, const std::map<std::string, std::string>& reasons,
                   const Read& read) {
  const std::shared_ptr<Files> files = MakeDiskFiles();
  std::set<std::string> seen;
  for (const std::string& name : files->List(folder)) {
    const std::string path = JoinPath(folder, name);
    const auto reason = reasons.find(name);
    ASSERT_NE(reason, reasons.end()) << name << ": no reason is known";
    const std::string message = MessageOf([&] { read(*files, path); });
    EXPECT_THAT(message, testing::HasSubstr(reason->second));
    EXPECT_THAT(message, testing::HasSubstr(path));
    seen.insert(name);
  }
  EXPECT_EQ(seen.size(), reasons.size());
}

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_CHECKPOINT_FILES_REFUSED_CORPUS_H_
