#include "text/chat_template.h"

#include <utility>

#include "base/error.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/tokenizer.h"

namespace penstock::text {

using jinja::Dict;
using jinja::List;
using jinja::Origin;
using jinja::Value;

struct ChatTemplate::Program {
  jinja::Ast ast;
  SpecialTexts special;
};

namespace {

// In the engine's own language, so that one renderer serves all.
constexpr std::string_view kChatml =
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

Value user_text(std::string_view text) {
  return Value::text(text, Origin::User);
}

void put(Dict& dict, std::string_view key, Value value) {
  dict.entries.emplace_back(Value::text(key), std::move(value));
}

Value arguments_value(const ToolCall& call) {
  try {
    Value value = jinja::parse_json(call.arguments_json, Origin::User, "tool call arguments");
    if (value.as_dict()) return value;
  } catch (const Error&) {
    // Models do write arguments that are not JSON; the history must still render.
  }
  return user_text(call.arguments_json);
}

Value tool_call_value(const ToolCall& call) {
  Dict function;
  put(function, "name", user_text(call.name));
  put(function, "arguments", arguments_value(call));
  Dict out;
  if (!call.id.empty()) put(out, "id", user_text(call.id));
  put(out, "type", Value::text("function"));
  put(out, "function", Value(std::move(function)));
  return Value(std::move(out));
}

Value message_value(const ChatMessage& message) {
  Dict out;
  put(out, "role", user_text(message.role));
  put(out, "content",
      message.content_json
          ? jinja::parse_json(*message.content_json, Origin::User, "message content")
          : user_text(message.content));
  if (message.reasoning_content) {
    put(out, "reasoning_content", user_text(*message.reasoning_content));
  }
  if (!message.tool_calls.empty()) {
    List calls;
    for (const ToolCall& call : message.tool_calls) calls.items.push_back(tool_call_value(call));
    put(out, "tool_calls", Value(std::move(calls)));
  }
  if (!message.tool_call_id.empty()) put(out, "tool_call_id", user_text(message.tool_call_id));
  if (!message.name.empty()) put(out, "name", user_text(message.name));
  return Value(std::move(out));
}

void put_object(Dict& dict, std::string_view json, std::string_view what) {
  const Value value = jinja::parse_json(json, Origin::User, what);
  if (!value.as_dict()) fail(ErrorKind::Usage, "{}: expected a JSON object", what);
  for (const auto& [key, item] : value.as_dict()->entries) dict.set(key, item);
}

Dict request_variables(const ChatRequest& request) {
  Dict out;
  List messages;
  for (const ChatMessage& message : request.messages) {
    messages.items.push_back(message_value(message));
  }
  put(out, "messages", Value(std::move(messages)));
  Value tools = jinja::None{};
  if (!request.tools_json.empty()) {
    tools = jinja::parse_json(request.tools_json, Origin::User, "tools");
    if (tools.as_list() && tools.as_list()->items.empty()) tools = jinja::None{};
  }
  put(out, "tools", std::move(tools));
  put(out, "documents", jinja::None{});
  put(out, "add_generation_prompt", Value(request.add_generation_prompt));
  if (request.enable_thinking) put(out, "enable_thinking", Value(*request.enable_thinking));
  if (request.reasoning_effort) put(out, "reasoning_effort", user_text(*request.reasoning_effort));
  if (request.preserve_thinking) put(out, "preserve_thinking", Value(*request.preserve_thinking));
  if (!request.variables_json.empty())
    put_object(out, request.variables_json, "template variables");
  return out;
}

std::vector<Piece> to_pieces(const jinja::Text& text) {
  std::vector<Piece> pieces;
  size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    pieces.push_back(
        {std::string(text.view().substr(begin, run.end - begin)), run.origin == Origin::User});
    begin = run.end;
  }
  return pieces;
}

}  // namespace

ChatTemplate ChatTemplate::from_source(std::string_view source, SpecialTexts special) {
  auto program = std::make_shared<Program>();
  program->ast = jinja::parse_template(source);
  program->special = std::move(special);
  return {Format::Jinja, std::move(program)};
}

ChatTemplate ChatTemplate::chatml() {
  return from_source(kChatml);
}

ChatTemplate ChatTemplate::raw() {
  return {Format::Raw, nullptr};
}

namespace {

std::vector<Piece> run(const jinja::Ast& ast, const SpecialTexts& special, Dict variables,
                       std::optional<std::time_t> now) {
  // Defaults of the template's own; a variable of the request of the same name wins.
  const std::pair<std::string_view, const std::string&> texts[] = {
      {"bos_token", special.bos}, {"eos_token", special.eos}, {"pad_token", special.pad}};
  for (const auto& [name, text] : texts) {
    if (!variables.find(name) && !text.empty()) put(variables, name, Value::text(text));
  }
  jinja::Limits limits;
  // Room in proportion to the conversation: templates cut, join and search what they are given.
  for (const auto& [key, value] : variables.entries) {
    limits.bytes += 64 * std::min<uint64_t>(value.extent().weight, 1ULL << 40);
    limits.output += 4 * std::min<uint64_t>(value.extent().weight, 1ULL << 40);
  }
  return to_pieces(jinja::Interpreter(ast, limits, now).render(variables));
}

}  // namespace

std::vector<Piece> ChatTemplate::render(const ChatRequest& request,
                                        std::optional<std::time_t> now) const {
  if (format_ == Format::Jinja) {
    return run(program_->ast, program_->special, request_variables(request), now);
  }
  if (!request.tools_json.empty()) {
    fail(ErrorKind::Usage, "--chat-format raw has no place for tools");
  }
  std::vector<Piece> pieces;
  for (const ChatMessage& message : request.messages) {
    if (!message.content.empty()) pieces.push_back({message.content, true});
  }
  return pieces;
}

std::vector<Piece> ChatTemplate::render_variables(std::string_view json,
                                                  std::optional<std::time_t> now) const {
  if (format_ != Format::Jinja) fail(ErrorKind::Usage, "--chat-format raw takes no variables");
  Dict variables;
  put_object(variables, json, "template variables");
  return run(program_->ast, program_->special, std::move(variables), now);
}

SpecialTexts special_texts(const Tokenizer& tokenizer) {
  const auto text = [&](std::optional<int32_t> id) {
    return id ? std::string(tokenizer.token_text(*id)) : std::string();
  };
  return {text(tokenizer.bos()), text(tokenizer.eos()), text(tokenizer.pad())};
}

std::string join_pieces(const std::vector<Piece>& pieces) {
  std::string out;
  for (const Piece& piece : pieces) out += piece.text;
  return out;
}

}  // namespace penstock::text
