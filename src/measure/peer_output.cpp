#include "measure/peer_output.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "measure/archive.h"
#include "measure/formula.h"
#include "measure/json_schema.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

// The number after `mark` in `line`, past spaces, '=' and '/'.
std::optional<double> number_after(std::string_view line, std::string_view mark) {
  const size_t at = line.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  line.remove_prefix(at + mark.size());
  const size_t begin = line.find_first_not_of(" =/");
  if (begin == std::string_view::npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(line.data() + begin, line.data() + line.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Calls use(line) for every line, without its end.
template <typename Use>
void each_line(std::string_view text, const Use& use) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    use(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

// llama.cpp's last lines: "prompt eval time = 12.3 ms / 10 tokens", "eval time = 4.5 ms / 63 runs",
// "load time = 6.7 ms".
Json parse_llama_cpp(const std::string& err) {
  Json out = Json::object();
  each_line(err, [&](std::string_view line) {
    const size_t prompt = line.find("prompt eval time");
    const auto put = [&](const char* ms, const char* tokens, std::string_view mark) {
      const auto time = number_after(line, mark);
      const auto count = number_after(line, " ms /");
      if (!time || !count) return;
      out[ms] = *time;
      out[tokens] = *count;
    };
    if (prompt != std::string_view::npos) {
      put("prefill_ms", "prefill_tokens", "prompt eval time");
    } else if (line.find(" eval time") != std::string_view::npos) {
      put("decode_ms", "decode_tokens", " eval time");
    } else if (const auto load = number_after(line, "load time")) {
      out["load_ms"] = *load;
    }
  });
  return out;
}

// BigMoeOnEdge's last lines: "generation: 64 tokens, 0.102 s/token (9.804 tok/s)" and "prefill: 8
// tokens, 1.234 s (6.5 tok/s) | model load 2.345 s | ...". The rate has more digits than the time.
Json parse_bigmoeonedge(const std::string& text) {
  Json out = Json::object();
  const auto put = [&](const char* name, double value) {
    if (std::isfinite(value)) out[name] = value;
  };
  each_line(text, [&](std::string_view line) {
    if (line.starts_with("generation:")) {
      const auto tokens = number_after(line, "generation:");
      const auto rate = number_after(line, "s/token (");
      if (!tokens || !rate || *rate <= 0) return;
      put("decode_tokens", *tokens);
      put("decode_ms", *tokens / *rate * 1e3);
    } else if (line.starts_with("prefill:")) {
      const auto tokens = number_after(line, "prefill:");
      const auto seconds = number_after(line, "tokens,");
      if (!tokens || !seconds) return;
      put("prefill_tokens", *tokens);
      put("prefill_ms", *seconds * 1e3);
      if (const auto load = number_after(line, "model load")) put("load_ms", *load * 1e3);
    }
  });
  return out;
}

double number_of(const Json& object, const char* name, const char* parser) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) {
    fail(ErrorKind::Format, "{}: the output has no number '{}'", parser, name);
  }
  return found->get<double>();
}

Json parse_llama_bench(const std::string& text) {
  const Json rows = parse_json(text, "llama-bench");
  if (!rows.is_array()) fail(ErrorKind::Format, "llama-bench: the output is no list");
  Json out = Json::object();
  for (const Json& row : rows) {
    if (!row.is_object()) fail(ErrorKind::Format, "llama-bench: a row is no object");
    const double prompt = number_of(row, "n_prompt", "llama-bench");
    const double generated = number_of(row, "n_gen", "llama-bench");
    const double ms = number_of(row, "avg_ns", "llama-bench") / 1e6;
    if (prompt > 0 && generated == 0) {
      out["prefill_tokens"] = prompt;
      out["prefill_ms"] = ms;
    } else if (generated > 0 && prompt == 0) {
      out["decode_tokens"] = generated;
      out["decode_ms"] = ms;
    }
  }
  return out;
}

// One answer of llama-server's /completion. The time of the first token is part of the prompt's.
Json parse_llama_server(const std::string& text) {
  const Json answer = parse_json(text, "llama-server");
  const Json* timings = resolve_pointer(answer, "/timings");
  if (timings == nullptr || !timings->is_object()) {
    fail(ErrorKind::Format, "llama-server: the answer has no 'timings'");
  }
  Json out;
  out["prefill_tokens"] = number_of(*timings, "prompt_n", "llama-server");
  out["prefill_ms"] = number_of(*timings, "prompt_ms", "llama-server");
  out["decode_tokens"] = number_of(*timings, "predicted_n", "llama-server") - 1;
  out["decode_ms"] = number_of(*timings, "predicted_ms", "llama-server");
  return out;
}

// {"sent_ms": t, "arrived_ms": [t...], "prompt_tokens": n|null, "completion_tokens": n|null}: one
// time per piece of text.
Json values_of_arrivals(const Json& noted) {
  const Json* arrived = resolve_pointer(noted, "/arrived_ms");
  if (arrived == nullptr || !arrived->is_array() || arrived->empty()) {
    fail(ErrorKind::Format, "stream: nothing arrived");
  }
  double last = number_of(noted, "sent_ms", "stream");
  const double sent = last;
  for (const Json& at : *arrived) {
    if (!at.is_number()) fail(ErrorKind::Format, "stream: a time is no number");
    if (at.get<double>() < last) fail(ErrorKind::Format, "stream: time runs backwards");
    last = at.get<double>();
  }
  Json out;
  if (const Json* n = resolve_pointer(noted, "/prompt_tokens"); n != nullptr && n->is_number()) {
    out["prefill_tokens"] = *n;
  }
  out["prefill_ms"] = arrived->front().get<double>() - sent;
  // Several tokens may come in one piece: the server's own count goes first.
  const Json* n = resolve_pointer(noted, "/completion_tokens");
  out["decode_tokens"] = n != nullptr && n->is_number() && n->get<double>() >= 1
                             ? n->get<double>() - 1
                             : static_cast<double>(arrived->size() - 1);
  out["decode_ms"] = arrived->back().get<double>() - arrived->front().get<double>();
  return out;
}

Json parse_stream(const std::string& text) {
  return values_of_arrivals(parse_json(text, "stream"));
}

// What one event of a stream adds to the arrivals: a time if it brings text, the server's counts.
void take_event(std::string_view data, double at_ms, Json* noted) {
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) return;
  const auto usage = event.find("usage");
  if (usage != event.end() && usage->is_object() && usage->contains("prompt_tokens")) {
    (*noted)["prompt_tokens"] = (*usage)["prompt_tokens"];
    (*noted)["completion_tokens"] = usage->value("completion_tokens", Json());
  }
  const Json* text = resolve_pointer(event, "/choices/0/text");
  if (text != nullptr && text->is_string() && !text->get_ref<const std::string&>().empty()) {
    (*noted)["arrived_ms"].push_back(at_ms);
  }
}

// Lines "MS LINE": the lines of a stream of events and when each was there (peer_talk.h).
Json parse_event_stream(const std::string& text) {
  Json noted = {{"sent_ms", 0.0},
                {"arrived_ms", Json::array()},
                {"prompt_tokens", nullptr},
                {"completion_tokens", nullptr}};
  size_t number = 0;
  each_line(text, [&](std::string_view line) {
    ++number;
    const size_t space = line.find(' ');
    double at_ms = 0;
    const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), at_ms);
    if (error != std::errc() || space == std::string_view::npos || stop != line.data() + space ||
        !std::isfinite(at_ms)) {
      fail(ErrorKind::Format, "event-stream: line {} does not begin with a time", number);
    }
    const std::string_view event = line.substr(space + 1);
    if (event.starts_with("data: ")) take_event(event.substr(6), at_ms, &noted);
  });
  return values_of_arrivals(noted);
}

