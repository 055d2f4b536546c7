#include "dtensor/nn/path_tree.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

// Whether the whole path matches the whole pattern, tried one way of reading "**" after another: the
// definition that the tree is held to.
bool MatchFrom(absl::Span<const absl::string_view> pattern, absl::Span<const absl::string_view> path) {
  if (pattern.empty()) return path.empty();
  if (pattern[0] == "**") {
    for (size_t skip = 0; skip <= path.size(); ++skip) {
      if (MatchFrom(pattern.subspan(1), path.subspan(skip))) return true;
    }
    return false;
  }
  if (path.empty() || (pattern[0] != "*" && pattern[0] != path[0])) return false;
  return MatchFrom(pattern.subspan(1), path.subspan(1));
}

std::vector<absl::string_view> Components(absl::string_view path) {
  return absl::StrSplit(path, '.', absl::SkipEmpty());
}

bool PathMatches(absl::string_view pattern, absl::string_view path) {
  return MatchFrom(Components(pattern), Components(path));
}

TEST(PathTreeTest, Globs) {
  struct Case {
    const char* pattern;
    const char* path;
    bool matches;
  };
  const Case cases[] = {
      {"", "", true},
      {"", "wte", false},
      {"wte", "", false},
      {"wte", "wte", true},
      {"wte", "wte2", false},
      {"w*", "wte", false},  // "*" is a whole component
      {"*", "wte", true},
      {"*", "", false},
      {"*", "a.b", false},
      {"blocks.*", "blocks.11", true},
      {"blocks.*", "blocks", false},
      {"blocks.*", "blocks.0.attn", false},
      {"blocks.*.attn.qkv", "blocks.3.attn.qkv", true},
      {"blocks.*.attn.qkv", "blocks.attn.qkv", false},
      {"*.*", "a.b", true},
      {"**", "", true},
      {"**", "a", true},
      {"**", "a.b.c", true},
      {"a.**", "a", true},
      {"a.**", "a.b.c", true},
      {"a.**", "b.a", false},
      {"**.qkv", "qkv", true},
      {"**.qkv", "blocks.0.attn.qkv", true},
      {"**.qkv", "blocks.0.attn.qkv.weight", false},
      {"blocks.**.up", "blocks.0.mlp.up", true},
      {"blocks.**.up", "blocks.up", true},
      {"**.a.**.a", "a.a", true},
      {"**.a.**.a", "x.a.y.z.a", true},
      {"**.a.**.a", "x.a.y", false},
      {"**.*", "", false},
      {"**.*", "a.b", true},
  };
  for (const Case& c : cases) {
    const std::vector<std::string> paths = {c.path};
    const std::vector<int> expected = c.matches ? std::vector<int>{0} : std::vector<int>();
    EXPECT_EQ(PathTree(paths).Match(c.pattern), expected) << c.pattern << " on " << c.path;
  }
}

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
