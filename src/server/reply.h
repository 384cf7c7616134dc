// Replies as the API shapes them: one object, or the chunks of a stream that join to the same.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_splitter.h"
#include "server/job.h"
#include "server/model.h"
#include "server/request.h"

namespace penstock::server {

class Reply {
 public:
  Reply(const GenerationRequest& request, std::shared_ptr<const Model> model, const Job& job,
        bool in_reasoning);

  // Everything the job said, in order.
  void add(const Job::News& news);

  // Of a stream: the server-sent events for what add() has brought since the last call. The first
  // call begins with the role, the one after the outcome ends with the usage and [DONE], or with an
  // error and without [DONE].
  std::string events();
  // The whole reply; the outcome has come and has no error.
  std::string whole() const;
  std::string text() const { return all_.reasoning + all_.content; }  // as far as it has come

 private:
  using Json = nlohmann::ordered_json;
  struct Part {  // of the answer
    std::string reasoning, content;
    std::vector<engine::GeneratedToken> tokens;  // of the content
    bool empty() const noexcept { return reasoning.empty() && content.empty() && tokens.empty(); }
  };

  void add_parts(const AnswerSplitter::Parts& parts);
  void decide_tokens(bool finished);
  Json head(const char* object) const;
  Json chunk(Json choice) const;
  Json choice(const Part& part, bool is_chunk) const;
  Json logprobs(const std::vector<engine::GeneratedToken>& tokens, size_t text_offset) const;
  Json chat_logprob(int32_t id, float logprob) const;
  Json usage() const;
  const char* finish_reason() const;
  std::string token_text(int32_t id) const;

  Endpoint endpoint_;
  bool include_usage_;
  bool want_logprobs_;
  std::string id_;
  int64_t created_;
  std::shared_ptr<const Model> model_;
  AnswerSplitter splitter_;

  std::vector<engine::GeneratedToken> undecided_;  // tokens of the content or not
  size_t decided_end_ = 0;                         // bytes of text before them
  Part all_, fresh_;                               // since the beginning; since the last events()
  size_t text_offset_ = 0;                         // characters before fresh_ (Completions)
  bool begun_ = false;
  std::optional<Outcome> outcome_;
};

// A server-sent event with this data.
std::string event(std::string_view data);

}  // namespace penstock::server
