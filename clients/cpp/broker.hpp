// A connection to an MQTT 5 broker, on libmosquitto. One thread: nothing moves but in `wait_until`.
#pragma once

#include <mosquitto.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace skylane {

using Clock = std::chrono::steady_clock;

// What stands beside a frame, for brokers and for whoever watches.
struct Beside {
  std::string content_type, response_topic, correlation;
  int expires_after_s = 0;  // 0: never.
};

class Broker {
 public:
  using Heard = std::function<void(const std::string& topic, const std::string& payload)>;

  // `certs`: a folder with ca.crt, NAME.crt and NAME.key, as `skylane broker certs` makes them; empty: no TLS.
  // Connects; throws Error where that fails before `until`.
  Broker(const std::string& host, int port, const std::string& certs, const std::string& name, Clock::time_point until);
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // Subscribes, and returns once the broker has acknowledged it. What comes is told to `heard`.
  void subscribe(const std::string& topic, Heard heard, Clock::time_point until);

  // Hands a message to the broker at QoS 1; that it was refused is thrown by `wait_until`.
  void publish(const std::string& topic, const std::string& payload, const Beside& beside);

  // Runs the connection until `is_done`; whether that was before `until`. Throws Error where the connection ends.
  bool wait_until(Clock::time_point until, const std::function<bool()>& is_done);

 private:
  struct Library {
    Library();
    ~Library();
  };
  Library library_;
  std::unique_ptr<mosquitto, decltype(&mosquitto_destroy)> client_;
  std::string where_, trouble_;
  bool is_connected_ = false, is_subscribed_ = false;
  Heard heard_;
};

}  // namespace skylane
