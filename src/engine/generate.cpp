#include "engine/generate.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

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

SampledToken choose(Sampler& sampler, std::span<const float> logits,
                    std::optional<int32_t> forced) {
  return forced ? sampler.take(*forced, logits) : sampler.sample(logits);
}

// Holds the tokens back until their text has been shown.
class TokenQueue {
 public:
  void push(GeneratedToken token) { waiting_.push_back(std::move(token)); }

  // The tokens whose text is among the first `shown` bytes; at a stop string also the one whose
  // text it cut.
  std::span<const GeneratedToken> take(size_t shown, bool stopped) {
    taken_.clear();
    while (!waiting_.empty() && (stopped ? begin_ < shown : waiting_.front().end <= shown)) {
      begin_ = waiting_.front().end;
      taken_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    return taken_;
  }

 private:
  std::deque<GeneratedToken> waiting_;
  std::vector<GeneratedToken> taken_;
  size_t begin_ = 0;  // where the first waiting token's text begins
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
    case StopReason::Watchdog:
      return "watchdog";
  }
  return "unknown";
}

StopReason prefill_stop(const Session& session) noexcept {
  return session.out_of_memory() ? StopReason::Watchdog : StopReason::Cancelled;
}

GenerateResult generate(Session& session, Sampler& sampler, const GenerateOptions& options,
                        FunctionRef<void(const Output&)> on_output, const KeepGoing& keep_going) {
  const text::Tokenizer* tokenizer =
      session.runtime().has_tokenizer() ? &session.runtime().tokenizer() : nullptr;
  std::optional<text::TokenStream> decoder;
  if (tokenizer != nullptr) decoder.emplace(*tokenizer, options.render_control);
  StopMatcher stops(options.stop);
  ReasoningWatch reasoning(tokenizer, options);
  TokenQueue queue;
  size_t decoded = 0;  // bytes of text, held back or not
  GenerateResult result;

  const auto show = [&](const std::string& text) {
    result.text += text;
    const Output output{text, queue.take(result.text.size(), stops.stopped())};
    if (!output.text.empty() || !output.tokens.empty()) on_output(output);
  };
  const auto end = [&](StopReason reason) {
    result.reason = reason;
    if (decoder && reason != StopReason::StopString) {
      std::string text = stops.push(decoder->flush());
      text += stops.finish();
      show(text);
    }
  };

  for (;;) {
    if (session.out_of_memory()) {
      end(StopReason::Watchdog);
      break;
    }
    if (keep_going && !keep_going()) {
      end(StopReason::Cancelled);
      break;
    }
    if (options.max_tokens >= 0 &&
        static_cast<int64_t>(result.tokens.size()) >= options.max_tokens) {
      end(StopReason::Length);
      break;
    }
    const SampledToken chosen = choose(sampler, session.logits(), reasoning.forced());
    const int32_t token = chosen.id;
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
    const std::string text = decoder ? decoder->push(token) : std::string();
    decoded += text.size();
    if (options.n_logprobs >= 0) {
      // A token that leaves a character unfinished is shown with that character.
      const size_t unfinished = decoder && decoder->holding() ? 1 : 0;
      GeneratedToken generated{token, chosen.logprob, {}, decoded + unfinished};
      if (options.n_logprobs > 0) {
        generated.top = top_logprobs(session.logits(), options.n_logprobs);
      }
      queue.push(std::move(generated));
    }
    show(stops.push(text));
    if (stops.stopped()) {
      result.stop_string = stops.matched();
      end(StopReason::StopString);
      break;
    }
    if (session.room() < 1) {
      end(StopReason::ContextFull);
      break;
    }
    session.decode(token);
  }
  result.reasoning_tokens = reasoning.used();
  session.end_turn();
  return result;
}

}  // namespace penstock::engine
