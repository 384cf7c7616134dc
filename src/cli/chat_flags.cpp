#include "cli/chat_flags.h"

#include <algorithm>

#include "base/error.h"
#include "text/reasoning.h"

namespace penstock::cli {

void ChatFlags::add_to(CLI::App& app) {
  app.add_option("--system", system_, "system message of the chat")->group("Chat");
  app.add_option("--chat-format", format_,
                 "auto (the file's template), chatml, or raw (the text as it is)")
      ->check(CLI::IsMember({"auto", "chatml", "raw"}))
      ->capture_default_str()
      ->group("Chat");
  app.add_option(
         "--reasoning", reasoning_,
         "off, low, medium, high: how much the model thinks, where its template has the switch")
      ->check(CLI::IsMember({"off", "low", "medium", "high"}))
      ->default_str("the template's own")
      ->group("Chat");
  app.add_option("--reasoning-budget", reasoning_budget_,
                 "closes the reasoning after N tokens; -1: no limit")
      ->capture_default_str()
      ->group("Chat");
}

text::ChatTemplate ChatFlags::make_template(const std::string& source,
                                            const text::Tokenizer& tokenizer) const {
  if (!reasoning_.empty() &&
      (format_ != "auto" || source.find("enable_thinking") == std::string::npos)) {
    fail(ErrorKind::Usage,
         "the chat format in use has no switch for reasoning: leave --reasoning away");
  }
  if (reasoning_ == "low" || reasoning_ == "medium") {
    if (source.find("reasoning_effort") == std::string::npos) {
      fail(ErrorKind::Usage,
           "this model's template knows reasoning on and off but no effort: use --reasoning off or "
           "high, or --reasoning-budget N");
    }
  }
  if (format_ == "raw") return text::ChatTemplate::raw();
  if (format_ == "chatml") return text::ChatTemplate::chatml();
  if (source.empty()) {
    fail(ErrorKind::Usage,
         "the file has no chat template: choose one with --chat-format chatml or raw");
  }
  return text::ChatTemplate::from_source(source, text::special_texts(tokenizer));
}

text::ChatRequest ChatFlags::start(const std::string& source) const {
  text::ChatRequest request;
  if (!system_.empty()) request.messages.push_back({.role = "system", .content = system_});
  if (!reasoning_.empty()) request.enable_thinking = reasoning_ != "off";
  if (reasoning_ != "off" && !reasoning_.empty() &&
      source.find("reasoning_effort") != std::string::npos) {
    // Templates of the Qwen3.8 class call their strongest effort xhigh.
    const bool has_xhigh = source.find("xhigh") != std::string::npos;
    request.reasoning_effort = reasoning_ == "high" && has_xhigh ? "xhigh" : reasoning_;
  }
  return request;
}

ChatPrompt encode_chat(const text::ChatTemplate& format, const text::Tokenizer& tokenizer,
                       text::ChatRequest request) {
  ChatPrompt prompt;
  request.add_generation_prompt = true;
  const std::vector<text::Piece> full = format.render(request);
  prompt.ids = tokenizer.encode_pieces(full);
  tokenizer.prepend_bos(prompt.ids);
  prompt.in_reasoning = text::ends_in_reasoning(text::join_pieces(full));

  request.add_generation_prompt = false;
  std::vector<int32_t> closed = tokenizer.encode_pieces(format.render(request));
  tokenizer.prepend_bos(closed);
  const auto [end, unused] = std::mismatch(
      closed.begin(),
      closed.begin() + static_cast<ptrdiff_t>(std::min(closed.size(), prompt.ids.size())),
      prompt.ids.begin());
  prompt.n_stable = static_cast<size_t>(end - closed.begin());
  return prompt;
}

}  // namespace penstock::cli
