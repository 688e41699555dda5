// Sends a picture to a Skylane worker over MQTT and writes the mask that comes back.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>

#include "broker.hpp"
#include "error.hpp"
#include "wire.hpp"

namespace {

using namespace skylane;

constexpr char kUsage[] =
    "usage: skylane-send [--broker HOST[:PORT]] [--certs FOLDER] [--model NAME] [--vehicle NAME] [--mask-codec rle|raw]\n"
    "                    [--mask-size model|frame] [--deadline-ms N] [--timeout-s N] PICTURE MASK.pgm\n"
    "\n"
    "Sends PICTURE (JPEG or PNG, of any size) and writes the class id of every pixel as a grey PGM.\n"
    "Exit code 1: no mask came, the reason is told; 2: called wrongly.\n";

struct Wishes {
  std::string host = "127.0.0.1", certs, model = "road-small", vehicle = "skylane-send", mask_codec = "rle",
              mask_size = "model", picture, mask;
  int port = 0, deadline_ms = 0, timeout_s = 30;
};

struct UsageError : Error {
  using Error::Error;
};

int number(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end || text.empty() || value < 1 || value > 86'400'000) throw UsageError(flag + " " + text + " is no number from 1 on");
  return static_cast<int>(value);
}

Wishes read_wishes(int count, char** arguments) {
  Wishes wishes;
  std::vector<std::string> files;
  for (int place = 1; place < count; ++place) {
    const std::string flag = arguments[place];
    if (flag.rfind("--", 0) != 0) {
      files.push_back(flag);
      continue;
    }
    if (place + 1 == count) throw UsageError(flag + " wants a value");
    const std::string value = arguments[++place];
    if (flag == "--broker") {
      const auto colon = value.rfind(':');
      wishes.host = value.substr(0, colon);
      if (colon != std::string::npos) wishes.port = number(flag, value.substr(colon + 1));
    } else if (flag == "--certs") {
      wishes.certs = value;
    } else if (flag == "--model") {
      wishes.model = value;
    } else if (flag == "--vehicle") {
      wishes.vehicle = value;
    } else if (flag == "--mask-codec" && (value == "rle" || value == "raw")) {
      wishes.mask_codec = value;
    } else if (flag == "--mask-size" && (value == "model" || value == "frame")) {
      wishes.mask_size = value;
    } else if (flag == "--deadline-ms") {
      wishes.deadline_ms = number(flag, value);
    } else if (flag == "--timeout-s") {
      wishes.timeout_s = number(flag, value);
    } else {
      throw UsageError("no flag " + flag + " " + value);
    }
  }
  if (files.size() != 2) throw UsageError("give a picture and a file for its mask");
  wishes.picture = files[0];
  wishes.mask = files[1];
  if (!wishes.port) wishes.port = wishes.certs.empty() ? 1883 : 8883;
  return wishes;
}

// Nanoseconds since 1970 of a clock that nobody sets: the system's once, and a steady one from there.
std::int64_t now_ns() {
  using std::chrono::nanoseconds;
  static const auto anchor = std::chrono::system_clock::now().time_since_epoch();
  static const auto begun = Clock::now();
  return std::chrono::duration_cast<nanoseconds>(anchor).count() +
         std::chrono::duration_cast<nanoseconds>(Clock::now() - begun).count();
}

std::string session() {
  std::random_device chance;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", chance(), chance());
  return text;
}

Card find_model(Broker& broker, const Wishes& wishes, Clock::time_point until) {
  std::optional<Card> found;
  broker.subscribe(
      "skylane/v1/status/worker/+",
      [&](const std::string& topic, const std::string& payload) {
        const auto cards = unpack_cards(payload, topic.substr(topic.rfind('/') + 1), wishes.model);
        if (!cards.empty() && !found) found = cards.front();
      },
      until);
  if (!broker.wait_until(until, [&] { return found.has_value(); }))
    throw Error("no worker announces model " + wishes.model + ": is one running, on this broker?");
  if (found->task != "segmentation")
    throw Error("model " + wishes.model + " answers " + found->task + ": this client reads masks");
  return *found;
}

