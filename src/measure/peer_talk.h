// What `penstock bench` says to a server over HTTP, and what it answers.
#pragma once

#include <httplib.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>

#include "measure/child.h"
#include "measure/peer_run.h"

namespace penstock::measure {

// The pieces of a stream of server-sent events as they arrive, as text for the parser
// "event-stream" (peer_output.h): a line per line, "MS LINE", MS since the request was sent.
class EventLog {
 public:
  explicit EventLog(size_t most) : most_(most) {}
  // False when the log would grow beyond `most` bytes.
  bool take(std::string_view bytes, double at_ms);
  std::string finish(double at_ms);  // a last line without its end too

 private:
  void line(std::string_view text, double at_ms);

  size_t most_;
  std::string pending_, log_;
};

class Talk {
 public:
  // `child`: the server's process, or null where it runs anyway. When `interrupted` is set the
  // request in progress is cut.
  Talk(const PeerRequest& request, const std::string& host, Child* child,
       const std::atomic<bool>* interrupted);
  ~Talk();
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;

  bool ready();              // waits until it answers; false when it ended or time ran out
  void ask_llama_server();   // /completion, which takes token ids and gives its timings
  void ask_stream();         // /v1/completions of any server: when pieces of text arrive
  bool interrupted() const;  // and so there is no answer

  std::string said, error;
  double load_ms = 0;

 private:
  std::string first_model();

  const PeerRequest& request_;
  httplib::Client client_;
  Child* child_;
  const std::atomic<bool>* interrupted_;
  std::atomic<bool> done_{false};
  std::thread cutter_;  // ends the request when we are interrupted
};

}  // namespace penstock::measure
