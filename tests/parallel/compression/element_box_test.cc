#include "parallel/compression/element_box.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

// By a loop over every element of the whole.
std::vector<int64_t> ElementsByHand(const Shape& whole, const Shape& offset, const Shape& shape) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < whole.num_elements(); ++i) {
    bool is_inside = true;
    int64_t rest = i;
    for (int dim = whole.ndim() - 1; dim >= 0; --dim) {
      const int64_t at = rest % whole[dim];
      rest /= whole[dim];
      is_inside &= at >= offset[dim] && at < offset[dim] + shape[dim];
    }
    if (is_inside) elements.push_back(i);
  }
  return elements;
}

struct Case {
  Shape whole, offset, shape;
  int num_runs;
};

TEST(ElementBoxTest, HasTheElementsOfTheBox) {
  for (const Case& of : {
           Case{{4, 3}, {2, 0}, {2, 3}, 1},
           Case{{4, 3}, {0, 2}, {4, 1}, 4},
           Case{{4, 3}, {1, 1}, {2, 2}, 2},
           Case{{4, 3}, {0, 0}, {4, 3}, 1},
           Case{{4, 3}, {4, 0}, {0, 3}, 0},
           Case{{2, 3, 4, 5}, {1, 0, 2, 0}, {1, 3, 2, 5}, 3},
           Case{{2, 3, 4, 5}, {0, 1, 0, 1}, {2, 2, 4, 3}, 16},
           Case{{2, 1, 5}, {0, 0, 3}, {2, 1, 2}, 2},
           Case{{7}, {5}, {2}, 1},
           Case{{7}, {7}, {0}, 0},
           Case{{0, 3}, {0, 0}, {0, 3}, 0},
           Case{{}, {}, {}, 1},
       }) {
    const ElementBox box(of.whole, of.offset, of.shape);
    const std::vector<int64_t> expected = ElementsByHand(of.whole, of.offset, of.shape);
    EXPECT_EQ(box.num_elements(), of.shape.num_elements());
    std::vector<int64_t> elements;
    int num_runs = 0;
    box.ForEachRun([&](int64_t begin, int64_t length) {
      for (int64_t i = 0; i < length; ++i) elements.push_back(begin + i);
      ++num_runs;
    });
    EXPECT_EQ(elements, expected) << of.shape << " at " << of.offset << " of " << of.whole;
    EXPECT_EQ(num_runs, of.num_runs) << of.shape << " at " << of.offset << " of " << of.whole;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(box.IndexOf(static_cast<int64_t>(i)), expected[i]);
    }
    for (int64_t begin = 0; begin < box.num_elements(); ++begin) {
      const int64_t size = std::min<int64_t>(3, box.num_elements() - begin);
      std::vector<int64_t> some;
      box.ForEachRun(begin, size, [&](int64_t first, int64_t length) {
        for (int64_t i = 0; i < length; ++i) some.push_back(first + i);
      });
      EXPECT_EQ(some, std::vector<int64_t>(expected.begin() + begin, expected.begin() + begin + size));
    }
    std::vector<float> whole(of.whole.num_elements());
    std::iota(whole.begin(), whole.end(), 0.0f);
    EXPECT_EQ(box.Values(absl::MakeConstSpan(whole)), std::vector<double>(expected.begin(), expected.end()));
  }
}

TEST(ElementBoxTest, AStretchIsElementsInARow) {
  EXPECT_EQ(ElementBox::Stretch(3, 4), ElementBox({10}, {3}, {4}));
  EXPECT_EQ(ElementBox::Stretch(10, 0).num_elements(), 0);
  EXPECT_EQ(ElementBox().num_elements(), 0);
}

}  // namespace
}  // namespace weft
