#include "runtime/data/idx_file.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

std::string Write(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

TEST(IdxFileTest, ReadsExtentsAndValues) {
  EXPECT_EQ(ReadIdxFile(Write("matrix", Bytes({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 250, 0, 6}))),
            (IdxArray{{2, 3}, {1, 2, 3, 250, 0, 6}}));
  EXPECT_EQ(ReadIdxFile(Write("scalar", Bytes({0, 0, 8, 0, 7}))), (IdxArray{{}, {7}}));
  EXPECT_EQ(ReadIdxFile(Write("none", Bytes({0, 0, 8, 1, 0, 0, 0, 0}))), (IdxArray{{0}, {}}));
  const IdxArray long_one =
      ReadIdxFile(Write("long", Bytes({0, 0, 8, 1, 0, 0, 1, 2}) + std::string(258, 'x')));
  EXPECT_EQ(long_one.extents, std::vector<int64_t>{258});
}

TEST(IdxFileTest, SaysWhatIsBroken) {
  const auto message = [](const std::string& bytes) {
    const std::string path = Write("broken", bytes);
    const std::string text = MessageOf([&] { ReadIdxFile(path); });
    return text.substr(text.find("' ") + 2);
  };
  EXPECT_EQ(MessageOf([] { ReadIdxFile("/no/such"); }), "cannot read '/no/such': No such file or directory");
  EXPECT_EQ(message(""), "is no IDX file of unsigned bytes");
  EXPECT_EQ(message(Bytes({0, 0, 13, 1, 0, 0, 0, 0})), "is no IDX file of unsigned bytes");
  EXPECT_EQ(message(Bytes({0x1f, 0x8b, 8, 0})), "is packed: unpack it with gzip --decompress");
  EXPECT_EQ(message(Bytes({0, 0, 8, 2, 0, 0, 0, 2})), "ends within its header: expected 12 bytes, got 8");
  EXPECT_EQ(message(Bytes({0, 0, 8, 1, 0, 0, 0, 2, 1})), "has 1 values, its extents say 2");
  EXPECT_EQ(message(Bytes({0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3})), "has 3 values, its extents say 2");
  // Extents whose product does not fit 64 bits.
  std::string large = Bytes({0, 0, 8, 3});
  for (int i = 0; i < 3; ++i) large += Bytes({255, 255, 255, 255});
  EXPECT_EQ(message(large), "has 0 values, its extents say 4611686018427387904");
}

}  // namespace
}  // namespace weft
