// What the server answers, over real sockets and around a tiny model.
#include "server/server.h"

#include <gtest/gtest.h>

#include <cmath>

#include "serving.h"
#include "text/unicode.h"

namespace penstock::server::test {
namespace {

// The parts of a streamed chat, joined, and what the chunks must be like.
struct Joined {
  std::string content, reasoning, finish;
  Json usage;
  std::vector<Json> logprobs;
};

Joined join_chat(const std::vector<std::string>& events, bool with_usage = false) {
  Joined joined;
  EXPECT_GE(events.size(), 3U);
  if (events.empty()) return joined;
  EXPECT_EQ(events.back(), "[DONE]");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(text::replace_invalid_utf8(events[i]), events[i]);
    const Json chunk = Json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], Json::parse(events[0])["id"]);
    EXPECT_EQ(chunk.contains("usage"), with_usage);
    if (with_usage && i + 2 == events.size()) {
      EXPECT_TRUE(chunk["choices"].empty());
      joined.usage = chunk["usage"];
      continue;
    }
    EXPECT_EQ(chunk["choices"].size(), 1U);
    const Json& choice = chunk["choices"][0];
    const Json& delta = choice["delta"];
    EXPECT_EQ(choice["index"], 0);
    EXPECT_EQ(delta.contains("role"), i == 0);
    joined.content += delta.value("content", "");
    joined.reasoning += delta.value("reasoning_content", "");
    if (!choice["logprobs"].is_null()) {
      for (const Json& token : choice["logprobs"]["content"]) joined.logprobs.push_back(token);
    }
    if (!choice["finish_reason"].is_null()) {
      EXPECT_TRUE(joined.finish.empty());
      joined.finish = choice["finish_reason"];
      EXPECT_TRUE(delta.empty());
    }
  }
  return joined;
}

