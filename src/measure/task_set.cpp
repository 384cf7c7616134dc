#include "measure/task_set.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "engine/generate.h"
#include "measure/evaluate.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

std::string_view trimmed(std::string_view text) noexcept {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// What the model thought before it answered is not part of the answer.
std::string_view without_reasoning(std::string_view text) noexcept {
  constexpr std::string_view kEnd = "</think>";
  const size_t end = text.rfind(kEnd);
  return trimmed(end == std::string_view::npos ? text : text.substr(end + kEnd.size()));
}

Json parse(std::string_view text) {
  return Json::parse(text.begin(), text.end(), nullptr, false);  // discarded if it is none
}

text::ChatMessage message_of(const Json& json) {
  text::ChatMessage message;
  message.role = json.at("role").get<std::string>();
  if (json.contains("content") && json["content"].is_string()) {
    message.content = json["content"].get<std::string>();
  }
  for (const Json& call : json.value("tool_calls", Json::array())) {
    const Json& function = call.contains("function") ? call["function"] : call;
    const Json& arguments = function.at("arguments");
    message.tool_calls.push_back(
        {call.value("id", std::string()), function.at("name").get<std::string>(),
         arguments.is_string() ? arguments.get<std::string>() : arguments.dump()});
  }
  message.tool_call_id = json.value("tool_call_id", std::string());
  message.name = json.value("name", std::string());
  return message;
}

Task task_of(const Json& json) {
  Task task;
  task.id = json.at("id").get<std::string>();
  task.kind = json.value("kind", std::string("all"));
  for (const Json& message : json.at("messages")) {
    task.request.messages.push_back(message_of(message));
  }
  if (task.request.messages.empty()) throw std::invalid_argument("messages is empty");
  if (json.contains("tools")) task.request.tools_json = json["tools"].dump();
  task.expected = json.at("expected");
  const std::string check = json.value("check", std::string("exact"));
  if (check == "exact") {
    task.check = Check::Exact;
    if (!task.expected.is_string()) throw std::invalid_argument("expected is not a text");
  } else if (check == "json") {
    task.check = Check::Json;
    if (task.expected.is_string()) task.expected = Json::parse(task.expected.get<std::string>());
  } else if (check == "tool_call") {
    task.check = Check::ToolCall;
    if (!task.expected.contains("name") || !task.expected.contains("arguments")) {
      throw std::invalid_argument("expected of a tool_call has a name and arguments");
    }
  } else {
    throw std::invalid_argument("check is '" + check + "'; known are exact, json and tool_call");
  }
  return task;
}

// <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>
std::optional<CalledTool> tagged_call(std::string_view text) {
  constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=",
                             kEndParameter = "</parameter>", kEndFunction = "</function>";
  size_t at = text.find(kFunction);
  if (at == std::string_view::npos) return std::nullopt;
  at += kFunction.size();
  const size_t name_end = text.find('>', at);
  const size_t end = text.find(kEndFunction, at);
  if (name_end == std::string_view::npos || end == std::string_view::npos || name_end > end) {
    return std::nullopt;
  }
  CalledTool call{std::string(trimmed(text.substr(at, name_end - at))), Json::object()};
  at = name_end + 1;
  for (;;) {
    at = text.find(kParameter, at);
    if (at == std::string_view::npos || at > end) return call;
    at += kParameter.size();
    const size_t key_end = text.find('>', at);
    const size_t value_end = text.find(kEndParameter, at);
    if (key_end == std::string_view::npos || value_end == std::string_view::npos ||
        key_end > value_end || value_end > end) {
      return std::nullopt;
    }
    const std::string_view value = trimmed(text.substr(key_end + 1, value_end - key_end - 1));
    const Json parsed = parse(value);
    // A value that is no JSON is a text as it stands.
    call.arguments[std::string(trimmed(text.substr(at, key_end - at)))] =
        parsed.is_discarded() ? Json(std::string(value)) : parsed;
    at = value_end + kEndParameter.size();
  }
}

std::optional<CalledTool> json_call(std::string_view text) {
  const Json json = parse(text);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) {
    return std::nullopt;
  }
  const Json arguments = json.value("arguments", Json::object());
  return CalledTool{json["name"].get<std::string>(),
                    arguments.is_string() ? parse(arguments.get<std::string>()) : arguments};
}

// Numbers that a template spells as text are equal to it.
bool same_value(const Json& a, const Json& b) {
  if (a == b) return true;
  const auto text_of = [](const Json& j) {
    return j.is_string() ? j.get<std::string>() : j.dump();
  };
  return (a.is_string() != b.is_string()) && text_of(a) == text_of(b);
}

bool same_arguments(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object() || a.size() != b.size()) return false;
  return std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
    return b.contains(item.key()) && same_value(item.value(), b[item.key()]);
  });
}

// A tool that was offered, with all arguments that it requires and none that it does not know.
bool offered(const CalledTool& call, const std::string& tools_json) {
  for (const Json& tool : parse(tools_json)) {
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (function.value("name", std::string()) != call.name) continue;
    if (!call.arguments.is_object()) return false;
    const Json parameters = function.value("parameters", Json::object());
    const Json properties = parameters.value("properties", Json::object());
    for (const auto& [key, value] : call.arguments.items()) {
      if (!properties.contains(key)) return false;
    }
    for (const Json& key : parameters.value("required", Json::array())) {
      if (!call.arguments.contains(key.get<std::string>())) return false;
    }
    return true;
  }
  return false;
}

}  // namespace

