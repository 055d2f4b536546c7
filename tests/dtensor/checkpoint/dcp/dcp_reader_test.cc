#include "dtensor/checkpoint/dcp/dcp_reader.h"

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "dtensor/checkpoint/dcp/pickle.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
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

// A folder in memory: the golden one, in whose table a text stands in place of another.
std::shared_ptr<CrashFiles> GoldenWith(const std::string& text, const std::string& replacement) {
  const std::shared_ptr<Files> disk = MakeDiskFiles();
  auto files = std::make_shared<CrashFiles>();
  MakeFolders(*files, "dcp");
  for (const std::string& name : disk->List(kGolden)) {
    std::string bytes = ReadText(*disk, std::string(kGolden) + "/" + name, 1 << 20);
    if (name == ".metadata") {
      EXPECT_GT(absl::StrReplaceAll({{text, replacement}}, &bytes), 0);
    }
    WriteText(*files, "dcp/" + name, bytes);
  }
  return files;
}

// Pieces whose elements add up to the tensor's but overlap, and so leave a hole.
TEST(DcpReaderTest, PiecesThatLeaveAHoleAreRefused) {
  // The second piece of model.split [5, 3] is rows 3 and 4; here it is rows 2 and 3.
  DcpReader overlap(GoldenWith(std::string("K\x03K\x00\x86", 5), std::string("K\x02K\x00\x86", 5)), "dcp");
  const auto read = [](DcpReader& reader, const std::string& name, const ShardBox& box) {
    return MessageOf([&] { reader.Read(name, box, MakeCpuAllocator()); });
  };
  EXPECT_EQ(
      read(overlap, "model.split", WholeBox({5, 3})),
      "'dcp' is not a whole file of a distributed checkpoint: of the pieces of 'model.split', that of shape "
      "[2, 3] at [2, 0] overlaps one before it");
  EXPECT_EQ(
      read(overlap, "model.split", {{5, 3}, {3, 1}, {2, 2}}),
      "'dcp' is not a whole file of a distributed checkpoint: no piece of 'model.split' has the elements of "
      "shape [1, 2] at [4, 1]");
  // What does not touch them is read, and so are the other tensors.
  EXPECT_EQ(overlap.Read("model.split", {{5, 3}, {0, 0}, {2, 3}}, MakeCpuAllocator()).ToVector<double>(),
            Values(1, 6, true));
  EXPECT_EQ(ReadWhole(overlap, "model.columns"), Values(2, 24, true));
}

std::string Le(uint64_t number, int num_bytes) {
  std::string bytes;
  for (int i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>(i < 8 ? number >> 8 * i : 0));
  return bytes;
}

// An archive of files, by name, uncompressed, as torch.save writes them.
std::string Zip(const std::map<std::string, std::string>& files) {
  std::string locals, list;
  for (const auto& [name, contents] : files) {
    const std::string sizes = Le(contents.size(), 4) + Le(contents.size(), 4) + Le(name.size(), 2) + Le(0, 2);
    list += "PK\1\2" + Le(0, 16) + sizes + Le(0, 2 + 2 + 2 + 4) + Le(locals.size(), 4) + name;
    locals += "PK\3\4" + Le(0, 14) + sizes + name + contents;
  }
  return locals + list + "PK\5\6" + Le(0, 8) + Le(list.size(), 4) + Le(locals.size(), 4) + Le(0, 2);
}

// Values as pickles have them.
std::string TextValue(const std::string& text) { return "X" + Le(text.size(), 4) + text; }
std::string NumberValue(int64_t number) { return "J" + Le(static_cast<uint64_t>(number), 4); }
std::string TupleValue(const std::vector<int64_t>& numbers) {
  std::string items;
  for (const int64_t number : numbers) items += NumberValue(number);
  return "(" + items + "t";
}
// `fields`: keys and values.
std::string ObjectValue(const std::string& module, const std::string& name, const std::string& fields) {
  return "c" + module + "\n" + name + "\n)\x81}(" + fields + "ub";
}

