#include "engine/chat_prompt.h"

#include <algorithm>

#include "base/error.h"
#include "text/reasoning.h"

namespace penstock::engine {

ChatFormat open_chat_format(const Runtime& runtime, std::string_view choice) {
  if (choice == "raw") return {text::ChatTemplate::raw(), {}, {}};
  if (choice == "chatml") return {text::ChatTemplate::chatml(), {}, {}};
  std::string source(
      runtime.file().metadata().get_string("tokenizer.chat_template", std::string_view()));
  if (source.empty()) {
    fail(ErrorKind::Usage,
         "the file has no chat template: choose one with --chat-format chatml or raw");
  }
  const auto has = [&](const char* name) { return source.find(name) != std::string::npos; };
  const ReasoningSwitches switches{has("enable_thinking"), has("reasoning_effort"), has("xhigh")};
  return {text::ChatTemplate::from_source(source, text::special_texts(runtime.tokenizer())),
          std::move(source), switches};
}

void set_reasoning(text::ChatRequest* request, const ChatFormat& format, std::string_view effort) {
  const ReasoningSwitches& switches = format.reasoning;
  if (!switches.thinking) {
    fail(ErrorKind::Usage, "the chat format in use has no switch for reasoning");
  }
  if (!switches.effort && (effort == "low" || effort == "medium")) {
    fail(ErrorKind::Usage,
         "this model's template knows reasoning on (high) and off, but no effort '{}'", effort);
  }
  request->enable_thinking = effort != "off";
  if (effort == "off" || !switches.effort) return;
  request->reasoning_effort = effort == "high" && switches.xhigh ? "xhigh" : effort;
}

ChatPrompt encode_chat(const ChatFormat& format, const text::Tokenizer& tokenizer,
                       text::ChatRequest request) {
  ChatPrompt prompt;
  request.add_generation_prompt = true;
  const std::vector<text::Piece> full = format.renderer.render(request);
  prompt.ids = tokenizer.encode_pieces(full);
  tokenizer.prepend_bos(prompt.ids);
  prompt.in_reasoning = text::ends_in_reasoning(text::join_pieces(full));

  request.add_generation_prompt = false;
  std::vector<int32_t> closed = tokenizer.encode_pieces(format.renderer.render(request));
  tokenizer.prepend_bos(closed);
  const auto [end, unused] = std::mismatch(
      closed.begin(),
      closed.begin() + static_cast<ptrdiff_t>(std::min(closed.size(), prompt.ids.size())),
      prompt.ids.begin());
  prompt.n_stable = static_cast<size_t>(end - closed.begin());
  return prompt;
}

}  // namespace penstock::engine
