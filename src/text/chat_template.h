// A conversation to a prompt: the model's own chat template, or one of the built-in formats.
//
//   auto chat = ChatTemplate::from_source(data.chat_template, {bos, eos});
//   ChatRequest request; request.messages = {{"user", "Hello"}};
//   auto ids = tokenizer.encode_pieces(chat.render(request));
//
// The pieces say which text came from the request: control tokens spelled there stay text.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/piece.h"

namespace penstock::text {

class Tokenizer;

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments_json;  // an object; anything that is not reaches the template as a string
};

struct ChatMessage {
  std::string role;
  std::string content;
  // If set, the content is this JSON value instead: null, or an array of parts.
  std::optional<std::string> content_json = std::nullopt;
  std::optional<std::string> reasoning_content = std::nullopt;
  std::vector<ToolCall> tool_calls = {};
  std::string tool_call_id = {};
  std::string name = {};
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::string tools_json;  // an array of tool definitions; empty = none
  bool add_generation_prompt = true;
  // Not passed to the template unless set: what a template takes for missing is its own affair.
  std::optional<bool> enable_thinking;
  std::optional<std::string> reasoning_effort;
  std::optional<bool> preserve_thinking;
  std::string variables_json;  // an object of further variables; may override the three above
};

struct SpecialTexts {
  std::string bos, eos, pad;
};

class ChatTemplate {
 public:
  // A Jinja template as found in `tokenizer.chat_template`. Throws on what it cannot parse.
  static ChatTemplate from_source(std::string_view source, SpecialTexts special = {});
  // <|im_start|>ROLE\nCONTENT<|im_end|>\n for every message.
  static ChatTemplate chatml();
  // The contents, one after the other, with nothing added.
  static ChatTemplate raw();

  // Throws penstock::Error: Usage if the template refuses the request, Format or Unsupported if the
  // template itself fails. `now` is what the template sees as the time; the present if not given.
  std::vector<Piece> render(const ChatRequest& request,
                            std::optional<std::time_t> now = std::nullopt) const;

  // Any variables, as a JSON object whose strings count as a user's. For tests and tools.
  std::vector<Piece> render_variables(std::string_view json,
                                      std::optional<std::time_t> now = std::nullopt) const;

 private:
  struct Program;
  enum class Format { Jinja, Raw };
  ChatTemplate(Format format, std::shared_ptr<const Program> program)
      : format_(format), program_(std::move(program)) {}

  Format format_;
  std::shared_ptr<const Program> program_;
};

SpecialTexts special_texts(const Tokenizer& tokenizer);
std::string join_pieces(const std::vector<Piece>& pieces);

}  // namespace penstock::text
