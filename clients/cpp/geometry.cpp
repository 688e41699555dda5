#include "geometry.hpp"

#include <algorithm>
#include <cmath>

#include "error.hpp"

namespace skylane {
namespace {

// Rounds halves to even, as Python does; nearbyint does so in the default rounding mode.
int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

// The even number nearest to `length`, between 1 and `limit`; `limit` itself if it is nearer.
int even(double length, int limit) {
  return length > limit - 1 ? limit : std::max(1, std::min(limit, rounded(length / 2) * 2));
}

}  // namespace

Geometry plan(const std::string& resize, Size source, Size target) {
  Geometry geometry{source, target, 0, 0, source.height, source.width, 0, 0, target.height, target.width};
  const bool is_wider = 1LL * source.width * target.height > 1LL * source.height * target.width;
  if (resize == "crop" && is_wider) {
    geometry.crop_width = even(1.0 * source.height * target.width / target.height, source.width);
  } else if (resize == "crop") {
    geometry.crop_height = even(1.0 * source.width * target.height / target.width, source.height);
  } else if (resize == "letterbox" && is_wider) {
    const int height = rounded(1.0 * source.height * target.width / source.width);
    geometry.paste_height = std::min(target.height, std::max(1, height));
  } else if (resize == "letterbox") {
    const int width = rounded(1.0 * source.width * target.height / source.height);
    geometry.paste_width = std::min(target.width, std::max(1, width));
  } else if (resize != "stretch") {
    throw Error("the model's card says resize " + resize + ": this client supports crop, letterbox and stretch");
  }
  // Even, so that halving the source first would crop it at the same position.
  geometry.crop_top = (source.height - geometry.crop_height) / 4 * 2;
  geometry.crop_left = (source.width - geometry.crop_width) / 4 * 2;
  geometry.paste_top = (target.height - geometry.paste_height) / 2;
  geometry.paste_left = (target.width - geometry.paste_width) / 2;
  return geometry;
}

}  // namespace skylane
