#include "server/request.h"

#include <limits>
#include <utility>

#include "server/api_error.h"
#include "server/fields.h"

namespace penstock::server {
namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxVariablesBytes = 16384;
constexpr int64_t kMaxLogprobs = 20;
constexpr double kMax = std::numeric_limits<float>::max();
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

constexpr const char* kNoTools = "tools come with a later version; leave it away";
constexpr const char* kOneChoice = "one answer per request: leave it away or make it 1";

void read_stops(Fields& fields, GenerationRequest* request) {
  const Json* stop = fields.any("stop");
  if (stop == nullptr) return;
  const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
  if (!list.is_array()) {
    throw bad_field("stop", "invalid_type", "stop is neither a string nor an array of strings");
  }
  if (list.size() > kMaxStops) {
    throw bad_field("stop", "invalid_value", "stop has {} strings; at most {} are taken",
                    list.size(), kMaxStops);
  }
  for (const Json& item : list) {
    if (!item.is_string()) {
      throw bad_field("stop", "invalid_type", "stop has an element that is not a string");
    }
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxStopBytes) {
      throw bad_field("stop", "invalid_value", "stop has a string of {} bytes; 1 to {} are taken",
                      text.size(), kMaxStopBytes);
    }
    request->stop.push_back(text);
  }
}

// A seed of -1 means: any, as with other servers.
void read_seed(Fields& fields, GenerationRequest* request) {
  const Json* seed = fields.any("seed");
  if (seed == nullptr) return;
  if (seed->is_number_unsigned()) {
    request->seed = seed->get<uint64_t>();
    return;
  }
  const auto value = fields.integer("seed", std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<int64_t>::max());
  if (*value != -1) request->seed = static_cast<uint64_t>(*value);
}

void read_length(Fields& fields, GenerationRequest* request) {
  const auto read = [&](const char* name) {
    const auto value = fields.integer(name, -1, kMaxInt);
    if (value == 0) {
      throw bad_field(name, "invalid_value", "{} = 0 leaves nothing to generate: 1 or more, or -1",
                      name);
    }
    return value;
  };
  const std::optional<int64_t> old_name = read("max_tokens");
  const std::optional<int64_t> new_name =
      request->endpoint == Endpoint::Chat ? read("max_completion_tokens") : std::nullopt;
  if (old_name && new_name && *old_name != *new_name) {
    throw bad_field("max_completion_tokens", "invalid_value",
                    "max_tokens = {} and max_completion_tokens = {} contradict each other",
                    *old_name, *new_name);
  }
  request->max_tokens = new_name.value_or(old_name.value_or(-1));
}

void read_sampling(Fields& fields, GenerationRequest* request) {
  request->temperature = fields.number("temperature", 0, kMax);
  request->top_p = fields.number("top_p", 0, 1);
  if (request->top_p == 0.0) {
    throw bad_field("top_p", "invalid_value",
                    "top_p = 0 leaves no token: above 0, or temperature 0");
  }
  request->min_p = fields.number("min_p", 0, 1);
  request->top_k = fields.integer("top_k", -1, kMaxInt);
  if (request->top_k == -1) request->top_k = 0;  // all, as with other servers
  request->presence_penalty = fields.number("presence_penalty", -kMax, kMax);
  request->frequency_penalty = fields.number("frequency_penalty", -kMax, kMax);
  request->repetition_penalty = fields.number("repetition_penalty", 0, kMax);
  const std::optional<double> other_name = fields.number("repeat_penalty", 0, kMax);
  if (!request->repetition_penalty) request->repetition_penalty = other_name;
  if (request->repetition_penalty == 0.0) {
    throw bad_field("repetition_penalty", "invalid_value", "repetition_penalty must be above 0");
  }
  read_seed(fields, request);
}

