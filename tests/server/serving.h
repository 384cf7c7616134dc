// A server around a tiny model that has a tokenizer and a chat template, and clients for it: the
// HTTP library's own, and bare sockets for what no library would send.
#pragma once

#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "models/tiny_models.h"
#include "server/server.h"
#include "surgery/synth_tokenizer.h"

namespace penstock::server::test {

using Json = nlohmann::json;

constexpr const char* kTemplate =
    "{%- if tone is defined %}<|im_start|>system\nTone: {{ tone }}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking %}<think>{{ reasoning_effort or '' }}\n{% endif %}{% endif %}";

inline std::string write_model(const std::string& folder,
                               const std::string& architecture = "qwen3moe") {
  constexpr uint64_t kVocab = 512;
  const surgery::SynthVocabulary vocabulary = surgery::make_vocabulary("qwen35", kVocab);
  penstock::testing::TinyOptions options;
  options.matrices = gguf::TypeId::Q8_0;
  options.shapes = {{"token_embd.weight", {64, kVocab}}, {"output.weight", {64, kVocab}}};
  options.set = {{".tokenizer.ggml.model", std::string("gpt2")},
                 {".tokenizer.ggml.pre", vocabulary.pre},
                 {".tokenizer.ggml.tokens", vocabulary.tokens},
                 {".tokenizer.ggml.token_type", vocabulary.types},
                 {".tokenizer.ggml.merges", vocabulary.merges},
                 {".tokenizer.ggml.eos_token_id", vocabulary.eos},
                 {".tokenizer.chat_template", std::string(kTemplate)},
                 {".general.sampling.temp", 1.0f}};
  return penstock::testing::write_tiny(folder, architecture, options);
}

struct ServingOptions {
  std::string architecture = "qwen3moe";
  int64_t n_ctx = 512;
  int chunk = 32;
  decltype(experts::StreamOptions::decorate) decorate = nullptr;
  std::function<void()> before_loading = [] {};
  ServerOptions server;
};

class Serving {
 public:
  explicit Serving(ServingOptions setup = {}) : setup_(std::move(setup)) {
    log::set_level(log::Level::Quiet);
    setup_.server.port = 0;
    path_ = write_model(folder_.path(), setup_.architecture);
    server_ =
        std::make_unique<Server>(setup_.server, [this](const engine::Runtime::Progress& progress) {
          setup_.before_loading();
          engine::RuntimeOptions options;
          options.model_path = path_;
          options.threads = 1;
          options.n_ctx = setup_.n_ctx;
          options.prompt_chunk = setup_.chunk;
          options.arena_slots = 12;
          options.stream.depth = 1;
          options.stream.huge_seconds = 0;
          options.stream.decorate = setup_.decorate;
          return engine::Runtime::open(options, progress);
        });
    server_->start();
  }

  void wait_until_ready() const {
    while (server_->phase() == Phase::Loading) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_EQ(server_->phase(), Phase::Ready);
  }

  Server& server() { return *server_; }
  int port() const { return server_->port(); }
  const std::string& path() const { return path_; }  // of the model's file

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port());
    client.set_read_timeout(120);
    return client;
  }

  // Status and parsed body.
  std::pair<int, Json> get(const std::string& path, const httplib::Headers& headers = {}) const {
    return parsed(client().Get(path, headers));
  }
  std::pair<int, Json> post(const std::string& path, const Json& body,
                            const httplib::Headers& headers = {}) const {
    return parsed(client().Post(path, headers, body.dump(), "application/json"));
  }
  std::pair<int, Json> chat(const Json& body) const { return post("/v1/chat/completions", body); }
  std::pair<int, Json> complete(const Json& body) const { return post("/v1/completions", body); }

  // The data of every event of a streamed request, in order.
  std::vector<std::string> stream(const std::string& path, Json body) const {
    body["stream"] = true;
    const auto result = client().Post(path, body.dump(), "application/json");
    EXPECT_TRUE(result);
    if (!result) return {};
    EXPECT_EQ(result->status, 200) << result->body;
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
    return events(result->body);
  }
  static std::vector<std::string> events(const std::string& text) {
    std::vector<std::string> found;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "an event without an end: " << text.substr(at);
      if (end == std::string::npos) break;
      const std::string line = text.substr(at, end - at);
      if (line.starts_with("data: ")) found.push_back(line.substr(6));
      at = end + 2;
    }
    return found;
  }

  double metric(const std::string& sample) const {
    const auto result = client().Get("/metrics");
    EXPECT_TRUE(result);
    const std::string text = "\n" + result->body;
    const size_t at = text.find("\n" + sample + " ");
    if (at == std::string::npos) return -1;
    return std::stod(text.substr(at + sample.size() + 2));
  }

 private:
  static std::pair<int, Json> parsed(const httplib::Result& result) {
    if (!result) return {-static_cast<int>(result.error()), Json()};
    return {result->status, Json::parse(result->body, nullptr, false)};
  }

  ServingOptions setup_;
  penstock::testing::TemporaryFolder folder_;
  std::string path_;
  std::unique_ptr<Server> server_;
};

// A socket that says exactly what it is told.
class Raw {
 public:
  explicit Raw(int port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    const timeval patience{60, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Raw() { close(); }
  Raw(const Raw&) = delete;

  bool connected() const { return connected_; }
  bool send(const std::string& text) const {
    for (size_t at = 0; at < text.size();) {
      const ssize_t n = ::send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }
  std::string receive(size_t most = 65536) const {
    std::string text(most, '\0');
    const ssize_t n = recv(fd_, text.data(), most, 0);
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  std::string receive_all() const {
    std::string all;
    for (std::string part = receive(); !part.empty(); part = receive()) all += part;
    return all;
  }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
  bool connected_ = false;
};

inline std::string post_text(const std::string& path, const std::string& body,
                             const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline Json user(const std::string& content) {
  return Json::array({{{"role", "user"}, {"content", content}}});
}

// The code of an error reply, or what came instead.
inline std::string code(const std::pair<int, Json>& reply) {
  return reply.second.is_object() && reply.second.contains("error")
             ? reply.second["error"]["code"].get<std::string>()
             : "no error: " + std::to_string(reply.first) + " " + reply.second.dump();
}

}  // namespace penstock::server::test
