// A connection to an MQTT 5 broker, with libmosquitto. Single-threaded: messages are processed in `wait_until`.
#pragma once

#include <mosquitto.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace skylane {

using Clock = std::chrono::steady_clock;

// MQTT 5 properties of a frame.
struct Properties {
  std::string content_type, response_topic, correlation;
  int expires_after_s = 0;  // 0: never.
};

class Broker {
 public:
  using Handler = std::function<void(const std::string& topic, const std::string& payload)>;

  // Connects; throws Error if that fails or takes longer than until `deadline`.
  // `certs`: a folder with ca.crt, NAME.crt and NAME.key, as `skylane broker certs` creates; empty: no TLS.
  Broker(const std::string& host, int port, const std::string& certs, const std::string& name, Clock::time_point deadline);
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // Subscribes and waits for the acknowledgement. `handler` receives the messages.
  void subscribe(const std::string& topic, Handler handler, Clock::time_point deadline);

  // Sends a message at QoS 1; `wait_until` throws Error if the broker rejects it.
  void publish(const std::string& topic, const std::string& payload, const Properties& properties);

  // Processes messages until `is_done`; returns false at the deadline. Throws Error if the connection ends.
  bool wait_until(Clock::time_point deadline, const std::function<bool()>& is_done);

 private:
  struct Library {
    Library();
    ~Library();
  };
  Library library_;
  std::unique_ptr<mosquitto, decltype(&mosquitto_destroy)> client_;
  std::string address_, error_;
  bool is_connected_ = false, is_subscribed_ = false;
  Handler handler_;
};

}  // namespace skylane