std::vector<Task> read_tasks(const std::string& path) {
  std::vector<Task> tasks;
  std::istringstream lines(read_text_file(path));
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (trimmed(line).empty()) continue;
    try {
      tasks.push_back(task_of(Json::parse(line)));
    } catch (const std::exception& error) {
      fail(ErrorKind::Format, "{}: line {} is no task: {}", path, number, error.what());
    }
  }
  if (tasks.empty()) fail(ErrorKind::Usage, "{} holds no tasks", path);
  return tasks;
}

std::optional<CalledTool> find_tool_call(std::string_view answer) {
  constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
  const std::string_view text = without_reasoning(answer);
  const size_t open = text.find(kOpen);
  if (open == std::string_view::npos) return json_call(text);
  const size_t first = open + kOpen.size();
  const size_t close = text.find(kClose, first);
  const std::string_view body =
      trimmed(text.substr(first, close == std::string_view::npos ? close : close - first));
  if (auto call = tagged_call(body)) return call;
  return json_call(body);
}

TaskResult judge(const Task& task, Answer answer) {
  TaskResult result{0, task.id, task.kind, std::move(answer), false, std::nullopt};
  const std::string_view text = without_reasoning(result.answer.text);
  switch (task.check) {
    case Check::Exact:
      result.solved = text == trimmed(task.expected.get<std::string>());
      break;
    case Check::Json: {
      const Json json = parse(text);
      result.valid = !json.is_discarded();
      result.solved = *result.valid && json == task.expected;
      break;
    }
    case Check::ToolCall: {
      const auto call = find_tool_call(text);
      result.valid = call && offered(*call, task.request.tools_json);
      result.solved = call && call->name == task.expected["name"].get<std::string>() &&
                      same_arguments(call->arguments, task.expected["arguments"]);
      break;
    }
  }
  // An answer that never ends is none.
  result.solved = result.solved && result.answer.ended;
  return result;
}

bool degenerate(std::span<const int32_t> tokens, size_t span) {
  if (tokens.size() < span) return false;
  const auto last = tokens.last(span);
  for (size_t period = 1; period <= span / 4; ++period) {
    bool repeats = true;
    for (size_t i = period; i < span && repeats; ++i) repeats = last[i] == last[i - period];
    if (repeats) return true;
  }
  return false;
}

TaskSummary summarise(const std::vector<TaskResult>& results) {
  TaskSummary summary;
  std::vector<bool> solved, ended;
  for (const TaskResult& result : results) {
    ++summary.n;
    solved.push_back(result.solved);
    ended.push_back(result.answer.ended);
    auto& [hits, all] = summary.by_kind[result.kind];
    hits += result.solved ? 1 : 0;
    ++all;
    if (!result.valid) continue;
    ++summary.n_checked;
    summary.n_valid += *result.valid ? 1 : 0;
  }
  summary.accuracy = share_of(solved);
  summary.ended = share_of(ended);
  return summary;
}

std::vector<TaskResult> run_tasks(engine::Runtime& runtime, const std::vector<Task>& tasks,
                                  const TaskOptions& options,
                                  const std::function<void(const TaskResult&)>& progress,
                                  const std::function<bool()>& stop) {
  check_repeatable(runtime, options.n_shards);
  const engine::ChatFormat format = engine::open_chat_format(runtime, options.chat_format);
  engine::Session session(runtime);
  std::vector<TaskResult> results;
  for (size_t i = options.shard; i < tasks.size() && !stop(); i += options.n_shards) {
    const engine::ChatPrompt prompt =
        engine::encode_chat(format, runtime.tokenizer(), tasks[i].request);
    session.reset();
    if (static_cast<int64_t>(prompt.ids.size()) >= session.room()) {
      fail(ErrorKind::Usage,
           "task {}: {} tokens leave no room for an answer in a context of {}: --ctx", tasks[i].id,
           prompt.ids.size(), session.n_ctx());
    }
    session.prefill(prompt.ids);
    engine::Sampler sampler({});  // greedy
    engine::GenerateOptions generate;
    generate.max_tokens = options.max_tokens;
    generate.render_control = true;
    generate.starts_in_reasoning = prompt.in_reasoning;
    const engine::GenerateResult got =
        engine::generate(session, sampler, generate, [](const engine::Output&) {});
    if (got.reason == engine::StopReason::Watchdog) {
      fail(ErrorKind::Watchdog, "memory has run out: start again with a smaller --memory");
    }
    results.push_back(judge(tasks[i], {got.text, got.reason == engine::StopReason::EndToken,
                                       static_cast<int64_t>(got.tokens.size())}));
    results.back().index = i;
    progress(results.back());
  }
  return results;
}

ContinuationResult run_continuations(engine::Runtime& runtime, std::span<const int32_t> text,
                                     int places, int64_t prompt, int64_t length,
                                     const std::function<bool()>& stop) {
  engine::Session session(runtime);
  ContinuationResult result;
  const auto n = static_cast<size_t>(prompt);
  if (text.size() < n) {
    fail(ErrorKind::Usage, "{} tokens of text; a continuation begins with {}", text.size(), n);
  }
  for (int place = 0; place < places && !stop(); ++place) {
    const size_t at = (text.size() - n) * static_cast<size_t>(place) /
                      static_cast<size_t>(std::max(1, places - 1));
    session.reset();
    session.prefill(text.subspan(at, n));
    engine::Sampler sampler({});
    engine::GenerateOptions generate;
    generate.max_tokens = length;
    generate.ignore_end = true;
    const engine::GenerateResult got =
        engine::generate(session, sampler, generate, [](const engine::Output&) {});
    ++result.n;
    result.degenerate += degenerate(got.tokens) ? 1 : 0;
  }
  return result;
}

}  // namespace penstock::measure
