// Sends an image to a Skylane worker over MQTT and writes the mask of the answer.

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
    "                    [--mask-size model|frame] [--deadline-ms N] [--timeout-s N] IMAGE MASK.pgm\n"
    "\n"
    "Sends IMAGE (JPEG or PNG, of any size) and writes the class id of every pixel as a grey PGM.\n"
    "Exit code 1: no mask was received, stderr has the reason; 2: wrong usage.\n";

struct Options {
  std::string host = "127.0.0.1", certs, model = "road-small", vehicle = "skylane-send", mask_codec = "rle",
              mask_size = "model", image, mask;
  int port = 0, deadline_ms = 0, timeout_s = 30;
};

struct UsageError : Error {
  using Error::Error;
};

int number(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end || text.empty() || value < 1 || value > 86'400'000) throw UsageError(flag + " " + text + " must be a whole number, at least 1");
  return static_cast<int>(value);
}

Options parse_options(int count, char** arguments) {
  Options options;
  std::vector<std::string> files;
  for (int place = 1; place < count; ++place) {
    const std::string flag = arguments[place];
    if (flag.rfind("--", 0) != 0) {
      files.push_back(flag);
      continue;
    }
    if (place + 1 == count) throw UsageError(flag + " needs a value");
    const std::string value = arguments[++place];
    if (flag == "--broker") {
      const auto colon = value.rfind(':');
      options.host = value.substr(0, colon);
      if (colon != std::string::npos) options.port = number(flag, value.substr(colon + 1));
    } else if (flag == "--certs") {
      options.certs = value;
    } else if (flag == "--model") {
      options.model = value;
    } else if (flag == "--vehicle") {
      options.vehicle = value;
    } else if (flag == "--mask-codec" && (value == "rle" || value == "raw")) {
      options.mask_codec = value;
    } else if (flag == "--mask-size" && (value == "model" || value == "frame")) {
      options.mask_size = value;
    } else if (flag == "--deadline-ms") {
      options.deadline_ms = number(flag, value);
    } else if (flag == "--timeout-s") {
      options.timeout_s = number(flag, value);
    } else {
      throw UsageError("no flag " + flag + " " + value);
    }
  }
  if (files.size() != 2) throw UsageError("give an image file and a file for its mask");
  options.image = files[0];
  options.mask = files[1];
  if (!options.port) options.port = options.certs.empty() ? 1883 : 8883;
  return options;
}

// Nanoseconds since 1970: the system clock is read once and continued with a steady clock, which is never adjusted.
std::int64_t now_ns() {
  using std::chrono::nanoseconds;
  static const auto anchor = std::chrono::system_clock::now().time_since_epoch();
  static const auto start = Clock::now();
  return std::chrono::duration_cast<nanoseconds>(anchor).count() +
         std::chrono::duration_cast<nanoseconds>(Clock::now() - start).count();
}

std::string session() {
  std::random_device random;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", random(), random());
  return text;
}

Card find_model(Broker& broker, const Options& options, Clock::time_point deadline) {
  std::optional<Card> card;
  broker.subscribe(
      "skylane/v1/status/worker/+",
      [&](const std::string& topic, const std::string& payload) {
        const auto cards = unpack_cards(payload, topic.substr(topic.rfind('/') + 1), options.model);
        if (!cards.empty() && !card) card = cards.front();
      },
      deadline);
  if (!broker.wait_until(deadline, [&] { return card.has_value(); }))
    throw Error("no worker announces model " + options.model + ": is one running, on this broker?");
  if (card->task != "segmentation")
    throw Error("model " + options.model + " answers " + card->task + ": this client supports segmentation");
  return *card;
}

Answer ask(Broker& broker, const Options& options, const Card& card, const ImageFile& image, std::int64_t due_ns) {
  const std::string camera = "file", run = session(), node = "edge/" + options.vehicle + "/" + run;
  const std::string response_topic = "skylane/v1/masks/" + options.vehicle + "/" + camera;
  Frame frame{options.vehicle + "/" + camera + "/" + run + "/0", options.model,
              plan(card.resize, image.size, card.size),       options.mask_codec,
              options.mask_size,                                 options.deadline_ms,
              {{"due", node, due_ns}}};
  std::optional<Answer> answer;
  const auto deadline = Clock::now() + std::chrono::seconds(options.timeout_s);
  broker.subscribe(
      response_topic,
      [&](const std::string& topic, const std::string& payload) {
        if (topic != response_topic || answer) return;  // Another worker's status, or a duplicate answer.
        auto received = unpack_answer(payload);
        if (received.id != frame.id) return;  // An answer to an earlier run.
        received.stamps.push_back({"returned", node, now_ns()});
        answer = std::move(received);
      },
      deadline);
  frame.stamps.push_back({"sent", node, now_ns()});
  broker.publish("skylane/v1/frames/" + options.model + "/" + options.vehicle + "/" + camera, pack_frame(frame, image),
                 {"application/vnd.skylane.frame+msgpack", response_topic, frame.id, (options.deadline_ms + 999) / 1000});
  if (!broker.wait_until(deadline, [&] { return answer.has_value(); }))
    throw Error("no answer within " + std::to_string(options.timeout_s) + " s: the frame is lost, send it again");
  return *answer;
}

// Prints the duration of each stage, measured by the clock of its node; "crossing" is the time between the nodes.
void print_stages(const std::vector<Stamp>& stamps) {
  const auto ms = [](std::int64_t from_ns, std::int64_t to_ns) { return (to_ns - from_ns) / 1e6; };
  const auto line = [](const std::string& what, double duration_ms) { std::printf("%-16s %10.3f ms\n", what.c_str(), duration_ms); };
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

void run(const Options& options) {
  const auto image = read_image_file(options.image);
  const auto deadline = Clock::now() + std::chrono::seconds(options.timeout_s);
  Broker broker(options.host, options.port, options.certs, options.vehicle, deadline);
  const auto card = find_model(broker, options, deadline);
  auto answer = ask(broker, options, card, image, now_ns());
  if (answer.status != "answered") throw Error(answer.status + ": " + answer.reason);
  const auto mask = unpack_mask(answer);
  answer.stamps.push_back({"mask_decoded", answer.stamps.back().node, now_ns()});
  write_pgm(options.mask, answer.size, mask);
  std::printf("mask of %d x %d by %s: %s %s, %s\n", answer.size.height, answer.size.width, answer.worker.c_str(),
              answer.model.c_str(), answer.version.c_str(), answer.engine.c_str());
  print_stages(answer.stamps);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run(parse_options(count, arguments));
  } catch (const UsageError& error) {
    std::cerr << "skylane-send: " << error.what() << "\n" << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "skylane-send: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