void read_stream(Fields& fields, GenerationRequest* request) {
  request->stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.any("stream_options");
  if (options == nullptr) return;
  if (!request->stream) {
    throw bad_field("stream_options", "invalid_value", "stream_options needs stream = true");
  }
  Fields inner(*options, "stream_options");
  request->include_usage = inner.boolean("include_usage").value_or(false);
  inner.refuse_unless("include_obfuscation", {false}, "replies are not padded");
  inner.finish();
}

void read_common(Fields& fields, GenerationRequest* request) {
  request->model = fields.string("model").value_or("");
  read_sampling(fields, request);
  read_stops(fields, request);
  read_length(fields, request);
  read_stream(fields, request);
  request->ignore_end = fields.boolean("ignore_eos").value_or(false);
  fields.refuse_unless("n", {1}, kOneChoice);
  fields.refuse_unless("logit_bias", {Json::object()}, "leave it away");
  fields.pass_over({"user", "metadata", "store", "service_tier", "safety_identifier",
                    "prompt_cache_key", "prompt_cache_retention"});
}

std::string read_content(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    throw bad_field(path, "invalid_type", "{} is neither a string nor an array of parts", path);
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = part.string("type").value_or("");
    if (type != "text") {
      throw bad_field(part.path("type"), "unsupported_parameter",
                      "{} is '{}': this model reads text alone", part.path("type"), type);
    }
    const std::optional<std::string> piece = part.string("text");
    if (!piece) throw bad_field(part.path("text"), "missing_parameter", "a text part has no text");
    part.finish();
    text += *piece;
  }
  return text;
}

text::ChatMessage read_message(const Json& json, const std::string& path) {
  Fields fields(json, path);
  text::ChatMessage message;
  message.role = fields.string("role").value_or("");
  if (message.role == "developer") message.role = "system";  // the newer name
  if (message.role == "tool" || message.role == "function") {
    throw bad_field(fields.path("role"), "unsupported_parameter", "{} is '{}': {}",
                    fields.path("role"), message.role, kNoTools);
  }
  if (message.role != "system" && message.role != "user" && message.role != "assistant") {
    throw bad_field(fields.path("role"), "invalid_value",
                    "{} is '{}'; known are system, developer, user and assistant",
                    fields.path("role"), message.role);
  }
  const Json* content = fields.any("content");
  if (content != nullptr) {
    message.content = read_content(*content, fields.path("content"));
  } else if (message.role != "assistant") {
    throw bad_field(fields.path("content"), "missing_parameter", "{} is missing",
                    fields.path("content"));
  }
  message.name = fields.string("name").value_or("");
  if (message.role == "assistant") {
    message.reasoning_content = fields.string("reasoning_content");
    const std::optional<std::string> other_name = fields.string("reasoning");
    if (!message.reasoning_content) message.reasoning_content = other_name;
    fields.refuse_unless("tool_calls", {Json::array()}, kNoTools);
    fields.refuse_unless("function_call", {}, kNoTools);
    fields.refuse_unless("audio", {}, "this model reads text alone");
    fields.refuse_unless("refusal", {""}, "leave it away");
    fields.refuse_unless("annotations", {Json::array()}, "leave it away");
  }
  fields.finish();
  return message;
}

void read_template_variables(Fields& fields, GenerationRequest* request) {
  const Json* given = fields.any("chat_template_kwargs");
  if (given == nullptr) return;
  Fields inner(*given, "chat_template_kwargs");
  request->chat.enable_thinking = inner.boolean("enable_thinking");
  request->chat.reasoning_effort = inner.string("reasoning_effort");
  request->chat.preserve_thinking = inner.boolean("preserve_thinking");
  Json others = Json::object();
  for (const auto& [name, value] : given->items()) {
    if (name == "enable_thinking" || name == "reasoning_effort" || name == "preserve_thinking" ||
        value.is_null()) {
      continue;
    }
    for (const char* reserved : {"messages", "tools", "documents", "add_generation_prompt",
                                 "bos_token", "eos_token", "pad_token"}) {
      if (name == reserved) {
        throw bad_field(inner.path(name), "invalid_value", "{} is the server's own to set",
                        inner.path(name));
      }
    }
    request->variables.push_back(name);
    others[name] = value;
  }
  if (others.empty()) return;
  request->chat.variables_json = others.dump();
  if (request->chat.variables_json.size() > kMaxVariablesBytes) {
    throw bad_field("chat_template_kwargs", "invalid_value",
                    "chat_template_kwargs has {} bytes; at most {} are taken",
                    request->chat.variables_json.size(), kMaxVariablesBytes);
  }
}