TEST(Serving, AnswersAndStreamsTheSame) {
  Serving serving;
  serving.wait_until_ready();
  int with_characters = 0;
  for (const int seed : {1, 2, 3, 4, 5}) {
    const Json body = {
        {"messages", user("Hello")}, {"seed", seed}, {"max_tokens", 120}, {"ignore_eos", true}};
    const auto [status, whole] = serving.chat(body);
    ASSERT_EQ(status, 200) << whole;
    EXPECT_EQ(whole["object"], "chat.completion");
    EXPECT_EQ(whole["model"], "qwen3moe");
    const Json& choice = whole["choices"][0];
    EXPECT_EQ(choice["message"]["role"], "assistant");
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(whole["usage"]["completion_tokens"], 120);
    EXPECT_EQ(whole["usage"]["total_tokens"], 120 + whole["usage"]["prompt_tokens"].get<int>());

    Json streamed = body;
    streamed["stream_options"] = {{"include_usage", true}};
    const Joined joined = join_chat(serving.stream("/v1/chat/completions", streamed), true);
    EXPECT_EQ(joined.content, choice["message"]["content"]);
    EXPECT_EQ(joined.reasoning, choice["message"].value("reasoning_content", ""));
    EXPECT_EQ(joined.finish, "length");
    EXPECT_EQ(joined.usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    EXPECT_EQ(joined.usage["completion_tokens"], 120);
    for (const char c : joined.content) with_characters += static_cast<unsigned char>(c) >= 0xC2;
  }
  EXPECT_GT(with_characters, 20);  // characters of several bytes did come out of several tokens
}

TEST(Serving, SaysTheSameTokensAsTheEngine) {
  const penstock::testing::TemporaryFolder folder;
  engine::RuntimeOptions options;
  options.model_path = write_model(folder.path());
  options.n_ctx = 512;
  options.threads = 1;
  const auto runtime = engine::Runtime::open(options, nullptr);
  Serving serving;
  serving.wait_until_ready();
  for (const char* prompt : {"In the beginning", "def main():", "12 + 30 ="}) {
    engine::Session session(*runtime);
    engine::SamplerOptions sampling = runtime->default_sampling();
    sampling.seed = 77;
    engine::Sampler sampler(sampling);
    const std::vector<int32_t> ids = runtime->tokenizer().encode(prompt, false);
    sampler.see_prompt(ids);
    session.prefill(ids);
    engine::GenerateOptions generate;
    generate.max_tokens = 60;
    const auto expected =
        engine::generate(session, sampler, generate, [](const engine::Output&) {});
    const auto [status, reply] =
        serving.complete({{"prompt", prompt}, {"seed", 77}, {"max_tokens", 60}});
    ASSERT_EQ(status, 200) << reply;
    EXPECT_EQ(reply["choices"][0]["text"], expected.text);
    EXPECT_EQ(reply["usage"]["completion_tokens"], expected.tokens.size());
    const auto by_ids =
        serving.complete({{"prompt", ids}, {"seed", 77}, {"max_tokens", 60}}).second;
    EXPECT_EQ(by_ids["choices"][0]["text"], expected.text);
  }
}

TEST(Serving, LogProbabilitiesBelongToTheTextShown) {
  Serving serving;
  serving.wait_until_ready();
  const Json body = {{"messages", user("Hello")}, {"seed", 9},         {"max_tokens", 80},
                     {"logprobs", true},          {"top_logprobs", 4}, {"temperature", 2},
                     {"ignore_eos", true}};
  const auto [status, whole] = serving.chat(body);
  ASSERT_EQ(status, 200) << whole;
  const Json& content = whole["choices"][0]["logprobs"]["content"];
  std::string bytes;
  for (const Json& token : content) {
    EXPECT_LE(token["logprob"].get<double>(), 0);
    ASSERT_EQ(token["top_logprobs"].size(), 4U);
    double sum = 0;
    for (const Json& top : token["top_logprobs"]) sum += std::exp(top["logprob"].get<double>());
    EXPECT_LE(sum, 1.0001);
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][3]["logprob"]);
    const auto& type = token["bytes"];
    for (const Json& byte : type) bytes += static_cast<char>(byte.get<int>());
  }
  EXPECT_GT(content.size(), 60U);
  // Control tokens have a name but show nothing.
  std::string shown = bytes;
  for (size_t at; (at = shown.find("<|")) != std::string::npos;) {
    shown.erase(at, shown.find("|>", at) + 2 - at);
  }
  EXPECT_EQ(text::replace_invalid_utf8(shown), whole["choices"][0]["message"]["content"]);

  const Joined joined = join_chat(serving.stream("/v1/chat/completions", body));
  EXPECT_EQ(Json(joined.logprobs), content);

  const Json old = serving
                       .complete({{"prompt", "Hello"},
                                  {"seed", 9},
                                  {"max_tokens", 20},
                                  {"logprobs", 2},
                                  {"ignore_eos", true}})
                       .second["choices"][0]["logprobs"];
  EXPECT_EQ(old["tokens"].size(), 20U);
  EXPECT_EQ(old["token_logprobs"].size(), 20U);
  EXPECT_EQ(old["text_offset"][0], 0);
  EXPECT_GE(old["top_logprobs"][0].size(), 1U);
}

