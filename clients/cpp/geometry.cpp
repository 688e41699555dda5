#include "geometry.hpp"

#include <algorithm>
#include <cmath>

#include "error.hpp"

namespace skylane {
namespace {

// Halves go to the even number, as in Python: nearbyint does so unless somebody changed the rounding mode.
int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

// The even number nearest to `length`, at least 1 and at most `limit`; all of `limit` where that is nearer.
int even(double length, int limit) {
  return length > limit - 1 ? limit : std::max(1, std::min(limit, rounded(length / 2) * 2));
}

}  // namespace

Geometry plan(const std::string& resize, Size source, Size target) {
  Geometry made{source, target, 0, 0, source.height, source.width, 0, 0, target.height, target.width};
  const bool is_wider = 1LL * source.width * target.height > 1LL * source.height * target.width;
  if (resize == "crop" && is_wider) {
    made.crop_width = even(1.0 * source.height * target.width / target.height, source.width);
  } else if (resize == "crop") {
    made.crop_height = even(1.0 * source.width * target.height / target.width, source.height);
  } else if (resize == "letterbox" && is_wider) {
    const int height = rounded(1.0 * source.height * target.width / source.width);
    made.paste_height = std::min(target.height, std::max(1, height));
  } else if (resize == "letterbox") {
    const int width = rounded(1.0 * source.width * target.height / source.height);
    made.paste_width = std::min(target.width, std::max(1, width));
  } else if (resize != "stretch") {
    throw Error("the model's card says resize " + resize + ": this client knows crop, letterbox and stretch");
  }
  // Even, so that halving the source first would cut it at the same place.
  made.crop_top = (source.height - made.crop_height) / 4 * 2;
  made.crop_left = (source.width - made.crop_width) / 4 * 2;
  made.paste_top = (target.height - made.paste_height) / 2;
  made.paste_left = (target.width - made.paste_width) / 2;
  return made;
}

}  // namespace skylane