bool close(const Json& a, const Json& b) {
  if (!a.is_number() || !b.is_number()) return a == b;
  const double x = a.get<double>(), y = b.get<double>();
  return std::fabs(x - y) <= 1e-9 * std::max(std::fabs(x), std::fabs(y));
}

}  // namespace

const std::vector<std::string>& peer_parsers() {
  static const std::vector<std::string> names = {"llama.cpp", "llama-bench",  "llama-server",
                                                 "stream",    "event-stream", "bigmoeonedge"};
  return names;
}

Json parse_peer_output(const std::string& parser, const std::string& out, const std::string& err) {
  if (parser == "llama.cpp") return parse_llama_cpp(err);
  if (parser == "llama-bench") return parse_llama_bench(out);
  if (parser == "llama-server") return parse_llama_server(out);
  if (parser == "stream") return parse_stream(out);
  if (parser == "event-stream") return parse_event_stream(out);
  if (parser == "bigmoeonedge") return parse_bigmoeonedge(out);
  fail(ErrorKind::Format, "there is no parser '{}' ({})", parser, fmt::join(peer_parsers(), ", "));
}

std::vector<std::string> reparse_problems(const Json& record, const std::string& folder) {
  const Json* parser = resolve_pointer(record, "/parser");
  if (parser == nullptr || !parser->is_string()) return {};
  const auto archived = [&](const char* pointer) -> std::string {
    const Json* hash = resolve_pointer(record, pointer);
    if (hash == nullptr || !hash->is_string()) return {};
    return read_archived(folder, hash->get<std::string>());
  };
  std::vector<std::string> problems;
  try {
    const Json again =
        parse_peer_output(parser->get<std::string>(), archived("/output/stdout/sha256"),
                          archived("/output/stderr/sha256"));
    for (const auto& [name, value] : again.items()) {
      const Json* stored = resolve_pointer(record, "/values/" + name);
      if (stored == nullptr) {
        problems.push_back(fmt::format("values: the output gives {} = {}, the record has none",
                                       name, value.dump()));
      } else if (!close(*stored, value)) {
        problems.push_back(fmt::format("values: the output gives {} = {}, the record has {}", name,
                                       value.dump(), stored->dump()));
      }
    }
  } catch (const Error& error) {
    // Of a run that failed there may be nothing to read.
    const Json* state = resolve_pointer(record, "/outcome/state");
    if (state == nullptr || *state == "finished") {
      problems.push_back(fmt::format("values: {}", error.what()));
    }
  }
  return problems;
}

}  // namespace penstock::measure
