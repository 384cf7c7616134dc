// What requests may say: every field has an effect or a refusal that names it.
#include "server/request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/api_error.h"

namespace penstock::server::test {
namespace {

using Json = nlohmann::json;

Json chat(const Json& more = Json::object()) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
  body.update(more);
  return body;
}

GenerationRequest parse(const Json& body, Endpoint endpoint = Endpoint::Chat) {
  return parse_request(endpoint, body.dump());
}

// The error of a body as "code param", or what was accepted instead.
std::string refusal(Endpoint endpoint, const std::string& body) {
  try {
    parse_request(endpoint, body);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    const Json json = Json::parse(error.body())["error"];
    EXPECT_EQ(json["type"], "invalid_request_error");
    EXPECT_FALSE(json["message"].get<std::string>().empty());
    return json["code"].get<std::string>() + " " +
           (json["param"].is_null() ? "-" : json["param"].get<std::string>());
  }
  return "accepted";
}
std::string refusal(const Json& more) {
  return refusal(Endpoint::Chat, chat(more).dump());
}

TEST(Request, TakesWhatTheApiHas) {
  const GenerationRequest r = parse(chat({{"model", "m"},
                                          {"temperature", 0.5},
                                          {"top_p", 0.25},
                                          {"top_k", 40},
                                          {"min_p", 0.125},
                                          {"presence_penalty", -1},
                                          {"frequency_penalty", 0.5},
                                          {"repetition_penalty", 1.25},
                                          {"seed", 18446744073709551615u},
                                          {"max_completion_tokens", 7},
                                          {"stop", {"a", "bc"}},
                                          {"logprobs", true},
                                          {"top_logprobs", 3},
                                          {"stream", true},
                                          {"stream_options", {{"include_usage", true}}},
                                          {"reasoning_effort", "low"},
                                          {"n", 1},
                                          {"user", "someone"},
                                          {"tools", Json::array()},
                                          {"response_format", {{"type", "text"}}}}));
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.temperature, 0.5);
  EXPECT_EQ(r.top_p, 0.25);
  EXPECT_EQ(r.top_k, 40);
  EXPECT_EQ(r.min_p, 0.125);
  EXPECT_EQ(r.presence_penalty, -1.0);
  EXPECT_EQ(r.frequency_penalty, 0.5);
  EXPECT_EQ(r.repetition_penalty, 1.25);
  EXPECT_EQ(r.seed, 18446744073709551615u);
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(r.n_logprobs, 3);
  EXPECT_TRUE(r.stream && r.include_usage);
  EXPECT_EQ(r.effort, "low");
}

TEST(Request, NullMeansNotGiven) {
  Json body = chat();
  for (const char* name : {"model", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens",
                           "stop", "stream", "stream_options", "logprobs", "top_logprobs", "n",
                           "tools", "response_format", "whatever"}) {
    body[name] = nullptr;
  }
  const GenerationRequest r = parse(body);
  EXPECT_FALSE(r.temperature || r.top_p || r.top_k || r.min_p || r.seed);
  EXPECT_EQ(r.max_tokens, -1);
  EXPECT_EQ(r.n_logprobs, -1);
  EXPECT_TRUE(r.stop.empty());
}

TEST(Request, OtherServersWaysOfSayingNoLimit) {
  EXPECT_FALSE(parse(chat({{"seed", -1}})).seed);
  EXPECT_EQ(parse(chat({{"top_k", -1}})).top_k, 0);
  EXPECT_EQ(parse(chat({{"max_tokens", -1}})).max_tokens, -1);
  EXPECT_EQ(parse(chat({{"repeat_penalty", 1.5}})).repetition_penalty, 1.5);
  EXPECT_EQ(parse(chat({{"max_tokens", 16.0}})).max_tokens, 16);
}

