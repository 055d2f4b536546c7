#include "parallel/path_tree.h"

#include <random>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "parallel/plan.h"

namespace weft {
namespace {

TEST(PathTreeTest, ByHand) {
  const std::vector<std::string> paths = {"",         "wte",          "blocks.0", "blocks.0.attn",
                                          "blocks.1", "blocks.1.attn"};
  const PathTree tree(paths);
  EXPECT_EQ(tree.Match(""), std::vector<int>{0});
  EXPECT_EQ(tree.Match("wte"), std::vector<int>{1});
  EXPECT_EQ(tree.Match("blocks.*"), (std::vector<int>{2, 4}));
  EXPECT_EQ(tree.Match("blocks.1.attn"), std::vector<int>{5});
  EXPECT_EQ(tree.Match("**"), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tree.Match("**.attn"), (std::vector<int>{3, 5}));
  EXPECT_EQ(tree.Match("blocks.**"), (std::vector<int>{2, 3, 4, 5}));
  // No module has the path "blocks", though some lie below it.
  EXPECT_EQ(tree.Match("blocks"), std::vector<int>{});
  EXPECT_EQ(tree.Match("*"), std::vector<int>{1});
  EXPECT_EQ(tree.Match("blocks.2"), std::vector<int>{});
  EXPECT_EQ(PathTree({}).Match("**"), std::vector<int>{});
}

TEST(PathTreeTest, TwoModulesOfOnePath) {
  // A child "a.b", and a child "b" of a child "a".
  const std::vector<std::string> paths = {"", "a.b", "a", "a.b"};
  EXPECT_EQ(PathTree(paths).Match("a.b"), (std::vector<int>{1, 3}));
  EXPECT_EQ(PathTree(paths).Match("**.b"), (std::vector<int>{1, 3}));
}

// Path by path is the definition.
TEST(PathTreeTest, MatchesWhatPathMatchesDoes) {
  std::mt19937 draw(3);
  const auto draw_path = [&](const std::vector<std::string>& components) {
    std::vector<std::string> path(draw() % 5);
    for (std::string& component : path) component = components[draw() % components.size()];
    return absl::StrJoin(path, ".");
  };
  size_t num_matches = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> paths(draw() % 20);
    for (std::string& path : paths) path = draw_path({"a", "b", "0", "1"});
    const PathTree tree(paths);
    for (int i = 0; i < 40; ++i) {
      const std::string pattern = draw_path({"a", "b", "0", "1", "*", "**"});
      std::vector<int> expected;
      for (size_t k = 0; k < paths.size(); ++k) {
        if (PathMatches(pattern, paths[k])) expected.push_back(static_cast<int>(k));
      }
      ASSERT_EQ(tree.Match(pattern), expected) << pattern << " among " << absl::StrJoin(paths, " ");
      num_matches += expected.size();
    }
  }
  EXPECT_GT(num_matches, 5000u);
}

}  // namespace
}  // namespace weft
