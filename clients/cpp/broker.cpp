#include "broker.hpp"

#include <algorithm>
#include <exception>
#include <mqtt_protocol.h>

#include "error.hpp"

namespace skylane {
namespace {

constexpr int kKeepAliveS = 30;
constexpr int kFirstFailure = 0x80;  // Greater reason codes are failures as well.
constexpr int kNoSubscribers = 0x10;

void check(int code, const std::string& action) {
  if (code != MOSQ_ERR_SUCCESS) throw Error(action + ": " + mosquitto_strerror(code));
}

}  // namespace

Broker::Library::Library() { mosquitto_lib_init(); }
Broker::Library::~Library() { mosquitto_lib_cleanup(); }

Broker::Broker(const std::string& host, int port, const std::string& certs, const std::string& name,
               Clock::time_point deadline)
    : client_(mosquitto_new(nullptr, true, this), mosquitto_destroy), address_(host + ":" + std::to_string(port)) {
  if (!client_) throw Error("not enough memory for a connection");
  auto* client = client_.get();
  mosquitto_int_option(client, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5);
  mosquitto_int_option(client, MOSQ_OPT_TCP_NODELAY, 1);  // Otherwise the last packet of a frame waits for an acknowledgement.
  if (!certs.empty()) {
    const auto file = [&certs](const std::string& name) { return certs + "/" + name; };
    check(mosquitto_tls_set(client, file("ca.crt").c_str(), nullptr, file(name + ".crt").c_str(),
                            file(name + ".key").c_str(), nullptr),
          "the certificates of " + name + " in " + certs);
  }
  // Exceptions must not pass through the C code of libmosquitto: errors are stored, and thrown in wait_until.
  mosquitto_connect_v5_callback_set(client, [](mosquitto*, void* self, int code, int, const mosquitto_property*) {
    auto& broker = *static_cast<Broker*>(self);
    if (code != 0) broker.error_ = std::string("rejects the connection: ") + mosquitto_reason_string(code);
    broker.is_connected_ = code == 0;
  });
  mosquitto_disconnect_v5_callback_set(client, [](mosquitto*, void* self, int code, const mosquitto_property*) {
    auto& broker = *static_cast<Broker*>(self);
    if (broker.error_.empty()) broker.error_ = std::string("closed the connection: ") + mosquitto_strerror(code);
  });
  mosquitto_subscribe_v5_callback_set(
      client, [](mosquitto*, void* self, int, int count, const int* granted, const mosquitto_property*) {
        auto& broker = *static_cast<Broker*>(self);
        if (std::any_of(granted, granted + count, [](int code) { return code >= kFirstFailure; }))
          broker.error_ = "rejects a subscription: may this vehicle read the topic?";
        broker.is_subscribed_ = true;
      });
  mosquitto_publish_v5_callback_set(client, [](mosquitto*, void* self, int, int code, const mosquitto_property*) {
    auto& broker = *static_cast<Broker*>(self);
    if (code == kNoSubscribers) broker.error_ = "has no worker for this model any more: send again";
    if (code >= kFirstFailure) broker.error_ = std::string("rejects the frame: ") + mosquitto_reason_string(code);
  });
  mosquitto_message_v5_callback_set(
      client, [](mosquitto*, void* self, const mosquitto_message* message, const mosquitto_property*) {
        auto& broker = *static_cast<Broker*>(self);
        try {
          if (broker.handler_)
            broker.handler_(message->topic, {static_cast<const char*>(message->payload),
                                           static_cast<std::size_t>(message->payloadlen)});
        } catch (const std::exception& error) {
          broker.error_ = error.what();
        }
      });
  check(mosquitto_connect_bind_v5(client, host.c_str(), port, kKeepAliveS, nullptr, nullptr), "no broker at " + address_);
  if (!wait_until(deadline, [this] { return is_connected_; })) throw Error("no broker answers at " + address_);
}

Broker::~Broker() {
  mosquitto_disconnect(client_.get());
  mosquitto_loop(client_.get(), 0, 1);
}

void Broker::subscribe(const std::string& topic, Handler handler, Clock::time_point deadline) {
  handler_ = std::move(handler);
  is_subscribed_ = false;
  check(mosquitto_subscribe(client_.get(), nullptr, topic.c_str(), 1), "subscribing to " + topic);
  if (!wait_until(deadline, [this] { return is_subscribed_; }))
    throw Error("broker " + address_ + " does not acknowledge a subscription");
}

void Broker::publish(const std::string& topic, const std::string& payload, const Properties& frame_properties) {
  mosquitto_property* properties = nullptr;
  mosquitto_property_add_string(&properties, MQTT_PROP_CONTENT_TYPE, frame_properties.content_type.c_str());
  mosquitto_property_add_string(&properties, MQTT_PROP_RESPONSE_TOPIC, frame_properties.response_topic.c_str());
  mosquitto_property_add_binary(&properties, MQTT_PROP_CORRELATION_DATA, frame_properties.correlation.data(),
                                static_cast<uint16_t>(frame_properties.correlation.size()));
  if (frame_properties.expires_after_s)
    mosquitto_property_add_int32(&properties, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL,
                                 static_cast<uint32_t>(frame_properties.expires_after_s));
  const int code = mosquitto_publish_v5(client_.get(), nullptr, topic.c_str(), static_cast<int>(payload.size()),
                                        payload.data(), 1, false, properties);
  mosquitto_property_free_all(&properties);
  check(code, "sending " + std::to_string(payload.size()) + " bytes to " + address_);
}

bool Broker::wait_until(Clock::time_point deadline, const std::function<bool()>& is_done) {
  while (!is_done()) {
    const auto remaining = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (remaining <= 0) return false;
    const int code = mosquitto_loop(client_.get(), static_cast<int>(std::min<long long>(remaining, 1000)), 1);
    if (!error_.empty()) throw Error("broker " + address_ + " " + error_);
    check(code, "the connection to broker " + address_ + " is lost");
  }
  return true;
}

}  // namespace skylane