TEST(Request, RefusesWhatItDoesNotDo) {
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  EXPECT_EQ(refusal({{"tools", {tool}}}), "unsupported_parameter tools");
  EXPECT_EQ(refusal({{"tool_choice", "required"}}), "unsupported_parameter tool_choice");
  EXPECT_EQ(refusal({{"functions", {{{"name", "f"}}}}}), "unsupported_parameter functions");
  EXPECT_EQ(refusal({{"response_format", {{"type", "json_object"}}}}),
            "unsupported_parameter response_format");
  EXPECT_EQ(refusal({{"n", 2}}), "unsupported_parameter n");
  EXPECT_EQ(refusal({{"logit_bias", {{"5", 1}}}}), "unsupported_parameter logit_bias");
  EXPECT_EQ(refusal({{"modalities", {"text", "audio"}}}), "unsupported_parameter modalities");
  EXPECT_EQ(refusal({{"temprature", 0.1}}), "unknown_parameter temprature");
  EXPECT_EQ(refusal({{"num_ctx", 100}}), "unknown_parameter num_ctx");
  const Json image = {{"type", "image_url"}, {"image_url", {{"url", "x"}}}};
  EXPECT_EQ(refusal({{"messages", {{{"role", "user"}, {"content", {image}}}}}}),
            "unsupported_parameter messages[0].content[0].type");
  EXPECT_EQ(refusal({{"messages", {{{"role", "tool"}, {"content", "4"}}}}}),
            "unsupported_parameter messages[0].role");
  EXPECT_EQ(refusal({{"messages", {{{"role", "user"}, {"content", "a"}, {"weight", 1}}}}}),
            "unknown_parameter messages[0].weight");
  EXPECT_EQ(refusal({{"stream", true}, {"stream_options", {{"pace", 1}}}}),
            "unknown_parameter stream_options.pace");
  EXPECT_EQ(refusal({{"chat_template_kwargs", {{"messages", {1}}}}}),
            "invalid_value chat_template_kwargs.messages");

  const auto plain = [](const Json& more) {
    Json body = {{"prompt", "a"}};
    body.update(more);
    return refusal(Endpoint::Completions, body.dump());
  };
  EXPECT_EQ(plain({{"echo", true}}), "unsupported_parameter echo");
  EXPECT_EQ(plain({{"best_of", 3}}), "unsupported_parameter best_of");
  EXPECT_EQ(plain({{"suffix", "z"}}), "unsupported_parameter suffix");
  EXPECT_EQ(plain({{"prompt", {"a", "b"}}}), "unsupported_parameter prompt");
  EXPECT_EQ(plain({{"messages", Json::array()}}), "unknown_parameter messages");
}

TEST(Request, RefusesWrongTypesAndRanges) {
  EXPECT_EQ(refusal({{"temperature", "hot"}}), "invalid_type temperature");
  EXPECT_EQ(refusal({{"temperature", -0.1}}), "invalid_value temperature");
  EXPECT_EQ(refusal({{"top_p", 0}}), "invalid_value top_p");
  EXPECT_EQ(refusal({{"top_p", 1.5}}), "invalid_value top_p");
  EXPECT_EQ(refusal({{"min_p", 2}}), "invalid_value min_p");
  EXPECT_EQ(refusal({{"top_k", 1.5}}), "invalid_type top_k");
  EXPECT_EQ(refusal({{"repetition_penalty", 0}}), "invalid_value repetition_penalty");
  EXPECT_EQ(refusal({{"max_tokens", 0}}), "invalid_value max_tokens");
  EXPECT_EQ(refusal({{"max_tokens", 5}, {"max_completion_tokens", 6}}),
            "invalid_value max_completion_tokens");
  EXPECT_EQ(refusal({{"stop", 5}}), "invalid_type stop");
  EXPECT_EQ(refusal({{"stop", {""}}}), "invalid_value stop");
  EXPECT_EQ(refusal({{"stop", std::vector<std::string>(17, "x")}}), "invalid_value stop");
  EXPECT_EQ(refusal({{"stream", 1}}), "invalid_type stream");
  EXPECT_EQ(refusal({{"stream_options", {{"include_usage", true}}}}),
            "invalid_value stream_options");
  EXPECT_EQ(refusal({{"top_logprobs", 3}}), "invalid_value top_logprobs");
  EXPECT_EQ(refusal({{"logprobs", true}, {"top_logprobs", 21}}), "invalid_value top_logprobs");
  EXPECT_EQ(refusal({{"messages", Json::array()}}), "invalid_value messages");
  EXPECT_EQ(refusal({{"messages", "Hello"}}), "invalid_value messages");
  EXPECT_EQ(refusal({{"messages", {5}}}), "invalid_type messages[0]");
  EXPECT_EQ(refusal({{"messages", {{{"role", "user"}}}}}), "missing_parameter messages[0].content");
  EXPECT_EQ(refusal({{"messages", {{{"role", "robot"}, {"content", "x"}}}}}),
            "invalid_value messages[0].role");
  EXPECT_EQ(refusal(Endpoint::Completions, "{}"), "missing_parameter prompt");
  EXPECT_EQ(refusal(Endpoint::Completions, R"({"prompt": [1, -2]})"), "invalid_type prompt");
}

