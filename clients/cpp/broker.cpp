#include "broker.hpp"

#include <algorithm>
#include <exception>
#include <mqtt_protocol.h>

#include "error.hpp"

namespace skylane {
namespace {

constexpr int kKeepAliveS = 30;
constexpr int kRefused = 0x80;         // Reason codes from here on are failures.
constexpr int kNobodyListens = 0x10;

void check(int code, const std::string& doing) {
  if (code != MOSQ_ERR_SUCCESS) throw Error(doing + ": " + mosquitto_strerror(code));
}

}  // namespace

Broker::Library::Library() { mosquitto_lib_init(); }
Broker::Library::~Library() { mosquitto_lib_cleanup(); }

Broker::Broker(const std::string& host, int port, const std::string& certs, const std::string& name,
               Clock::time_point until)
    : client_(mosquitto_new(nullptr, true, this), mosquitto_destroy), where_(host + ":" + std::to_string(port)) {
  if (!client_) throw Error("no memory for a connection");
  auto* client = client_.get();
  mosquitto_int_option(client, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5);
  mosquitto_int_option(client, MOSQ_OPT_TCP_NODELAY, 1);  // Or a frame's last packet waits for an acknowledgement.
  if (!certs.empty()) {
    const auto file = [&certs](const std::string& called) { return certs + "/" + called; };
    check(mosquitto_tls_set(client, file("ca.crt").c_str(), nullptr, file(name + ".crt").c_str(),
                            file(name + ".key").c_str(), nullptr),
          "the certificates of " + name + " in " + certs);
  }
  // libmosquitto calls from C, which no exception may cross: what happens is kept, and thrown in wait_until.
  mosquitto_connect_v5_callback_set(client, [](mosquitto*, void* self, int code, int, const mosquitto_property*) {
    auto& broker = *static_cast<Broker*>(self);
    if (code != 0) broker.trouble_ = std::string("lets nobody in: ") + mosquitto_reason_string(code);
    broker.is_connected_ = code == 0;
  });
  mosquitto_disconnect_v5_callback_set(client, [](mosquitto*, void* self, int code, const mosquitto_property*) {
    auto& broker = *static_cast<Broker*>(self);
    if (broker.trouble_.empty()) broker.trouble_ = std::string("hung up: ") + mosquitto_strerror(code);
  });
  mosquitto_subscribe_v5_callback_set(
      client, [](mosquitto*, void* self, int, int count, const int* granted, const mosquitto_property*) {
        auto& broker = *static_cast<Broker*>(self);
        if (std::any_of(granted, granted + count, [](int code) { return code >= kRefused; }))
          broker.trouble_ = "refuses a subscription: may this vehicle read it?";
        broker.is_subscribed_ = true;
      });
  mosquitto_publish_v5_callback_set(client, [](mosquitto*, void* self, int, int code, const mosquitto_property*) {
    auto& broker = *static_cast<Broker*>(self);
    if (code == kNobodyListens) broker.trouble_ = "has no worker for this model: it has just gone, send again";
    if (code >= kRefused) broker.trouble_ = std::string("refuses the frame: ") + mosquitto_reason_string(code);
  });
  mosquitto_message_v5_callback_set(
      client, [](mosquitto*, void* self, const mosquitto_message* message, const mosquitto_property*) {
        auto& broker = *static_cast<Broker*>(self);
        try {
          if (broker.heard_)
            broker.heard_(message->topic, {static_cast<const char*>(message->payload),
                                           static_cast<std::size_t>(message->payloadlen)});
        } catch (const std::exception& error) {
          broker.trouble_ = error.what();
        }
      });
  check(mosquitto_connect_bind_v5(client, host.c_str(), port, kKeepAliveS, nullptr, nullptr), "no broker at " + where_);
  if (!wait_until(until, [this] { return is_connected_; })) throw Error("no broker answers at " + where_);
}

Broker::~Broker() {
  mosquitto_disconnect(client_.get());
  mosquitto_loop(client_.get(), 0, 1);
}

void Broker::subscribe(const std::string& topic, Heard heard, Clock::time_point until) {
  heard_ = std::move(heard);
  is_subscribed_ = false;
  check(mosquitto_subscribe(client_.get(), nullptr, topic.c_str(), 1), "subscribing to " + topic);
  if (!wait_until(until, [this] { return is_subscribed_; }))
    throw Error("broker " + where_ + " does not acknowledge a subscription");
}

void Broker::publish(const std::string& topic, const std::string& payload, const Beside& beside) {
  mosquitto_property* properties = nullptr;
  mosquitto_property_add_string(&properties, MQTT_PROP_CONTENT_TYPE, beside.content_type.c_str());
  mosquitto_property_add_string(&properties, MQTT_PROP_RESPONSE_TOPIC, beside.response_topic.c_str());
  mosquitto_property_add_binary(&properties, MQTT_PROP_CORRELATION_DATA, beside.correlation.data(),
                                static_cast<uint16_t>(beside.correlation.size()));
  if (beside.expires_after_s)
    mosquitto_property_add_int32(&properties, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL,
                                 static_cast<uint32_t>(beside.expires_after_s));
  const int code = mosquitto_publish_v5(client_.get(), nullptr, topic.c_str(), static_cast<int>(payload.size()),
                                        payload.data(), 1, false, properties);
  mosquitto_property_free_all(&properties);
  check(code, "sending " + std::to_string(payload.size()) + " bytes to " + where_);
}

bool Broker::wait_until(Clock::time_point until, const std::function<bool()>& is_done) {
  while (!is_done()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    const int code = mosquitto_loop(client_.get(), static_cast<int>(std::min<long long>(left, 1000)), 1);
    if (!trouble_.empty()) throw Error("broker " + where_ + " " + trouble_);
    check(code, "broker " + where_ + " is gone");
  }
  return true;
}

}  // namespace skylane