TEST(Serving, StopStringsNeverAppear) {
  Serving serving;
  serving.wait_until_ready();
  const Json body = {{"prompt", "Hello"}, {"seed", 4}, {"max_tokens", 100}, {"ignore_eos", true}};
  const std::string free = serving.complete(body).second["choices"][0]["text"];
  // A stop string cut out of the middle of what would come, over several tokens.
  size_t at = free.size() / 2;
  while ((static_cast<unsigned char>(free[at]) & 0xC0) == 0x80) ++at;
  size_t end = at + 5;
  while ((static_cast<unsigned char>(free[end]) & 0xC0) == 0x80) ++end;
  const std::string stop = free.substr(at, end - at);
  Json stopped = body;
  stopped["stop"] = {stop, "never to be seen"};
  stopped["logprobs"] = 0;
  const Json choice = serving.complete(stopped).second["choices"][0];
  EXPECT_EQ(choice["text"], free.substr(0, free.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
  std::string streamed;
  for (const std::string& event : serving.stream("/v1/completions", stopped)) {
    if (event != "[DONE]") streamed += Json::parse(event)["choices"][0]["text"];
  }
  EXPECT_EQ(streamed, choice["text"]);
}

TEST(Serving, ReasoningHasItsOwnField) {
  Serving serving;
  serving.wait_until_ready();
  const auto prompt_tokens = [&](const Json& more) {
    Json body = {{"messages", user("Hello")}, {"max_tokens", 8}, {"seed", 3}};
    body.update(more);
    const auto [status, reply] = serving.chat(body);
    EXPECT_EQ(status, 200) << reply;
    const Json& message = reply["choices"][0]["message"];
    return std::pair(reply["usage"]["prompt_tokens"].get<int>(),
                     message.contains("reasoning_content") && message["content"] == "");
  };
  const auto off = prompt_tokens({{"reasoning_effort", "none"}});
  const auto on = prompt_tokens({{"chat_template_kwargs", {{"enable_thinking", true}}}});
  const auto high = prompt_tokens({{"reasoning_effort", "high"}});
  EXPECT_FALSE(off.second);
  EXPECT_TRUE(on.second);
  EXPECT_TRUE(high.second);
  EXPECT_GT(on.first, off.first);
  EXPECT_GT(high.first, on.first);  // the effort's name is in the prompt
  EXPECT_EQ(prompt_tokens({{"chat_template_kwargs",
                            {{"enable_thinking", true}, {"reasoning_effort", "high"}}}})
                .first,
            high.first);
  EXPECT_GT(prompt_tokens({{"chat_template_kwargs", {{"tone", "dry"}}}}).first, off.first);

  const auto refused = [&](const Json& more) {
    Json body = {{"messages", user("Hello")}};
    body.update(more);
    const auto reply = serving.chat(body);
    EXPECT_EQ(reply.first, 400);
    return reply.second["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(refused({{"chat_template_kwargs", {{"mood", 1}}}}), "chat_template_kwargs.mood");
  EXPECT_EQ(refused({{"reasoning_effort", "colossal"}}), "reasoning_effort");
  EXPECT_EQ(
      refused({{"reasoning_effort", "low"}, {"chat_template_kwargs", {{"enable_thinking", true}}}}),
      "reasoning_effort");

  Json body = {
      {"messages", user("Hello")}, {"max_tokens", 30}, {"seed", 3}, {"reasoning_effort", "high"}};
  const Json whole = serving.chat(body).second;
  const Joined joined = join_chat(serving.stream("/v1/chat/completions", body));
  EXPECT_EQ(joined.reasoning, whole["choices"][0]["message"]["reasoning_content"]);
}

TEST(Serving, UserTextStaysText) {
  constexpr int kControl = 3;  // GGUF's token type
  Serving serving;
  serving.wait_until_ready();
  const auto n_prompt = [](const std::pair<int, Json>& reply) {
    EXPECT_EQ(reply.first, 200) << reply.second;
    return reply.second["usage"]["prompt_tokens"].get<int>();
  };
  const auto chat = [&](const std::string& role, const Json& content) {
    const Json message = {{"role", role}, {"content", content}};
    const Json question = {{"role", "user"}, {"content", "a"}};
    return n_prompt(serving.chat({{"messages", {message, question}}, {"max_tokens", 1}}));
  };
  const auto complete = [&](const Json& prompt) {
    return n_prompt(serving.complete({{"prompt", prompt}, {"max_tokens", 1}}));
  };
  const surgery::SynthVocabulary vocabulary = surgery::make_vocabulary("qwen35", 512);
  int n_control = 0;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] != kControl) continue;
    ++n_control;
    const std::string& name = vocabulary.tokens[id];
    // As a control token it would be one more; as text it is many.
    EXPECT_EQ(complete(Json::array({id})), 1);
    EXPECT_GE(complete(name), 5) << name;
    EXPECT_EQ(complete("a" + name), complete("a") + complete(name)) << name;
    for (const char* role : {"user", "system", "assistant"}) {
      EXPECT_GE(chat(role, "a" + name), chat(role, "a") + 5) << role << " " << name;
    }
    const Json part = {{"type", "text"}, {"text", "a" + name}};
    EXPECT_GE(chat("user", Json::array({part})), chat("user", "a") + 5) << name;
  }
  EXPECT_GE(n_control, 3);
}

TEST(Serving, ReusesAConversation) {
  Serving serving;
  serving.wait_until_ready();
  Json messages = user("Tell me about rivers and mills, please.");
  const Json first = serving.chat({{"messages", messages}, {"max_tokens", 5}, {"seed", 1}}).second;
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const Json again = serving.chat({{"messages", messages}, {"max_tokens", 5}, {"seed", 1}}).second;
  EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"], 20);
  EXPECT_EQ(again["choices"], first["choices"]);
}

TEST(Serving, ContextOverflowIsRefusedBeforeAnything) {
  Serving serving;
  serving.wait_until_ready();
  std::string text;
  for (int i = 0; i < 600; ++i) text += " 7";
  for (const bool stream : {false, true}) {
    const auto [status, reply] = serving.chat({{"messages", user(text)}, {"stream", stream}});
    EXPECT_EQ(status, 400);
    EXPECT_EQ(reply["error"]["code"], "context_length_exceeded");
    EXPECT_GT(reply["error"]["n_prompt_tokens"], 600);
    EXPECT_EQ(reply["error"]["n_ctx"], 512);
    EXPECT_EQ(reply["error"]["param"], "messages");
  }
  // What just fits is answered, up to the end of the context.
  const std::vector<int32_t> ids(500, 10);
  const auto [status, reply] = serving.complete({{"prompt", ids}, {"ignore_eos", true}});
  EXPECT_EQ(status, 200);
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["usage"]["completion_tokens"], 13);
}

