// The MessagePack messages that a vehicle sends and receives; see docs/reference/protocol.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geometry.hpp"
#include "image_file.hpp"

namespace skylane {

// A model card, as announced by a worker.
struct Card {
  std::string worker, model, version, task, resize;
  Size size;
};

// The time at which a frame left a stage; only time stamps of the same node can be subtracted.
struct Stamp {
  std::string stage, node;
  std::int64_t at_ns = 0;
};

struct Frame {
  std::string id;  // vehicle/camera/session/sequence
  std::string model;
  Geometry geometry;
  std::string mask_codec;  // raw or rle, which this client can unpack.
  std::string mask_size;   // model or frame
  int budget_ms = 0;       // 0: no deadline.
  std::vector<Stamp> stamps;
};

struct Answer {
  std::string id, status, reason, worker, model, version, engine, codec, data;
  Size size;
  std::vector<Stamp> stamps;
};

std::string pack_frame(const Frame& frame, const ImageFile& image);

// These throw Error if the payload is malformed. No card: the worker does not serve the model.
std::vector<Card> unpack_cards(const std::string& payload, const std::string& worker, const std::string& model);
Answer unpack_answer(const std::string& payload);

// The class id of every pixel, row by row. Throws Error if the data does not match the announced size.
std::string unpack_mask(const Answer& answer);

}  // namespace skylane
