// The messages of docs/reference/protocol.md that a vehicle sends and reads, as MessagePack.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geometry.hpp"
#include "picture.hpp"

namespace skylane {

// What a worker announces of a model.
struct Card {
  std::string worker, model, version, task, resize;
  Size size;
};

// A stage and the moment a frame left it; only the stamps of one node can be subtracted.
struct Stamp {
  std::string stage, node;
  std::int64_t at_ns = 0;
};

struct Frame {
  std::string id;  // vehicle/camera/session/sequence
  std::string model;
  Geometry geometry;
  std::string mask_codec;  // raw or rle: what this client unpacks.
  std::string mask_size;   // model or frame
  int budget_ms = 0;       // 0: no deadline.
  std::vector<Stamp> stamps;
};

struct Answer {
  std::string id, status, reason, worker, model, version, engine, codec, data;
  Size size;
  std::vector<Stamp> stamps;
};

std::string pack_frame(const Frame& frame, const Picture& picture);

// These throw Error where the payload is no such message. No card: the worker does not serve the model (any more).
std::vector<Card> unpack_cards(const std::string& payload, const std::string& worker, const std::string& model);
Answer unpack_answer(const std::string& payload);

// The class id of every pixel, row by row. Throws Error where the data is no mask of the size announced.
std::string unpack_result(const Answer& answer);

}  // namespace skylane