TEST(Request, RefusesBodiesThatAreNoObjects) {
  for (const std::string& body :
       {std::string(), std::string("nonsense"), std::string("[1]"), std::string("\"text\""),
        std::string("{\"messages\": [}"), std::string("{\"a\": \"\xff\"}"),
        std::string(R"({"a": "\ud800"})"), std::string("{\"a\": 1e999}"), std::string(100000, '['),
        "{\"a\":" + std::string(50, '[') + std::string(50, ']') + "}"}) {
    EXPECT_EQ(refusal(Endpoint::Chat, body), "invalid_json -") << body.substr(0, 40);
  }
  // Many members must not cost their square.
  std::string many = "{\"prompt\": \"a\"";
  for (int i = 0; i < 200000; ++i) many += ",\"k" + std::to_string(i) + "\":null";
  EXPECT_EQ(refusal(Endpoint::Completions, many + "}"), "accepted");
}

TEST(Request, ReadsMessagesAsClientsSendThemBack) {
  const Json answer = {{"role", "assistant"},       {"content", "Hi"},
                       {"reasoning_content", "hm"}, {"refusal", nullptr},
                       {"tool_calls", nullptr},     {"function_call", nullptr},
                       {"annotations", nullptr},    {"audio", nullptr}};
  const Json parts = {{{"type", "text"}, {"text", "one "}}, {{"type", "text"}, {"text", "two"}}};
  const GenerationRequest r = parse({{"messages",
                                      {{{"role", "developer"}, {"content", "be brief"}},
                                       {{"role", "user"}, {"content", parts}, {"name", "ann"}},
                                       answer,
                                       {{"role", "user"}, {"content", "more"}}}}});
  ASSERT_EQ(r.chat.messages.size(), 4U);
  EXPECT_EQ(r.chat.messages[0].role, "system");
  EXPECT_EQ(r.chat.messages[1].content, "one two");
  EXPECT_EQ(r.chat.messages[1].name, "ann");
  EXPECT_EQ(r.chat.messages[2].reasoning_content, "hm");
}

TEST(Request, ReadsPromptsOfBothKinds) {
  EXPECT_EQ(parse({{"prompt", "a b"}}, Endpoint::Completions).prompt, "a b");
  EXPECT_EQ(parse({{"prompt", {"a b"}}}, Endpoint::Completions).prompt, "a b");
  const std::vector<int32_t> ids{1, 2, 3};
  EXPECT_EQ(parse({{"prompt", ids}}, Endpoint::Completions).tokens, ids);
  EXPECT_EQ(parse({{"prompt", {ids}}}, Endpoint::Completions).tokens, ids);
  EXPECT_EQ(parse({{"prompt", "a"}, {"logprobs", 2}}, Endpoint::Completions).n_logprobs, 2);
}

}  // namespace
}  // namespace penstock::server::test
