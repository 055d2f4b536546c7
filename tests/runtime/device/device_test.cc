#include "runtime/device/device.h"

#include <gtest/gtest.h>

#include <sstream>

namespace weft {
namespace {

TEST(Device, PrintsTypeAndIndex) {
  std::ostringstream out;
  out << Device{} << " " << Device{DeviceType::kMeta, 3};
  EXPECT_EQ(out.str(), "cpu:0 meta:3");
}

TEST(Device, ComparesTypeAndIndex) {
  EXPECT_EQ(Device{}, (Device{DeviceType::kCpu, 0}));
  EXPECT_NE(Device{}, (Device{DeviceType::kMeta, 0}));
  EXPECT_NE(Device{}, (Device{DeviceType::kCpu, 1}));
}

}  // namespace
}  // namespace weft
