// Scenes of one object, as a camera and a laser see it: made here, so that a program needs no data.

#ifndef WEFT_EXAMPLES_PERCEPTION_SCENES_H_
#define WEFT_EXAMPLES_PERCEPTION_SCENES_H_

#include <cstdint>

#include "runtime/tensor/tensor.h"

namespace weft {

struct SceneOptions {
  int64_t pixels = 16;  // of a side of the picture
  int64_t points = 64;  // that the laser hits
  double noise = 0.05;  // of pixels, and a tenth of it of points
};

// The object is a sphere, a cube or a cylinder, turned about its axis, in red, green or blue. The picture shows its color,
// as a disc of its apparent size, and not its shape; the points lie on its surface, and have no color. So neither
// alone tells its class, color * 3 + shape. Both see where its middle is: within 0.5 of (0, 0, 3), the camera at 0.
struct SceneBatch {
  Tensor images;   // f32 [b, 3, pixels, pixels]
  Tensor points;   // f32 [b, points, 3]
  Tensor classes;  // i32 [b]
  Tensor centers;  // f32 [b, 3]; less (0, 0, 3)
};

inline constexpr int64_t kSceneClasses = 9;

// Scenes `first` to `first + count - 1` of a seed: each by its number alone.
SceneBatch MakeScenes(uint64_t seed, int64_t first, int64_t count, const SceneOptions& options = {});

}  // namespace weft

#endif  // WEFT_EXAMPLES_PERCEPTION_SCENES_H_
