#include "runtime/data/default_text.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DefaultTextTest : public testing::Test {
 protected:
  // Not under testing::TempDir(): under Bazel that lies in an output folder, from which the real tree is
  // found.
  void SetUp() override {
    std::string folder = "/tmp/weft_default_text.XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    root_ = fs::canonical(folder);
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& bytes) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << bytes;
  }

  std::string Path(const std::string& path) const { return (root_ / path).string(); }

  static Error FindError(const std::vector<std::string>& start_folders) {
    try {
      FindDefaultText(start_folders);
    } catch (const Error& error) {
      return error;
    }
    return Error(absl::StatusCode::kOk, "no error");
  }

  fs::path root_;
};

TEST_F(DefaultTextTest, IsFoundAboveTheFolder) {
  Write("tree/WORKSPACE", "");
  Write("tree/data/jargon.txt", "text");
  Write("tree/examples/gpt/BUILD", "");
  for (const char* start : {"tree", "tree/examples/gpt", "tree/not/there"}) {
    EXPECT_EQ(FindDefaultText({Path(start)}), Path("tree/data/jargon.txt")) << start;
  }
}

TEST_F(DefaultTextTest, ImagesAreAFolder) {
  Write("tree/WORKSPACE", "");
  Write("tree/data/fashion-mnist/train-labels-idx1-ubyte", "labels");
  EXPECT_EQ(FindDefaultImages({Path("tree/not/there")}), Path("tree/data/fashion-mnist"));
  Write("other/WORKSPACE", "");
  try {
    FindDefaultImages({Path("other")});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "no images to train on: " + Path("other") +
                  "/data/fashion-mnist is missing; run ./setup.sh there, or give --data=FOLDER");
  }
}

TEST_F(DefaultTextTest, IsFoundFromABazelOutputFolder) {
  Write("tree/WORKSPACE", "");
  Write("tree/data/jargon.txt", "text");
  Write("cache/DO_NOT_BUILD_HERE", Path("tree") + "\n");
  Write("cache/execroot/weft/bazel-out/k8-opt/bin/examples/train_gpt", "");
  EXPECT_EQ(FindDefaultText({Path("cache/execroot/weft/bazel-out/k8-opt/bin/examples")}),
            Path("tree/data/jargon.txt"));
}

TEST_F(DefaultTextTest, LinksAreFollowed) {
  Write("tree/WORKSPACE", "");
  Write("tree/data/jargon.txt", "text");
  Write("tree/bin/x", "");
  fs::create_directory_symlink(root_ / "tree" / "bin", root_ / "link");
  EXPECT_EQ(FindDefaultText({Path("link")}), Path("tree/data/jargon.txt"));
}

TEST_F(DefaultTextTest, TheFirstFolderThatHasItWins) {
  for (const char* tree : {"a", "b"}) {
    Write(std::string(tree) + "/WORKSPACE", "");
    Write(std::string(tree) + "/data/jargon.txt", "text");
  }
  Write("bare/WORKSPACE", "");
  EXPECT_EQ(FindDefaultText({Path("bare"), Path("b"), Path("a")}), Path("b/data/jargon.txt"));
}

TEST_F(DefaultTextTest, AFolderThatIsNoSourceTreeDoesNotCount) {
  Write("other/data/jargon.txt", "text");
  const Error error = FindError({Path("other")});
  EXPECT_EQ(error.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(error.message(), HasSubstr("give --data=FILE"));
}

TEST_F(DefaultTextTest, ATreeWithoutTheTextIsNamed) {
  Write("tree/WORKSPACE", "");
  Write("tree/examples/BUILD", "");
  const Error error = FindError({Path("tree/examples")});
  EXPECT_EQ(error.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(error.message(), "no text to train on: " + Path("tree/data/jargon.txt") +
                                 " is missing; run ./setup.sh there, or give --data=FILE");
}

TEST_F(DefaultTextTest, TheTreeOfBazelRunComesFirst) {
  Write("tree/WORKSPACE", "");
  Write("tree/data/jargon.txt", "text");
  ASSERT_EQ(setenv("BUILD_WORKSPACE_DIRECTORY", Path("tree").c_str(), 1), 0);
  EXPECT_EQ(DefaultTextPath(), Path("tree/data/jargon.txt"));
  ASSERT_EQ(unsetenv("BUILD_WORKSPACE_DIRECTORY"), 0);
}

}  // namespace
}  // namespace weft
