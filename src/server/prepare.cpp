#include "server/prepare.h"

#include <random>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace penstock::server {
namespace {

uint64_t random_number() {
  thread_local std::mt19937_64 random{(uint64_t{std::random_device{}()} << 32) |
                                      std::random_device{}()};
  return random();
}

// reasoning_effort as the API spells it to the efforts of engine::set_reasoning().
std::string effort_of(const std::string& value) {
  if (value == "none" || value == "off") return "off";
  if (value == "minimal" || value == "low") return "low";
  if (value == "medium" || value == "high") return value;
  if (value == "xhigh") return "high";
  throw bad_field("reasoning_effort", "invalid_value",
                  "reasoning_effort is '{}'; known are none, minimal, low, medium, high and xhigh",
                  value);
}

void apply_effort(const GenerationRequest& request, const Model& model, text::ChatRequest* chat) {
  const bool given = chat->enable_thinking || chat->reasoning_effort;
  if (request.effort && given) {
    throw bad_field("reasoning_effort", "invalid_value",
                    "reasoning_effort and chat_template_kwargs say the same thing: use one");
  }
  try {
    if (request.effort) {
      engine::set_reasoning(chat, *model.chat, effort_of(*request.effort));
    } else if (!given && !model.reasoning.empty()) {
      engine::set_reasoning(chat, *model.chat, model.reasoning);
    }
  } catch (const Error& error) {
    throw bad_field("reasoning_effort", "unsupported_by_model", "{}", error.what());
  }
}

// Variables that the template never looks at would be ignored without a word.
void check_variables(const GenerationRequest& request, const Model& model) {
  const auto check = [&](bool given, const std::string& name) {
    if (!given || model.chat->source.find(name) != std::string::npos) return;
    throw bad_field("chat_template_kwargs." + name, "unsupported_by_model",
                    "this model's chat template has no variable '{}'", name);
  };
  check(request.chat.enable_thinking.has_value(), "enable_thinking");
  check(request.chat.reasoning_effort.has_value(), "reasoning_effort");
  check(request.chat.preserve_thinking.has_value(), "preserve_thinking");
  for (const std::string& name : request.variables) check(true, name);
}

engine::ChatPrompt encode_messages(const GenerationRequest& request, const Model& model) {
  if (!model.chat) throw ApiError(400, "no_chat", model.no_chat);
  check_variables(request, model);
  text::ChatRequest chat = request.chat;
  apply_effort(request, model, &chat);
  try {
    return engine::encode_chat(*model.chat, *model.tokenizer, std::move(chat));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Usage) throw from_engine(error);
    throw bad_field("messages", "invalid_value", "the chat template refuses this conversation: {}",
                    error.what());
  }
}

// A plain prompt's control tokens stay text, as in messages.
engine::ChatPrompt encode_prompt(const GenerationRequest& request, const Model& model) {
  engine::ChatPrompt prompt;
  if (request.tokens) {
    prompt.ids = *request.tokens;
    for (const int32_t id : prompt.ids) {
      if (id >= model.n_vocab) {
        throw bad_field("prompt", "invalid_value", "token id {} is outside the vocabulary of {}",
                        id, model.n_vocab);
      }
    }
  } else if (model.tokenizer == nullptr) {
    throw bad_field("prompt", "unsupported_by_model",
                    "the model file has no tokenizer: send an array of token ids");
  } else {
    prompt.ids = model.tokenizer->encode(request.prompt, false);
    model.tokenizer->prepend_bos(prompt.ids);
  }
  if (prompt.ids.empty()) {
    throw bad_field("prompt", "invalid_value", "an empty prompt has no next token");
  }
  prompt.n_stable = prompt.ids.size();
  return prompt;
}

engine::SamplerOptions sampling_of(const GenerationRequest& request, const Model& model) {
  const auto set = [](float* to, const std::optional<double>& from) {
    if (from) *to = static_cast<float>(*from);
  };
  engine::SamplerOptions sampling = model.sampling;
  set(&sampling.temperature, request.temperature);
  set(&sampling.top_p, request.top_p);
  set(&sampling.min_p, request.min_p);
  set(&sampling.repetition_penalty, request.repetition_penalty);
  set(&sampling.presence_penalty, request.presence_penalty);
  set(&sampling.frequency_penalty, request.frequency_penalty);
  if (request.top_k) sampling.top_k = static_cast<int>(*request.top_k);
  sampling.seed = request.seed ? *request.seed : random_number();
  try {
    engine::Sampler check(sampling);  // after rounding to float
  } catch (const Error& error) {
    throw ApiError(400, "invalid_value", error.what());
  }
  return sampling;
}

}  // namespace

Prepared prepare(const GenerationRequest& request, const Model& model,
                 const ServerOptions& options) {
  if (!model.is_called(request.model)) {
    throw ApiError(404, "model_not_found",
                   fmt::format("there is no model '{}' here: this server offers '{}' (another name "
                               "for it: penstock serve --alias NAME)",
                               request.model, model.id))
        .param("model");
  }
  const bool chat = request.endpoint == Endpoint::Chat;
  engine::ChatPrompt prompt =
      chat ? encode_messages(request, model) : encode_prompt(request, model);
  const auto n_prompt = static_cast<int64_t>(prompt.ids.size());
  if (n_prompt > model.n_ctx) {
    throw bad_field(chat ? "messages" : "prompt", "context_length_exceeded",
                    "the prompt has {} tokens, the context {}: shorten it, or start the server "
                    "with a larger --ctx",
                    n_prompt, model.n_ctx)
        .number("n_prompt_tokens", n_prompt)
        .number("n_ctx", model.n_ctx);
  }

  Prepared prepared;
  prepared.in_reasoning = prompt.in_reasoning;
  prepared.job = std::make_shared<Job>();
  Job& job = *prepared.job;
  job.id = fmt::format("{}-{:016x}", chat ? "chatcmpl" : "cmpl", random_number());
  job.prompt = std::move(prompt.ids);
  job.n_stable = prompt.n_stable;
  job.chat_template = chat;
  job.sampling = sampling_of(request, model);
  job.generate.max_tokens = request.max_tokens;
  job.generate.stop = request.stop;
  job.generate.ignore_end = request.ignore_end;
  job.generate.starts_in_reasoning = prompt.in_reasoning;
  job.generate.reasoning_budget = chat ? model.reasoning_budget : -1;
  job.generate.n_logprobs = request.n_logprobs;
  job.deadline_ns = now_ns() + static_cast<int64_t>(options.limits.request_seconds * 1e9);
  if (options.log_prompts && model.tokenizer != nullptr) {
    log::info("{}: prompt: {}", job.id, model.tokenizer->decode(job.prompt, true));
  }
  return prepared;
}

}  // namespace penstock::server
