#include "server/reply.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "text/unicode.h"

namespace penstock::server {
namespace {

// Texts are UTF-8 already; a token's bytes need not be.
std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string event(std::string_view data) {
  return fmt::format("data: {}\n\n", data);
}

Reply::Reply(const GenerationRequest& request, std::shared_ptr<const Model> model, const Job& job,
             bool in_reasoning)
    : endpoint_(request.endpoint),
      include_usage_(request.include_usage),
      want_logprobs_(request.n_logprobs >= 0),
      id_(job.id),
      created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      model_(std::move(model)),
      splitter_(in_reasoning) {}

void Reply::add_parts(const AnswerSplitter::Parts& parts) {
  for (Part* part : {&all_, &fresh_}) {
    part->reasoning += parts.reasoning;
    part->content += parts.content;
  }
}

// Log-probabilities are the content's: reasoning and tags have no place for them.
void Reply::decide_tokens(bool finished) {
  const bool chat = endpoint_ == Endpoint::Chat;
  const std::optional<size_t> content = chat ? splitter_.content_begin() : 0;
  if (!content && !finished && !splitter_.reasoning()) return;
  for (engine::GeneratedToken& token : undecided_) {
    const size_t begin = std::exchange(decided_end_, token.end);
    if (!content || (token.end > begin ? token.end <= *content : begin < *content)) continue;
    all_.tokens.push_back(token);
    fresh_.tokens.push_back(std::move(token));
  }
  undecided_.clear();
}

void Reply::add(const Job::News& news) {
  undecided_.insert(undecided_.end(), news.tokens.begin(), news.tokens.end());
  if (endpoint_ == Endpoint::Chat) {
    add_parts(splitter_.push(news.text));
    if (news.outcome) add_parts(splitter_.flush());
  } else {
    add_parts({{}, news.text});
  }
  decide_tokens(news.outcome.has_value());
  if (news.outcome) outcome_ = news.outcome;
}

std::string Reply::token_text(int32_t id) const {
  if (model_->tokenizer == nullptr) return {};
  return model_->tokenizer->decode(std::span(&id, 1), true);
}

Reply::Json Reply::chat_logprob(int32_t id, float logprob) const {
  const std::string bytes = token_text(id);
  Json values = Json::array();
  for (const char c : bytes) values.push_back(static_cast<unsigned char>(c));
  return {{"token", text::replace_invalid_utf8(bytes)},
          {"logprob", logprob},
          {"bytes", std::move(values)}};
}

Reply::Json Reply::logprobs(const std::vector<engine::GeneratedToken>& tokens,
                            size_t text_offset) const {
  if (!want_logprobs_) return nullptr;
  if (endpoint_ == Endpoint::Chat) {
    Json content = Json::array();
    for (const engine::GeneratedToken& token : tokens) {
      Json entry = chat_logprob(token.id, token.logprob);
      entry["top_logprobs"] = Json::array();
      for (const engine::TokenProbability& other : token.top) {
        entry["top_logprobs"].push_back(chat_logprob(other.id, other.logprob));
      }
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  // The older shape has strings alone: what is not UTF-8 by itself is written as bytes.
  const auto name = [&](int32_t id) {
    const std::string bytes = token_text(id);
    if (text::replace_invalid_utf8(bytes) == bytes) return bytes;
    std::string escaped = "bytes:";
    for (const char c : bytes) escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return escaped;
  };
  Json names = Json::array(), values = Json::array(), tops = Json::array();
  Json offsets = Json::array();
  for (const engine::GeneratedToken& token : tokens) {
    names.push_back(name(token.id));
    values.push_back(token.logprob);
    Json top = Json::object();
    for (const engine::TokenProbability& other : token.top) top[name(other.id)] = other.logprob;
    tops.push_back(token.top.empty() ? Json() : std::move(top));
    offsets.push_back(text_offset);
    text_offset += count_characters(token_text(token.id));
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(values)},
          {"tokens", std::move(names)},
          {"top_logprobs", std::move(tops)}};
}

const char* Reply::finish_reason() const {
  switch (outcome_->reason) {
    case engine::StopReason::Length:
    case engine::StopReason::ContextFull:
      return "length";
    default:
      return "stop";
  }
}

Reply::Json Reply::usage() const {
  const Usage& usage = outcome_->usage;
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Reply::Json Reply::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_->id}};
}

Reply::Json Reply::chunk(Json choice) const {
  Json json = head(endpoint_ == Endpoint::Chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = choice.is_null() ? Json::array() : Json::array({std::move(choice)});
  if (include_usage_) json["usage"] = nullptr;
  return json;
}

Reply::Json Reply::choice(const Part& part, bool is_chunk) const {
  Json json = {{"index", 0}};
  if (endpoint_ == Endpoint::Completions) {
    json["text"] = part.content;
  } else {
    Json message = Json::object();
    if (!is_chunk) message["role"] = "assistant";
    if (!is_chunk || !part.content.empty()) message["content"] = part.content;
    if (!part.reasoning.empty()) message["reasoning_content"] = part.reasoning;
    if (!is_chunk) message["refusal"] = nullptr;
    json[is_chunk ? "delta" : "message"] = std::move(message);
  }
  json["logprobs"] = logprobs(part.tokens, is_chunk ? text_offset_ : 0);
  json["finish_reason"] = nullptr;
  return json;
}

std::string Reply::events() {
  std::string out;
  if (!std::exchange(begun_, true) && endpoint_ == Endpoint::Chat) {
    const Json delta = {{"role", "assistant"}, {"content", ""}};
    out += event(dump(chunk(
        {{"index", 0}, {"delta", delta}, {"logprobs", nullptr}, {"finish_reason", nullptr}})));
  }
  if (!fresh_.empty()) {
    out += event(dump(chunk(choice(fresh_, true))));
    text_offset_ += count_characters(fresh_.content);
    fresh_ = {};
  }
  if (!outcome_) return out;
  if (outcome_->error) return out + event(outcome_->error->body());

  Json last = choice({}, true);
  last["logprobs"] = nullptr;
  last["finish_reason"] = finish_reason();
  out += event(dump(chunk(std::move(last))));
  if (include_usage_) {
    Json json = chunk(nullptr);
    json["usage"] = usage();
    out += event(dump(json));
  }
  return out + event("[DONE]");
}

std::string Reply::whole() const {
  Json json = head(endpoint_ == Endpoint::Chat ? "chat.completion" : "text_completion");
  Json only = choice(all_, false);
  only["finish_reason"] = finish_reason();
  json["choices"] = Json::array({std::move(only)});
  json["usage"] = usage();
  return dump(json);
}

}  // namespace penstock::server