constexpr char kMetadata[] = "torch.distributed.checkpoint.metadata";

// `offset`: of a tensor's piece; empty: of an object.
std::string PlaceValue(const std::string& name, const std::string& offset, size_t num_bytes) {
  const std::string index =
      TextValue("fqn") + TextValue(name) + (offset.empty() ? "" : TextValue("offset") + offset);
  const std::string info = TextValue("relative_path") + TextValue(name) + TextValue("offset") +
                           NumberValue(0) + TextValue("length") +
                           NumberValue(static_cast<int64_t>(num_bytes));
  return ObjectValue(kMetadata, "MetadataIndex", index) +
         ObjectValue("torch.distributed.checkpoint.filesystem", "_StorageInfo", info);
}

void WriteTable(Files& files, const std::string& names, const std::string& places) {
  const std::string fields =
      TextValue("state_dict_metadata") + "}(" + names + "u" + TextValue("storage_data") + "}(" + places + "u";
  WriteText(files, "dcp/.metadata", "\x80\x02" + ObjectValue(kMetadata, "Metadata", fields) + ".");
}

// A folder in memory of objects alone, whose pickles are given by name.
std::shared_ptr<CrashFiles> FolderOfObjects(const std::map<std::string, std::string>& pickles) {
  auto files = std::make_shared<CrashFiles>();
  MakeFolders(*files, "dcp");
  std::string names, places;
  for (const auto& [name, pickle] : pickles) {
    const std::string bytes = Zip({{"archive/data.pkl", pickle}});
    WriteText(*files, "dcp/" + name, bytes);
    names += TextValue(name) + "c" + kMetadata + "\nBytesStorageMetadata\n)\x81";
    places += PlaceValue(name, /*offset=*/"", bytes.size());
  }
  WriteTable(*files, names, places);
  return files;
}

// A folder in memory of one tensor of bytes, "t", in one piece.
std::shared_ptr<CrashFiles> FolderOfTensor(const std::vector<int64_t>& shape,
                                           const std::vector<int64_t>& strides, const std::string& elements) {
  const std::string storage = "(" + TextValue("storage") + "ctorch\nByteStorage\n" + TextValue("0") +
                              TextValue("cpu") + NumberValue(std::ssize(elements)) + "tQ";
  const std::string head = "\x80\x02" + ("ctorch._utils\n_rebuild_tensor_v2\n(" + storage) + NumberValue(0) +
                           TupleValue(shape) + TupleValue(strides) + "\x89" +
                           "ccollections\nOrderedDict\n)R" + "tR.";
  const std::string bytes = Zip({{"archive/data.pkl", head}, {"archive/data/0", elements}});
  const std::string offsets = TupleValue(std::vector<int64_t>(shape.size()));
  const std::string chunk =
      ObjectValue(kMetadata, "ChunkStorageMetadata",
                  TextValue("offsets") + offsets + TextValue("sizes") + TupleValue(shape));
  const std::string properties =
      std::string("c") + kMetadata + "\nTensorProperties\n)\x81" + "(ctorch\nuint8\ntb";
  const std::string tensor = ObjectValue(kMetadata, "TensorStorageMetadata",
                                         TextValue("properties") + properties + TextValue("size") +
                                             TupleValue(shape) + TextValue("chunks") + "](" + chunk + "e");
  auto files = std::make_shared<CrashFiles>();
  MakeFolders(*files, "dcp");
  WriteText(*files, "dcp/t", bytes);
  WriteTable(*files, TextValue("t") + tensor, PlaceValue("t", offsets, bytes.size()));
  return files;
}

