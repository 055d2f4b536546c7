#include "dtensor/checkpoint/state/exchange.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/safetensors.h"
#include "dtensor/checkpoint/state/agreement.h"
#include "dtensor/checkpoint/state/step_writer.h"
#include "runtime/base/error.h"
#include "runtime/base/version.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

Tensor ReadWhole(TensorSource& source, const std::string& name) {
  return source.Read(name, WholeBox(source.Find(name)->shape), MakeCpuAllocator());
}

TensorDifference Compare(const std::string& name, const Tensor& first, const Tensor& second) {
  TensorDifference difference = {.name = name, .what = ""};
  const auto item = static_cast<size_t>(ItemSize(first.dtype()));
  const char *a = static_cast<const char*>(first.data()), *b = static_cast<const char*>(second.data());
  int64_t count = 0;
  for (int64_t i = 0; i < first.num_elements(); ++i) {
    count += std::memcmp(a + static_cast<size_t>(i) * item, b + static_cast<size_t>(i) * item, item) != 0;
  }
  if (count == 0) return difference;
  difference.what = absl::StrCat(count, " of ", first.num_elements(), " elements differ");
  const std::vector<double> x = first.ToVector<double>(), y = second.ToVector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    const bool is_same = std::memcmp(a + i * item, b + i * item, item) == 0;
    const double distance = is_same ? 0 : std::abs(x[i] - y[i]);
    if (std::isnan(distance)) difference.largest = std::numeric_limits<double>::quiet_NaN();
    difference.largest =
        std::isnan(difference.largest) ? difference.largest : std::max(difference.largest, distance);
  }
  return difference;
}

}  // namespace

void ExportTensors(TensorSource& source, const StateTexts& texts, const std::string& path,
                   const std::function<bool(const std::string& name)>& wanted) {
  std::vector<SafetensorsEntry> entries;
  for (const std::string& name : source.Names()) {
    if (wanted == nullptr || wanted(name)) entries.push_back({name, *source.Find(name)});
  }
  WEFT_REQUIRE(!entries.empty(), "export of '", source.path(), "': no tensor is wanted");
  SafetensorsWriter writer(path, entries, texts);
  for (const SafetensorsEntry& entry : entries) writer.Write(ReadWhole(source, entry.name));
  writer.Finish();
}

void ImportStep(const std::shared_ptr<Files>& files, const std::string& folder, int64_t step,
                TensorSource& source, const StateTexts& texts) {
  StepToWrite write;
  write.manifest.weft = kVersion;
  write.manifest.step = step;
  write.manifest.parts = {"import"};
  write.manifest.texts = texts;
  write.life = absl::StrCat(absl::Hex(std::random_device()(), absl::kZeroPad8));
  write.options.step = step;
  for (const std::string& name : source.Names()) {
    const TensorType& type = *source.Find(name);
    const TensorPlace place = {.type = type, .mesh = DeviceMesh(), .layout = Layout(type.ndim(), 0)};
    write.manifest.tensors[name] = place;
    if (type.shape.num_elements() == 0) continue;
    PieceToSave& piece = write.pieces.emplace_back();
    piece.name = name;
    piece.record.dtype = type.dtype;
    piece.record.box = WholeBox(type.shape);
    piece.elements = ReadWhole(source, name);
  }
  MakeFolders(*files, folder);
  RunRanks(1, [&](World& world) {
    Agreement agreement(world, std::chrono::hours(1));
    KnownSteps none;
    WriteStep(agreement, *files, folder, write, &none);
  });
}

std::vector<TensorDifference> DiffTensors(TensorSource& first, TensorSource& second) {
  std::set<std::string> names;
  for (const TensorSource* source : {&first, &second}) {
    for (std::string& name : source->Names()) names.insert(std::move(name));
  }
  std::vector<TensorDifference> differences;
  for (const std::string& name : names) {
    const TensorType *a = first.Find(name), *b = second.Find(name);
    if (a == nullptr || b == nullptr) {
      differences.push_back(
          {.name = name, .what = b == nullptr ? "only in the first" : "only in the second"});
    } else if (*a != *b) {
      differences.push_back({.name = name, .what = absl::StrCat(a->ToString(), " and ", b->ToString())});
    } else if (TensorDifference found = Compare(name, ReadWhole(first, name), ReadWhole(second, name));
               !found.what.empty()) {
      differences.push_back(std::move(found));
    }
  }
  return differences;
}

}  // namespace weft
