#include "wire.hpp"

#include <msgpack.hpp>
#include <utility>

#include "error.hpp"

namespace skylane {
namespace {

using Packer = msgpack::packer<msgpack::sbuffer>;
using Fields = std::map<std::string, msgpack::object>;

constexpr int kVersion = 1;
constexpr int kMostPixels = 1 << 25;  // As the worker: no mask is larger.

template <typename T>
T field(const Fields& fields, const char* key) {
  const auto found = fields.find(key);
  if (found == fields.end()) throw Error(std::string("a message without ") + key + ": it is none of version 1");
  return found->second.as<T>();
}

template <typename T>
T field(const Fields& fields, const char* key, T otherwise) {
  const auto found = fields.find(key);
  return found == fields.end() || found->second.is_nil() ? std::move(otherwise) : found->second.as<T>();
}

// The outer map of a message, whose version was checked; `handle` keeps what it holds alive.
Fields opened(const std::string& payload, msgpack::object_handle& handle) {
  handle = msgpack::unpack(payload.data(), payload.size());
  const auto fields = handle.get().as<Fields>();
  const int version = field<int>(fields, "v");
  if (version != kVersion) throw Error("a message of version " + std::to_string(version) + ": this client speaks 1");
  return fields;
}

void pack_geometry(Packer& packer, const Geometry& made) {
  packer.pack(std::map<std::string, int>{
      {"source_height", made.source.height}, {"source_width", made.source.width},
      {"crop_top", made.crop_top},           {"crop_left", made.crop_left},
      {"crop_height", made.crop_height},     {"crop_width", made.crop_width},
      {"target_height", made.target.height}, {"target_width", made.target.width},
      {"paste_top", made.paste_top},         {"paste_left", made.paste_left},
      {"paste_height", made.paste_height},   {"paste_width", made.paste_width},
  });
}

std::uint16_t length_at(const std::string& data, std::size_t at) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(data[at]) |
                                    static_cast<unsigned char>(data[at + 1]) << 8);
}

// First the id of every run, a byte each; then the length of every run, two bytes each, little-endian.
std::string unpack_runs(const std::string& data, std::size_t pixels) {
  const std::size_t runs = data.size() / 3;
  std::string mask;
  mask.reserve(pixels);
  for (std::size_t run = 0; run < runs; ++run) {
    const auto length = length_at(data, runs + 2 * run);
    if (length > pixels - mask.size()) throw Error("a mask whose runs are longer than it: it is damaged");
    mask.append(length, data[run]);
  }
  return mask;
}

}  // namespace

std::string pack_frame(const Frame& frame, const Picture& picture) {
  msgpack::sbuffer buffer(picture.data.size() + 2048);
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
  put("shape", std::vector<int>{picture.size.height, picture.size.width, 3});
  put("dtype", "uint8");
  put("codec", picture.codec);
  packer.pack("geometry");
  pack_geometry(packer, frame.geometry);
  put("want", std::map<std::string, std::string>{{"mask_codec", frame.mask_codec}, {"size", frame.mask_size}});
  packer.pack("stamps");
  packer.pack_array(static_cast<std::uint32_t>(frame.stamps.size()));
  for (const auto& stamp : frame.stamps) packer.pack(std::make_tuple(stamp.stage, stamp.node, stamp.at_ns));
  packer.pack("data");  // Last: the worker reads the rest before the picture is looked at.
  packer.pack_bin(static_cast<std::uint32_t>(picture.data.size()));
  packer.pack_bin_body(picture.data.data(), static_cast<std::uint32_t>(picture.data.size()));
  return {buffer.data(), buffer.size()};
}

std::vector<Card> unpack_cards(const std::string& payload, const std::string& worker, const std::string& model) try {
  msgpack::object_handle handle;
  const auto fields = opened(payload, handle);
  std::vector<Card> cards;
  if (field<std::string>(fields, "state") != "online") return cards;
  for (const auto& card : field<std::vector<Fields>>(fields, "cards")) {
    if (field<std::string>(card, "name") != model) continue;
    cards.push_back({worker, model, field<std::string>(card, "version"), field<std::string>(card, "task"),
                     field<std::string>(card, "resize"), {field<int>(card, "height"), field<int>(card, "width")}});
  }
  return cards;
} catch (const std::bad_cast&) {  // msgpack::type_error
  throw Error("worker " + worker + " announces itself in a form that is none of version 1");
} catch (const msgpack::unpack_error&) {
  throw Error("worker " + worker + " announces itself in what is no MessagePack");
}

Answer unpack_answer(const std::string& payload) try {
  msgpack::object_handle handle;
  const auto fields = opened(payload, handle);
  Answer answer{field<std::string>(fields, "id"),     field<std::string>(fields, "status"),
                field<std::string>(fields, "reason"), field<std::string>(fields, "worker"),
                field<std::string>(fields, "model"),  field<std::string>(fields, "model_version"),
                field<std::string>(fields, "engine", ""), field<std::string>(fields, "codec"),
                field<std::string>(fields, "data"),   {},
                {}};
  const auto shape = field<std::vector<int>>(fields, "shape", {});
  if (shape.size() == 2) answer.size = {shape[0], shape[1]};
  using Told = std::tuple<std::string, std::string, std::int64_t>;
  for (const auto& [stage, node, at_ns] : field<std::vector<Told>>(fields, "stamps"))
    answer.stamps.push_back({stage, node, at_ns});
  return answer;
} catch (const std::bad_cast&) {
  throw Error("an answer in a form that is none of version 1");
} catch (const msgpack::unpack_error&) {
  throw Error("an answer that is no MessagePack");
}

std::string unpack_result(const Answer& answer) {
  const auto [height, width] = answer.size;
  if (height < 1 || width < 1 || 1LL * height * width > kMostPixels)
    throw Error("a mask of " + std::to_string(height) + " x " + std::to_string(width) + " pixels: none is of such a size");
  const auto pixels = static_cast<std::size_t>(height) * width;
  if (answer.codec != "raw" && answer.codec != "rle")
    throw Error("a mask packed as " + answer.codec + ": this client unpacks raw and rle");
  auto mask = answer.codec == "raw" ? answer.data : unpack_runs(answer.data, pixels);
  if (mask.size() != pixels)
    throw Error("a mask of " + std::to_string(mask.size()) + " pixels where " + std::to_string(pixels) + " were announced");
  return mask;
}

}  // namespace skylane
