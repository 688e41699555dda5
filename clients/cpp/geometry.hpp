// How a picture is cropped, resized and padded to a model's input: shared/geometry.py's plan(), number by number.
// The worker makes the resize itself; it takes a whole picture only with the geometry that this gives.
#pragma once

#include <string>

namespace skylane {

struct Size {
  int height = 0;
  int width = 0;
};

// The crop rectangle of the source becomes the paste rectangle of the target, all in pixels.
struct Geometry {
  Size source, target;
  int crop_top = 0, crop_left = 0, crop_height = 0, crop_width = 0;
  int paste_top = 0, paste_left = 0, paste_height = 0, paste_width = 0;
};

// `resize`: crop, letterbox or stretch, as the model's card says. Throws Error for any other.
Geometry plan(const std::string& resize, Size source, Size target);

}  // namespace skylane