void read_chat(Fields& fields, GenerationRequest* request) {
  const Json* messages = fields.any("messages");
  if (messages == nullptr) {
    throw bad_field("messages", "missing_parameter", "messages is missing");
  }
  if (!messages->is_array() || messages->empty()) {
    throw bad_field("messages", "invalid_value", "messages is not an array with a message in it");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    request->chat.messages.push_back(read_message((*messages)[i], fmt::format("messages[{}]", i)));
  }
  request->effort = fields.string("reasoning_effort");
  read_template_variables(fields, request);

  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, kMaxLogprobs);
  if (top && *top > 0 && !logprobs) {
    throw bad_field("top_logprobs", "invalid_value", "top_logprobs needs logprobs = true");
  }
  if (logprobs) request->n_logprobs = static_cast<int>(top.value_or(0));

  fields.refuse_unless("tools", {Json::array()}, kNoTools);
  fields.refuse_unless("tool_choice", {"none", "auto"}, kNoTools);
  fields.refuse_unless("functions", {Json::array()}, kNoTools);
  fields.refuse_unless("function_call", {"none", "auto"}, kNoTools);
  fields.pass_over({"parallel_tool_calls"});  // says nothing without tools
  fields.refuse_unless("response_format", {Json{{"type", "text"}}},
                       "constrained output comes with a later version; leave it away");
  fields.refuse_unless("modalities", {Json::array({"text"})}, "this model writes text alone");
  fields.refuse_unless("audio", {}, "this model writes text alone");
  fields.refuse_unless("prediction", {}, "leave it away");
  fields.refuse_unless("web_search_options", {}, "leave it away");
  fields.refuse_unless("verbosity", {"medium"}, "leave it away");
}

void read_completion(Fields& fields, GenerationRequest* request) {
  const Json* prompt = fields.any("prompt");
  if (prompt == nullptr) throw bad_field("prompt", "missing_parameter", "prompt is missing");
  if (prompt->is_array() && prompt->size() == 1 &&
      (prompt->front().is_string() || prompt->front().is_array())) {
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    request->prompt = prompt->get<std::string>();
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    request->tokens.emplace();
    for (const Json& id : *prompt) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kMaxInt)) {
        throw bad_field("prompt", "invalid_type", "prompt has an element that is no token id");
      }
      request->tokens->push_back(id.get<int32_t>());
    }
  } else if (prompt->is_array() && prompt->size() > 1) {
    throw bad_field("prompt", "unsupported_parameter",
                    "prompt has {} prompts: send one per request", prompt->size());
  } else {
    throw bad_field("prompt", "invalid_type",
                    "prompt is neither a string nor an array of token ids");
  }
  const std::optional<int64_t> logprobs = fields.integer("logprobs", 0, kMaxLogprobs);
  if (logprobs) request->n_logprobs = static_cast<int>(*logprobs);
  fields.refuse_unless("echo", {false}, "the prompt is not repeated; leave it away");
  fields.refuse_unless("best_of", {1}, kOneChoice);
  fields.refuse_unless("suffix", {""}, "text is continued, not inserted; leave it away");
}

}  // namespace

GenerationRequest parse_request(Endpoint endpoint, std::string_view body) {
  const Json json = parse_body(body);
  Fields fields(json, "");
  GenerationRequest request;
  request.endpoint = endpoint;
  if (endpoint == Endpoint::Chat) {
    read_chat(fields, &request);
  } else {
    read_completion(fields, &request);
  }
  read_common(fields, &request);
  fields.finish();
  return request;
}

}  // namespace penstock::server
