// Plans how an image is cropped, resized and padded to a model's input, exactly as plan() in shared/imaging/geometry.py.
// The worker resizes the image; it accepts a whole image only with this geometry.
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

// `resize`: crop, letterbox or stretch, from the model card. Throws Error for other values.
Geometry plan(const std::string& resize, Size source, Size target);

}  // namespace skylane