TEST(Serving, SaysWhatItIs) {
  ServingOptions setup;
  setup.server.aliases = {"house-model", "other"};
  setup.server.version = "1.2.3";
  Serving serving(setup);
  serving.wait_until_ready();
  const auto [status, list] = serving.get("/v1/models");
  EXPECT_EQ(status, 200);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "house-model");
  EXPECT_EQ(serving.get("/v1/models/other").second["id"], "house-model");
  EXPECT_EQ(code(serving.get("/v1/models/gpt-9")), "model_not_found");
  const auto wrong = serving.chat({{"model", "gpt-9"}, {"messages", user("a")}});
  EXPECT_EQ(wrong.first, 404);
  EXPECT_EQ(code(wrong), "model_not_found");
  EXPECT_EQ(serving.chat({{"model", "other"}, {"messages", user("a")}, {"max_tokens", 1}}).first,
            200);
  EXPECT_EQ(code(serving.get("/v1/nothing")), "not_found");
  const auto get = serving.get("/v1/chat/completions");
  EXPECT_EQ(get.first, 405);

  EXPECT_EQ(serving.get("/health").second["status"], "ok");
  EXPECT_EQ(serving.metric("penstock_ready"), 1);
  EXPECT_EQ(serving.metric("penstock_requests_total{outcome=\"length\"}"), 1);
  EXPECT_EQ(serving.metric("penstock_tokens_total{kind=\"completion\"}"), 1);
  EXPECT_GT(serving.metric("penstock_read_bytes_total{reason=\"prompt\"}"), 0);
  EXPECT_EQ(serving.metric("penstock_arena_slots"), 12);
  EXPECT_GT(serving.metric("penstock_memory_planned_bytes{term=\"arena\"}"), 0);
  EXPECT_GT(serving.metric("penstock_memory_peak_bytes"), 0);
  EXPECT_EQ(serving.metric("penstock_lossy_option{option=\"alias_experts\"}"), 0);
  EXPECT_EQ(serving.metric(
                "penstock_http_responses_total{endpoint=\"/v1/chat/completions\",status=\"404\"}"),
            1);
}

}  // namespace
}  // namespace penstock::server::test
