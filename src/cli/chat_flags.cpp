#include "cli/chat_flags.h"

namespace penstock::cli {

void ChatFlags::add_to(CLI::App& app) {
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

engine::ChatFormat ChatFlags::open(const engine::Runtime& runtime) const {
  engine::ChatFormat format = engine::open_chat_format(runtime, format_);
  start(format);
  return format;
}

text::ChatRequest ChatFlags::start(const engine::ChatFormat& format) const {
  text::ChatRequest request;
  if (!reasoning_.empty()) engine::set_reasoning(&request, format, reasoning_);
  return request;
}

}  // namespace penstock::cli
