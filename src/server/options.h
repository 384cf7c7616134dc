// What a person may choose about the server, and the bounds that keep it small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/job_watch.h"

namespace penstock::server {

struct Limits {
  size_t head_bytes = size_t{32} << 10;   // request line and headers together
  size_t line_bytes = 8190;               // one of their lines
  size_t body_bytes = size_t{2} << 20;    // of one request
  size_t bodies_bytes = size_t{8} << 20;  // of all requests whose bodies are being read
  int connections = 128;
  int queue = 64;                 // requests that wait for the model
  double head_seconds = 10;       // to send the head, from its first byte on
  double body_seconds = 60;       // to send the body
  double idle_seconds = 30;       // between two requests on a connection
  double write_seconds = 30;      // without accepting a single byte of an answer
  double request_seconds = 3600;  // waiting and generating together
  double drain_seconds = 30;      // for the requests that are there when the server is told to stop
  double first_seconds = 5;       // a stream's status waits this long for its first output
  double ping_seconds = 10;       // a silent stream gets a comment this often

  // What the server may need beside the model, for the memory plan.
  uint64_t memory_bytes() const noexcept;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                         // 0: any free one
  std::vector<std::string> api_keys;       // empty: none is asked for
  std::vector<std::string> allow_hosts;    // names beside this machine's own
  std::vector<std::string> allow_origins;  // of web pages, beside those of this machine
  std::vector<std::string> aliases;        // names of the model; default: the file's
  std::string chat_format = "auto";        // engine::open_chat_format()
  std::string reasoning;                   // effort where a request says nothing; empty: template's
  int64_t reasoning_budget = -1;           // engine::GenerateOptions
  bool log_prompts = false;
  std::string version;  // for /metrics
  WatchJob watch = {};  // writes down what requests did
  Limits limits;
};

}  // namespace penstock::server