Answer ask(Broker& broker, const Wishes& wishes, const Card& card, const Picture& picture, std::int64_t due_ns) {
  const std::string camera = "file", run = session(), node = "edge/" + wishes.vehicle + "/" + run;
  const std::string back = "skylane/v1/masks/" + wishes.vehicle + "/" + camera;
  Frame frame{wishes.vehicle + "/" + camera + "/" + run + "/0", wishes.model,
              plan(card.resize, picture.size, card.size),       wishes.mask_codec,
              wishes.mask_size,                                 wishes.deadline_ms,
              {{"due", node, due_ns}}};
  std::optional<Answer> answer;
  const auto until = Clock::now() + std::chrono::seconds(wishes.timeout_s);
  broker.subscribe(
      back,
      [&](const std::string& topic, const std::string& payload) {
        if (topic != back || answer) return;  // A worker that announces itself anew, or an answer told twice.
        auto told = unpack_answer(payload);
        if (told.id != frame.id) return;  // Of a run before.
        told.stamps.push_back({"returned", node, now_ns()});
        answer = std::move(told);
      },
      until);
  frame.stamps.push_back({"sent", node, now_ns()});
  broker.publish("skylane/v1/frames/" + wishes.model + "/" + wishes.vehicle + "/" + camera, pack_frame(frame, picture),
                 {"application/vnd.skylane.frame+msgpack", back, frame.id, (wishes.deadline_ms + 999) / 1000});
  if (!broker.wait_until(until, [&] { return answer.has_value(); }))
    throw Error("no answer within " + std::to_string(wishes.timeout_s) + " s: the frame is lost, send it again");
  return *answer;
}

// One line a stage: how long after the stage before it the same node left it; what lies between the nodes is the crossing.
void print_stages(const std::vector<Stamp>& stamps) {
  const auto ms = [](std::int64_t from_ns, std::int64_t to_ns) { return (to_ns - from_ns) / 1e6; };
  const auto line = [](const std::string& what, double took_ms) { std::printf("%-16s %10.3f ms\n", what.c_str(), took_ms); };
  const auto& own = stamps.front().node;
  const auto is_own = [&own](const Stamp& stamp) { return stamp.node == own; };
  const auto first = std::find_if_not(stamps.begin(), stamps.end(), is_own);
  const auto last = std::find_if(first, stamps.end(), is_own);
  if (first == stamps.end() || last == stamps.end()) return;
  line("sent", ms(stamps.front().at_ns, (first - 1)->at_ns));
  for (auto at = first + 1; at != last; ++at) line(at->stage, ms((at - 1)->at_ns, at->at_ns));
  const double cloud_ms = ms(first->at_ns, (last - 1)->at_ns);
  line("cloud", cloud_ms);
  line("crossing", ms((first - 1)->at_ns, last->at_ns) - cloud_ms);
  line("total", ms(stamps.front().at_ns, stamps.back().at_ns));
}

void write_pgm(const std::string& path, Size size, const std::string& mask) {
  std::ofstream file(path, std::ios::binary);
  file << "P5\n" << size.width << " " << size.height << "\n255\n" << mask;
  if (!file.flush()) throw Error(path + " cannot be written");
}

void run(const Wishes& wishes) {
  const auto picture = read_image_file(wishes.picture);
  const auto until = Clock::now() + std::chrono::seconds(wishes.timeout_s);
  Broker broker(wishes.host, wishes.port, wishes.certs, wishes.vehicle, until);
  const auto card = find_model(broker, wishes, until);
  auto answer = ask(broker, wishes, card, picture, now_ns());
  if (answer.status != "answered") throw Error(answer.status + ": " + answer.reason);
  const auto mask = unpack_result(answer);
  answer.stamps.push_back({"mask_decoded", answer.stamps.back().node, now_ns()});
  write_pgm(wishes.mask, answer.size, mask);
  std::printf("mask of %d x %d by %s: %s %s, %s\n", answer.size.height, answer.size.width, answer.worker.c_str(),
              answer.model.c_str(), answer.version.c_str(), answer.engine.c_str());
  print_stages(answer.stamps);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run(read_wishes(count, arguments));
  } catch (const UsageError& error) {
    std::cerr << "skylane-send: " << error.what() << "\n" << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "skylane-send: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
