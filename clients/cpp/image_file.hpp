// An image file, which is sent unchanged and decoded by the worker.
#pragma once

#include <string>

#include "geometry.hpp"

namespace skylane {

struct ImageFile {
  std::string data;
  std::string codec;  // jpeg or png
  Size size;
};

// Throws Error if the file cannot be read, or is neither JPEG nor PNG.
ImageFile read_image_file(const std::string& path);

}  // namespace skylane
