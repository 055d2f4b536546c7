#include "examples/perception/scenes.h"

#include <array>
#include <cmath>
#include <vector>

#include "runtime/base/philox.h"

namespace weft {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kDistance = 3;
constexpr double kSize = 0.4;  // a sphere's radius; half of an edge or height
constexpr int64_t kShapes = 3;

// Uniform numbers of one scene, one after the other.
class Draws {
 public:
  Draws(uint64_t seed, int64_t scene)
      : key_{.seed = seed, .stream = StreamOf("scenes"), .step = static_cast<uint64_t>(scene)} {}
  double Next(double low, double high) { return low + (high - low) * UniformAt(key_, index_++); }
  int64_t Choice(int64_t count) { return static_cast<int64_t>(Next(0, static_cast<double>(count))); }

 private:
  const RandomKey key_;
  uint64_t index_ = 0;
};

// A point on the surface of a shape around 0, whose axis is y.
std::array<double, 3> SurfacePoint(int64_t shape, Draws& draws) {
  const double turn = draws.Next(0, 2 * kPi), height = draws.Next(-1, 1);
  if (shape == 0) {  // a sphere: heights are uniform
    const double radius = std::sqrt(1 - height * height);
    return {kSize * radius * std::cos(turn), kSize * height, kSize * radius * std::sin(turn)};
  }
  if (shape == 1) {  // a cube: one of six faces
    const double other = draws.Next(-1, 1);
    const int64_t face = draws.Choice(6);
    std::array<double, 3> point = {};
    point[face % 3] = face < 3 ? kSize : -kSize;
    point[(face + 1) % 3] = kSize * height;
    point[(face + 2) % 3] = kSize * other;
    return point;
  }
  // A cylinder as high as it is wide: the side is two thirds of the surface.
  if (draws.Next(0, 3) < 2) return {kSize * std::cos(turn), kSize * height, kSize * std::sin(turn)};
  const double radius = kSize * std::sqrt(draws.Next(0, 1));
  return {radius * std::cos(turn), height < 0 ? -kSize : kSize, radius * std::sin(turn)};
}

struct Scene {
  int64_t color = 0;
  int64_t shape = 0;
  double yaw = 0;
  std::array<double, 3> center = {};  // less (0, 0, kDistance)
};

void Picture(const Scene& scene, const SceneOptions& options, Draws& draws, std::vector<float>* pixels) {
  const double depth = kDistance + scene.center[2];
  const double radius = kSize * 1.2 * kDistance / depth;
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (int64_t row = 0; row < options.pixels; ++row) {
      for (int64_t column = 0; column < options.pixels; ++column) {
        const auto place = [&](int64_t i) {
          return 2 * (static_cast<double>(i) + 0.5) / static_cast<double>(options.pixels) - 1;
        };
        const double x = place(column) - scene.center[0] * kDistance / depth;
        const double y = place(row) - scene.center[1] * kDistance / depth;
        const bool is_lit = x * x + y * y < radius * radius && channel == scene.color;
        pixels->push_back(
            static_cast<float>((is_lit ? 1.0 : 0.0) + draws.Next(-options.noise, options.noise)));
      }
    }
  }
}

void Cloud(const Scene& scene, const SceneOptions& options, Draws& draws, std::vector<float>* points) {
  const double noise = 0.1 * options.noise;
  for (int64_t i = 0; i < options.points; ++i) {
    const std::array<double, 3> at = SurfacePoint(scene.shape, draws);
    const double x = std::cos(scene.yaw) * at[0] + std::sin(scene.yaw) * at[2];
    const double z = std::cos(scene.yaw) * at[2] - std::sin(scene.yaw) * at[0];
    const std::array<double, 3> turned = {x, at[1], z};
    for (int dim = 0; dim < 3; ++dim) {
      points->push_back(static_cast<float>(scene.center[dim] + turned[dim] + draws.Next(-noise, noise)));
    }
  }
}

}  // namespace

SceneBatch MakeScenes(uint64_t seed, int64_t first, int64_t count, const SceneOptions& options) {
  std::vector<float> pixels, points, centers;
  std::vector<int32_t> classes;
  for (int64_t i = first; i < first + count; ++i) {
    Draws draws(seed, i);
    Scene scene = {.color = draws.Choice(3), .shape = draws.Choice(kShapes), .yaw = draws.Next(0, 2 * kPi)};
    for (double& offset : scene.center) offset = draws.Next(-0.5, 0.5);
    Picture(scene, options, draws, &pixels);
    Cloud(scene, options, draws, &points);
    classes.push_back(static_cast<int32_t>(scene.color * kShapes + scene.shape));
    for (const double offset : scene.center) centers.push_back(static_cast<float>(offset));
  }
  return {.images = Tensor::FromValues<float>({count, 3, options.pixels, options.pixels}, pixels),
          .points = Tensor::FromValues<float>({count, options.points, 3}, points),
          .classes = Tensor::FromValues<int32_t>({count}, classes),
          .centers = Tensor::FromValues<float>({count, 3}, centers)};
}

}  // namespace weft
