#include "wire.hpp"

#include <msgpack.hpp>
#include <utility>

#include "error.hpp"

namespace skylane {
namespace {

using Packer = msgpack::packer<msgpack::sbuffer>;
using Fields = std::map<std::string, msgpack::object>;

constexpr int kVersion = 1;
constexpr int kMaxPixels = 1 << 25;  // The worker has the same limit.

template <typename T>
T field(const Fields& fields, const char* key) {
  const auto found = fields.find(key);
  if (found == fields.end()) throw Error(std::string("a message without ") + key + ": it is not a message of version 1");
  return found->second.as<T>();
}

template <typename T>
T field(const Fields& fields, const char* key, T fallback) {
  const auto found = fields.find(key);
  return found == fields.end() || found->second.is_nil() ? std::move(fallback) : found->second.as<T>();
}

// Unpacks the outer map of a message and checks its version; `handle` owns the memory.
Fields unpack_fields(const std::string& payload, msgpack::object_handle& handle) {
  handle = msgpack::unpack(payload.data(), payload.size());
  const auto fields = handle.get().as<Fields>();
  const int version = field<int>(fields, "v");
  if (version != kVersion) throw Error("a message of version " + std::to_string(version) + ": this client supports version 1");
  return fields;
}

void pack_geometry(Packer& packer, const Geometry& geometry) {
  packer.pack(std::map<std::string, int>{
      {"source_height", geometry.source.height}, {"source_width", geometry.source.width},
      {"crop_top", geometry.crop_top},           {"crop_left", geometry.crop_left},
      {"crop_height", geometry.crop_height},     {"crop_width", geometry.crop_width},
      {"target_height", geometry.target.height}, {"target_width", geometry.target.width},
      {"paste_top", geometry.paste_top},         {"paste_left", geometry.paste_left},
      {"paste_height", geometry.paste_height},   {"paste_width", geometry.paste_width},
  });
}

std::uint16_t length_at(const std::string& data, std::size_t at) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(data[at]) |
                                    static_cast<unsigned char>(data[at + 1]) << 8);
}

// The data has the class ids of all runs, one byte each, then their lengths, two bytes each, little-endian.
std::string unpack_runs(const std::string& data, std::size_t pixels) {
  const std::size_t runs = data.size() / 3;
  std::string mask;
  mask.reserve(pixels);
  for (std::size_t run = 0; run < runs; ++run) {
    const auto length = length_at(data, runs + 2 * run);
    if (length > pixels - mask.size()) throw Error("the runs of the mask are longer than its size: the data is corrupt");
    mask.append(length, data[run]);
  }
  return mask;
}

}  // namespace

std::string pack_frame(const Frame& frame, const ImageFile& image) {
  msgpack::sbuffer buffer(image.data.size() + 2048);
  Packer packer(buffer);
  packer.pack_map(frame.budget_ms ? 14 : 13);
  const auto put = [&packer](const char* key, const auto& value) {
    packer.pack(key);
    packer.pack(value);
  };
  put("v", kVersion);
  put("id", frame.id);
  put("attempt", 1);
  put("model", frame.model);
  put("frame_stamp_ns", frame.stamps.empty() ? 0 : frame.stamps.front().at_ns);
  if (frame.budget_ms) put("budget_ms", frame.budget_ms);
  put("layout", "rgb8");
  put("shape", std::vector<int>{image.size.height, image.size.width, 3});
  put("dtype", "uint8");
  put("codec", image.codec);
  packer.pack("geometry");
  pack_geometry(packer, frame.geometry);
  put("want", std::map<std::string, std::string>{{"mask_codec", frame.mask_codec}, {"size", frame.mask_size}});
  packer.pack("stamps");
  packer.pack_array(static_cast<std::uint32_t>(frame.stamps.size()));
  for (const auto& stamp : frame.stamps) packer.pack(std::make_tuple(stamp.stage, stamp.node, stamp.at_ns));
  packer.pack("data");  // Last, so that the worker reads the other fields before the image.
  packer.pack_bin(static_cast<std::uint32_t>(image.data.size()));
  packer.pack_bin_body(image.data.data(), static_cast<std::uint32_t>(image.data.size()));
  return {buffer.data(), buffer.size()};
}

std::vector<Card> unpack_cards(const std::string& payload, const std::string& worker, const std::string& model) try {
  msgpack::object_handle handle;
  const auto fields = unpack_fields(payload, handle);
  std::vector<Card> cards;
  if (field<std::string>(fields, "state") != "online") return cards;
  for (const auto& card : field<std::vector<Fields>>(fields, "cards")) {
    if (field<std::string>(card, "name") != model) continue;
    cards.push_back({worker, model, field<std::string>(card, "version"), field<std::string>(card, "task"),
                     field<std::string>(card, "resize"), {field<int>(card, "height"), field<int>(card, "width")}});
  }
  return cards;
} catch (const std::bad_cast&) {  // msgpack::type_error
  throw Error("worker " + worker + " sends a status that is not of version 1");
} catch (const msgpack::unpack_error&) {
  throw Error("worker " + worker + " sends a status that is not MessagePack");
}

Answer unpack_answer(const std::string& payload) try {
  msgpack::object_handle handle;
  const auto fields = unpack_fields(payload, handle);
  Answer answer{field<std::string>(fields, "id"),     field<std::string>(fields, "status"),
                field<std::string>(fields, "reason"), field<std::string>(fields, "worker"),
                field<std::string>(fields, "model"),  field<std::string>(fields, "model_version"),
                field<std::string>(fields, "engine", ""), field<std::string>(fields, "codec"),
                field<std::string>(fields, "data"),   {},
                {}};
  const auto shape = field<std::vector<int>>(fields, "shape", {});
  if (shape.size() == 2) answer.size = {shape[0], shape[1]};
  using StampFields = std::tuple<std::string, std::string, std::int64_t>;
  for (const auto& [stage, node, at_ns] : field<std::vector<StampFields>>(fields, "stamps"))
    answer.stamps.push_back({stage, node, at_ns});
  return answer;
} catch (const std::bad_cast&) {
  throw Error("the answer is not of version 1");
} catch (const msgpack::unpack_error&) {
  throw Error("the answer is not MessagePack");
}

std::string unpack_mask(const Answer& answer) {
  const auto [height, width] = answer.size;
  if (height < 1 || width < 1 || 1LL * height * width > kMaxPixels)
    throw Error("a mask of " + std::to_string(height) + " x " + std::to_string(width) + " pixels: the size is not plausible");
  const auto pixels = static_cast<std::size_t>(height) * width;
  if (answer.codec != "raw" && answer.codec != "rle")
    throw Error("a mask packed as " + answer.codec + ": this client supports raw and rle");
  auto mask = answer.codec == "raw" ? answer.data : unpack_runs(answer.data, pixels);
  if (mask.size() != pixels)
    throw Error("a mask of " + std::to_string(mask.size()) + " pixels where " + std::to_string(pixels) + " were announced");
  return mask;
}

}  // namespace skylane
