#include "dtensor/checkpoint/memory/snapshot_choice.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

HeldPiece Piece(int64_t step, int64_t generation, int source, int holder, int world = 2, uint32_t crc = 7,
                int64_t serial = 0) {
  return {.holder = holder,
          .segment = 4 * source,
          .stamp = {.key = {.step = step, .generation = generation, .serial = serial, .world = world},
                    .source = source,
                    .num_bytes = 100 + source,
                    .header_bytes = 10,
                    .header_crc32c = crc + static_cast<uint32_t>(source)}};
}

std::optional<int64_t> StepOf(const std::vector<HeldPiece>& held,
                              std::optional<int64_t> above = std::nullopt) {
  const std::optional<SnapshotChoice> choice = ChooseSnapshot(held, above);
  return choice ? std::optional<int64_t>(choice->key.step) : std::nullopt;
}

TEST(ChooseSnapshotTest, TakesTheNewestThatIsWhole) {
  EXPECT_EQ(StepOf({}), std::nullopt);
  const std::vector<HeldPiece> ten = {Piece(10, 0, 0, 0), Piece(10, 0, 1, 1)};
  EXPECT_EQ(StepOf(ten), 10);
  std::vector<HeldPiece> held = ten;
  held.push_back(Piece(20, 0, 0, 0));
  EXPECT_EQ(StepOf(held), 10);  // of rank 1 nothing is there
  held.push_back(Piece(20, 0, 0, 1));
  EXPECT_EQ(StepOf(held), 10);  // two of rank 0
  held.push_back(Piece(20, 1, 1, 1));
  EXPECT_EQ(StepOf(held), 10);  // of another generation
  held.push_back(Piece(20, 0, 1, 0, /*world=*/3));
  EXPECT_EQ(StepOf(held), 10);  // of another world
  held.push_back(Piece(20, 0, 1, 0, 2, 7, /*serial=*/1));
  EXPECT_EQ(StepOf(held), 10);  // of the same step, taken twice
  held.push_back(Piece(20, 0, 1, 0, 2, /*crc=*/9));
  EXPECT_EQ(StepOf(held), 20);
  held.push_back(Piece(20, 0, 1, 1, 2, /*crc=*/8));
  EXPECT_EQ(StepOf(held), 10);  // a copy that is not of the same elements
}

TEST(ChooseSnapshotTest, OneOfTheFolderThatIsAsNewIsPreferred) {
  const std::vector<HeldPiece> ten = {Piece(10, 0, 0, 0), Piece(10, 0, 1, 1)};
  EXPECT_EQ(StepOf(ten, 9), 10);
  EXPECT_EQ(StepOf(ten, 10), std::nullopt);
  EXPECT_EQ(StepOf(ten, 11), std::nullopt);
}

TEST(ChooseSnapshotTest, OfOneStepTheLaterGenerationIsTaken) {
  const auto choice = ChooseSnapshot({Piece(10, 0, 0, 0), Piece(10, 0, 1, 1), Piece(10, 2, 0, 0, /*world=*/1),
                                      Piece(10, 1, 0, 0), Piece(10, 1, 1, 1)});
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->key, (SnapshotKey{.step = 10, .generation = 2, .serial = 0, .world = 1}));
}

// A rank's own piece comes first, then the lowest holder.
TEST(ChooseSnapshotTest, PrefersAPieceWhereItIsRead) {
  const auto choice =
      ChooseSnapshot({Piece(10, 0, 1, 0), Piece(10, 0, 0, 2), Piece(10, 0, 0, 1), Piece(10, 0, 1, 1)});
  ASSERT_TRUE(choice.has_value());
  EXPECT_THAT(choice->pieces, ElementsAre(Piece(10, 0, 0, 1), Piece(10, 0, 1, 1)));
}

// Whatever is lost: what is chosen has every piece once, and nothing newer has.
TEST(ChooseSnapshotTest, RandomLosses) {
  std::mt19937_64 random(17);
  int num_found = 0;
  for (int round = 0; round < 2000; ++round) {
    const int world = static_cast<int>(1 + random() % 4);
    std::vector<HeldPiece> held;
    std::set<int64_t> whole;
    for (const int64_t step : {10, 20, 30}) {
      std::set<int> sources;
      for (int source = 0; source < world; ++source) {
        for (const int holder : {source, (source + 1) % world}) {
          if (random() % 3 == 0) continue;
          held.push_back(Piece(step, 0, source, holder, world));
          sources.insert(source);
        }
      }
      if (std::ssize(sources) == world) whole.insert(step);
    }
    std::shuffle(held.begin(), held.end(), random);
    const auto choice = ChooseSnapshot(held);
    ASSERT_EQ(choice.has_value(), !whole.empty());
    if (!choice) continue;
    ++num_found;
    EXPECT_EQ(choice->key.step, *whole.rbegin());
    ASSERT_EQ(std::ssize(choice->pieces), world);
    for (int source = 0; source < world; ++source) {
      EXPECT_EQ(choice->pieces[source].stamp.source, source);
      EXPECT_THAT(held, testing::Contains(choice->pieces[source]));
    }
    EXPECT_EQ(ParseHeld(FormatHeld(held)), held);
  }
  EXPECT_GT(num_found, 500);
}

TEST(SnapshotStampTest, AnotherTextIsNone) {
  const SnapshotStamp stamp = Piece(10, 3, 1, 0).stamp;
  const std::string text = stamp.ToText();
  EXPECT_EQ(SnapshotStamp::FromText(text), stamp);
  EXPECT_EQ(SnapshotStamp::FromText(""), std::nullopt);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    EXPECT_EQ(SnapshotStamp::FromText(changed), std::nullopt) << i;
    EXPECT_EQ(SnapshotStamp::FromText(text.substr(0, i)), std::nullopt) << i;
  }
}

TEST(BuddyCopiesTest, GoToTheNextNode) {
  EXPECT_THAT(BuddyCopies({}), IsEmpty());
  EXPECT_THAT(BuddyCopies({0, 0, 0}), IsEmpty());
  EXPECT_THAT(BuddyCopies({0, 0, 1, 1}),
              ElementsAre(BuddyCopy{0, 2, 0}, BuddyCopy{1, 3, 1}, BuddyCopy{2, 0, 0}, BuddyCopy{3, 1, 1}));
  EXPECT_THAT(BuddyCopies({0, 0, 1}),
              ElementsAre(BuddyCopy{0, 2, 0}, BuddyCopy{1, 2, 1}, BuddyCopy{2, 0, 0}));
}

// A copy is never on the node of its piece, and no two copies lie in one place.
TEST(BuddyCopiesTest, PlacesAreApart) {
  for (int ranks_per_node = 1; ranks_per_node <= 4; ++ranks_per_node) {
    for (int num_ranks = 1; num_ranks <= 13; ++num_ranks) {
      std::vector<int> nodes;
      for (int rank = 0; rank < num_ranks; ++rank) nodes.push_back(rank / ranks_per_node);
      const std::vector<BuddyCopy> copies = BuddyCopies(nodes);
      EXPECT_EQ(std::ssize(copies), nodes.back() == 0 ? 0 : num_ranks);
      std::set<std::pair<int, int>> places;
      for (const BuddyCopy& copy : copies) {
        EXPECT_NE(nodes[copy.from], nodes[copy.to]);
        EXPECT_LT(copy.slot, ranks_per_node);
        EXPECT_TRUE(places.insert({nodes[copy.to], copy.slot}).second);
      }
    }
  }
}

}  // namespace
}  // namespace weft
