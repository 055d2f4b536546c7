#include "dtensor/checkpoint/dcp/dcp_reader.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/dcp/pickle.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kGolden[] = "tests/dtensor/checkpoint/dcp/golden";

// make_dcp_golden.py's.
double Value(int seed, int64_t i, bool is_floating) {
  const auto whole = static_cast<double>((i * 7 + seed * 13) % 101 - 50);
  return is_floating ? whole / 2 : whole;
}
std::vector<double> Values(int seed, int64_t count, bool is_floating) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(Value(seed, i, is_floating));
  return values;
}
std::vector<double> ReadWhole(TensorSource& source, const std::string& name) {
  return source.Read(name, WholeBox(source.Find(name)->shape), MakeCpuAllocator()).ToVector<double>();
}

TEST(DcpReaderTest, ReadsWhatPyTorchWrote) {
  DcpReader reader(MakeDiskFiles(), kGolden);
  EXPECT_THAT(reader.Names(), ElementsAre("model.columns", "model.flag", "model.one", "model.plain",
                                          "model.scalar", "model.split", "model.transposed", "model.whole"));
  EXPECT_EQ(reader.Find("model.split")->ToString(), "f32[5, 3]");
  EXPECT_EQ(reader.Find("model.columns")->ToString(), "bf16[4, 6]");
  EXPECT_EQ(reader.Find("none"), nullptr);
  EXPECT_EQ(ReadWhole(reader, "model.split"), Values(1, 15, true));
  EXPECT_EQ(ReadWhole(reader, "model.columns"), Values(2, 24, true));
  EXPECT_EQ(ReadWhole(reader, "model.one"), Values(3, 2, true));
  EXPECT_EQ(ReadWhole(reader, "model.whole"), Values(4, 4, true));
  EXPECT_EQ(ReadWhole(reader, "model.plain"), Values(5, 7, false));
  EXPECT_EQ(ReadWhole(reader, "model.scalar"), Values(7, 1, true));
  EXPECT_EQ(ReadWhole(reader, "model.flag"), (std::vector<double>{1, 0}));
  // [3, 2], written as [2, 3] with its strides.
  std::vector<double> transposed;
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) transposed.push_back(Value(6, j * 3 + i, false));
  }
  EXPECT_EQ(ReadWhole(reader, "model.transposed"), transposed);
  EXPECT_EQ(reader.Values(),
            (std::map<std::string, std::string>{{"note", "a text"}, {"rate", "0.25"}, {"step", "42"}}));
  EXPECT_THAT(reader.Skipped(), ElementsAre("object"));
}

TEST(DcpReaderTest, ReadsBoxes) {
  DcpReader reader(MakeDiskFiles(), kGolden);
  const std::vector<double> whole = Values(2, 24, true);
  for (int64_t top = 0; top < 4; ++top) {
    for (int64_t left = 0; left < 6; ++left) {
      for (int64_t rows = 0; rows <= 4 - top; ++rows) {
        const int64_t columns = (6 - left + 1) / 2;
        const ShardBox box = {{4, 6}, {top, left}, {rows, columns}};
        std::vector<double> expected;
        for (int64_t i = 0; i < rows * columns; ++i) {
          expected.push_back(whole[static_cast<size_t>((top + i / columns) * 6 + left + i % columns)]);
        }
        EXPECT_EQ(reader.Read("model.columns", box, MakeCpuAllocator()).ToVector<double>(), expected);
      }
    }
  }
  EXPECT_THAT(MessageOf([&] { reader.Read("model.split", WholeBox({5}), MakeCpuAllocator()); }),
              HasSubstr("tensor 'model.split' is f32[5, 3], expected shape [5]"));
  EXPECT_THAT(MessageOf([&] { reader.Read("none", WholeBox({5}), MakeCpuAllocator()); }),
              HasSubstr("has no tensor 'none'"));
}

// Into a state, on a mesh of three, under other names.
TEST(DcpReaderTest, Restores) {
  RunRanks(3, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=3"));
    const DTensor weight = Full(context, DType::kF32, {5, 3}, 0).Redistribute(Layout(2, 1).WithShard(0, 0));
    State state;
    state.Add("model", MakeTensorState([weight] {
                return std::vector<std::pair<std::string, DTensor>>{{"weight", weight}};
              }));
    Agreement agreement(world, std::chrono::minutes(1));
    Restore(agreement, [] { return std::make_unique<DcpReader>(MakeDiskFiles(), kGolden); }, state,
            {.rename = [](const std::string&) { return "model.split"; }, .strict = false});
    EXPECT_EQ(weight.FullTensor().ToVector<double>(), Values(1, 15, true));
  });
}

// The classic attack: a pickle that calls os.system. Nothing is called; the name is told.
TEST(DcpReaderTest, RunsNoCode) {
  const auto read = [](const std::string& pickle) { Pickle("p", pickle, {"torch Size"}); };
  EXPECT_EQ(MessageOf([&] {
              read(
                  "\x80\x02"
                  "cposix\nsystem\nX\x04\x00\x00\x00"
                  "true\x85R.");
            }),
            "'p': the pickle names 'posix system', which is not among the classes that are read");
  EXPECT_EQ(MessageOf([&] { read(std::string("\x80\x02") + "itorch\nSize\n."); }),
            "'p': the pickle has the opcode 0x69 at byte 2, which is not among those that are read");
  EXPECT_THAT(MessageOf([&] { read(std::string("\x80\x02K\x01\x85", 5)); }), HasSubstr("it ends at byte 5"));
  EXPECT_THAT(MessageOf([&] { read("."); }), HasSubstr("it takes more than it has"));
  EXPECT_THAT(MessageOf([&] { read("h\x05."); }), HasSubstr("it recalls what it has not kept"));
  EXPECT_THAT(MessageOf([&] { read("}K\x01u."); }), HasSubstr("it has no mark"));
}

// Values that a pickle may hold, and one that holds itself.
TEST(DcpReaderTest, Pickles) {
  const std::string bytes(
      "\x80\x04]\x94(N\x88J\xff\xff\xff\xffM\x01\x02\x8a\x02\x00\x80G\x3f\xd0\x00\x00\x00\x00\x00\x00h\x00"
      "e.",
      35);
  const Pickle pickle("p", bytes, {});
  const PickleValue& list = pickle.value();
  ASSERT_EQ(list.kind, PickleValue::kList);
  ASSERT_EQ(list.items.size(), 7u);
  EXPECT_EQ(list.items[0]->kind, PickleValue::kNone);
  EXPECT_EQ(list.items[1]->number, 1);
  EXPECT_EQ(list.items[2]->number, -1);
  EXPECT_EQ(list.items[3]->number, 0x201);
  EXPECT_EQ(list.items[4]->number, -32768);
  EXPECT_EQ(list.items[5]->real, 0.25);
  EXPECT_EQ(list.items[6], &list);
}

}  // namespace
}  // namespace weft
