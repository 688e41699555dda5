// A picture as it lies in a file: sent as it is, and decoded by the worker.
#pragma once

#include <string>

#include "geometry.hpp"

namespace skylane {

struct Picture {
  std::string data;
  std::string codec;  // jpeg or png
  Size size;
};

// Throws Error where the file cannot be read, or is neither JPEG nor PNG.
Picture read_image_file(const std::string& path);

}  // namespace skylane
