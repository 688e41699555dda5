#include "image_file.hpp"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>

#include "error.hpp"

namespace skylane {
namespace {

std::uint8_t byte(const std::string& data, std::size_t at) { return static_cast<std::uint8_t>(data.at(at)); }
int two(const std::string& data, std::size_t at) { return byte(data, at) << 8 | byte(data, at + 1); }
int four(const std::string& data, std::size_t at) { return two(data, at) << 16 | two(data, at + 2); }

std::optional<Size> png_size(const std::string& data) {
  if (data.compare(0, 8, "\x89PNG\r\n\x1a\n", 8) != 0) return std::nullopt;
  return Size{four(data, 20), four(data, 16)};
}

// A JPEG is a sequence of segments with their lengths; the start-of-frame segment has the image size.
std::optional<Size> jpeg_size(const std::string& data) {
  if (data.compare(0, 3, "\xff\xd8\xff", 3) != 0) return std::nullopt;
  for (std::size_t at = 2;;) {
    while (byte(data, at) == 0xff && byte(data, at + 1) == 0xff) ++at;  // Fill bytes.
    const int marker = byte(data, at + 1);
    const bool starts_frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (byte(data, at) != 0xff || marker == 0xd9 || marker == 0xda) return std::nullopt;
    if (starts_frame) return Size{two(data, at + 5), two(data, at + 7)};
    at += 2 + two(data, at + 2);
  }
}

}  // namespace

ImageFile read_image_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path + " cannot be opened: give a JPEG or PNG file");
  std::string data{std::istreambuf_iterator<char>(file), {}};
  try {
    if (const auto size = jpeg_size(data)) return {std::move(data), "jpeg", *size};
    if (const auto size = png_size(data)) return {std::move(data), "png", *size};
  } catch (const std::out_of_range&) {
    throw Error(path + " ends within its header: the file is incomplete, copy it again");
  }
  throw Error(path + " is neither JPEG nor PNG: convert it first");
}

}  // namespace skylane
