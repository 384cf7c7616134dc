#include "engine/generate.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "engine/stop_matcher.h"
#include "text/utf8_stream.h"

namespace penstock::engine {
namespace {

// Where the model is with regard to its <think> ... </think> block, and what it must say next when
// the budget is used up.
class ReasoningWatch {
 public:
  ReasoningWatch(const text::Tokenizer* tokenizer, const GenerateOptions& options)
      : budget_(options.reasoning_budget), inside_(options.starts_in_reasoning) {
    if (tokenizer == nullptr) return;
    begin_ = tokenizer->token_id("<think>");
    end_ = tokenizer->token_id("</think>");
    if (end_ && budget_ >= 0) closing_ = tokenizer->encode("\n</think>\n\n", true);
  }

  // The token that has to come instead of a sampled one, if any.
  std::optional<int32_t> forced() {
    if (pending_.empty() && inside_ && !closing_.empty() && used_ >= budget_) {
      pending_.assign(closing_.begin(), closing_.end());
    }
    if (pending_.empty()) return std::nullopt;
    const int32_t token = pending_.front();
    pending_.pop_front();
    return token;
  }

  void see(int32_t token) {
    if (begin_ && token == *begin_) {
      inside_ = true;
    } else if (end_ && token == *end_) {
      inside_ = false;
    } else if (inside_) {
      ++used_;
    }
  }

  int64_t used() const noexcept { return used_; }

 private:
  int64_t budget_;
  bool inside_;
  int64_t used_ = 0;
  std::optional<int32_t> begin_, end_;
  std::vector<int32_t> closing_;
  std::deque<int32_t> pending_;
};

}  // namespace

const char* stop_reason_text(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::EndToken:
      return "end of turn";
    case StopReason::StopString:
      return "stop string";
    case StopReason::StopToken:
      return "stop token";
    case StopReason::Length:
      return "token limit";
    case StopReason::ContextFull:
      return "context full";
    case StopReason::Cancelled:
      return "cancelled";
  }
  return "unknown";
}

GenerateResult generate(Session& session, Sampler& sampler, const GenerateOptions& options,
                        FunctionRef<void(std::string_view)> on_text,
                        const std::atomic<bool>* cancel) {
  const text::Tokenizer* tokenizer =
      session.runtime().has_tokenizer() ? &session.runtime().tokenizer() : nullptr;
  std::optional<text::TokenStream> decoder;
  if (tokenizer != nullptr) decoder.emplace(*tokenizer, options.render_control);
  StopMatcher stops(options.stop);
  ReasoningWatch reasoning(tokenizer, options);
  GenerateResult result;

  const auto show = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    on_text(text);
  };
  const auto end = [&](StopReason reason) {
    result.reason = reason;
    if (decoder && reason != StopReason::StopString) {
      show(stops.push(decoder->flush()));
      show(stops.finish());
    }
  };

  for (;;) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      end(StopReason::Cancelled);
      break;
    }
    if (options.max_tokens >= 0 &&
        static_cast<int64_t>(result.tokens.size()) >= options.max_tokens) {
      end(StopReason::Length);
      break;
    }
    int32_t token = 0;
    if (const std::optional<int32_t> forced = reasoning.forced()) {
      token = *forced;
      sampler.accept(token);
    } else {
      token = sampler.sample(session.logits()).id;
    }
    if (!options.ignore_end && tokenizer != nullptr && tokenizer->is_stop(token)) {
      end(StopReason::EndToken);
      break;
    }
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) !=
        options.stop_tokens.end()) {
      end(StopReason::StopToken);
      break;
    }
    session.expect(token);
    result.tokens.push_back(token);
    reasoning.see(token);
    if (decoder) {
      show(stops.push(decoder->push(token)));
      if (stops.stopped()) {
        result.stop_string = stops.matched();
        end(StopReason::StopString);
        break;
      }
    }
    if (session.room() < 1) {
      end(StopReason::ContextFull);
      break;
    }
    session.decode(token);
  }
  result.reasoning_tokens = reasoning.used();
  return result;
}

}  // namespace penstock::engine