// The strides of dims that have one element add nothing to where elements lie, but multiply to more than a tensor has.
TEST(DcpReaderTest, StridesMayMultiplyToMoreThanATensorHas) {
  std::string elements;
  std::vector<double> expected;
  for (int i = 0; i < 1 << 16; ++i) {
    elements.push_back(static_cast<char>(i % 251));
    expected.push_back(i % 251);
  }
  const std::vector<int64_t> shape = {1, 1, 1, 1, 1, 1, 256, 256};
  DcpReader reader(FolderOfTensor(shape, {65536, 65536, 65536, 65536, 65536, 65536, 256, 1}, elements),
                   "dcp");
  EXPECT_EQ(reader.Find("t")->ToString(), "u8[1, 1, 1, 1, 1, 1, 256, 256]");
  EXPECT_EQ(ReadWhole(reader, "t"), expected);
  // One that leads out of the archive is refused.
  DcpReader outside(FolderOfTensor({2, 256}, {int64_t{1} << 30, 1}, elements.substr(0, 512)), "dcp");
  EXPECT_THAT(MessageOf([&] { ReadWhole(outside, "t"); }),
              HasSubstr("a piece's elements do not lie in its archive, or are not the table's"));
}

// Objects that are no tensors do not keep a folder from being read: those that Weft has no value for are skipped by name.
TEST(DcpReaderTest, SkipsWideNumbersAndLargeObjects) {
  const auto number = [](const std::string& bytes) { return "\x80\x02" + bytes + "."; };
  const DcpReader reader(FolderOfObjects({
                             {"long1", number(std::string("\x8a\x09") + Le(~uint64_t{0}, 8) +
                                              Le(0, 1))},  // 2^64 - 1: a seed, say
                             {"long4", number(std::string("\x8b") + Le(300, 4) + std::string(300, '\1'))},
                             {"large", number("X" + Le(2 << 20, 4) + std::string(2 << 20, 'x'))},
                             {"small", number("K\x07")},
                         }),
                         "dcp");
  EXPECT_THAT(reader.Names(), ElementsAre());
  EXPECT_EQ(reader.Values(), (std::map<std::string, std::string>{{"small", "7"}}));
  EXPECT_THAT(reader.Skipped(), ElementsAre("large", "long1", "long4"));
}

// A number's text is the shortest that reads back to its bits.
TEST(DcpReaderTest, NumbersKeepTheirBits) {
  const std::vector<double> numbers = {0.1234567890123, 1.0 / 3, -6.02214076e23, 5e-324, 16777217, -0.0};
  std::map<std::string, std::string> pickles;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string bits = Le(std::bit_cast<uint64_t>(numbers[i]), 8);
    pickles[absl::StrCat(i)] = "\x80\x02G" + std::string(bits.rbegin(), bits.rend()) + ".";
  }
  const DcpReader reader(FolderOfObjects(pickles), "dcp");
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string text = reader.Values().at(absl::StrCat(i));
    double read = 0;
    EXPECT_TRUE(absl::SimpleAtod(text, &read)) << text;
    EXPECT_EQ(std::bit_cast<uint64_t>(read), std::bit_cast<uint64_t>(numbers[i])) << text;
  }
  EXPECT_EQ(reader.Values().at("0"), "0.1234567890123");
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

// A tuple that is kept once and called with again and again: each object has its items, so that they count as values do.
TEST(DcpReaderTest, ATupleOfManyCallsIsNoBomb) {
  const auto read = [](int calls) {
    std::string bytes = "\x80\x02" + std::string("ctorch\nSize\nq\x07") + "(";
    for (int i = 0; i < 1 << 14; ++i) bytes += "K\x01";
    bytes += "tq\x08";
    for (int i = 0; i < calls; ++i) bytes += "h\x07h\x08R";
    return Pickle("p", bytes + ".", {"torch Size"}).value().items.size();
  };
  EXPECT_EQ(read(/*calls=*/100), size_t{1} << 14);
  EXPECT_EQ(MessageOf([&] { read(/*calls=*/(1 << 13) + 1); }),
            "'p' is not a whole pickle: it has more than 67108864 values");
}

// Values that a pickle may hold, and one that holds itself.
TEST(DcpReaderTest, Pickles) {
  const std::string bytes(
      "\x80\x04]\x94(N\x88J\xff\xff\xff\xffM\x01\x02\x8a\x02\x00\x80G\x3f\xd0\x00\x00\x00\x00\x00\x00h\x00"
      "e.",
      32);
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
