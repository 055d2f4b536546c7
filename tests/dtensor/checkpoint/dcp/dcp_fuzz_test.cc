// Distributed checkpoints that have been changed, or cut, at random. More than the 10,000 mutations here by --gtest_repeat with another
// --gtest_random_seed.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/dcp/dcp_reader.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/device/allocator.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"

namespace weft {
namespace {

constexpr char kGolden[] = "tests/dtensor/checkpoint/dcp/golden";

// Errors are weft::Errors.
TEST(DcpFuzzTest, NothingCrashes) {
  const std::shared_ptr<Files> disk = MakeDiskFiles();
  const auto files = std::make_shared<CrashFiles>();
  MakeFolders(*files, "dcp");
  std::vector<std::pair<std::string, std::string>> good;
  for (const std::string& name : disk->List(kGolden)) {
    good.push_back({"dcp/" + name, ReadText(*disk, std::string(kGolden) + "/" + name, 1 << 20)});
    WriteText(*files, good.back().first, good.back().second);
  }
  ASSERT_EQ(good.size(), 3u);
  std::mt19937_64 random(9 + testing::UnitTest::GetInstance()->random_seed());
  int num_errors = 0;
  for (int i = 0; i < 10'000; ++i) {
    const auto& [path, bytes] = good[static_cast<size_t>(i) % good.size()];
    std::string bad = bytes;
    for (uint64_t change = 0; change <= random() % 3; ++change) {
      const size_t at = random() % bad.size();
      switch (random() % 5) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
          break;
        case 2:
          bad.erase(at, random() % 16);
          break;
        case 3:
          bad.resize(at);
          break;
        default:
          bad.insert(at, bad.substr(random() % bad.size(), random() % 16));
      }
      if (bad.empty()) bad = "x";
    }
    files->Replace(path, bad);
    try {
      DcpReader reader(files, "dcp");
      for (const std::string& name : reader.Names()) {
        if (reader.Find(name)->shape.num_elements() < 1 << 16) {
          reader.Read(name, WholeBox(reader.Find(name)->shape), MakeCpuAllocator());
        }
      }
    } catch (const Error& error) {
      EXPECT_FALSE(error.message().empty());
      ++num_errors;
    }
    files->Replace(path, bytes);
  }
  EXPECT_GT(num_errors, 2000);
}

}  // namespace
}  // namespace weft
