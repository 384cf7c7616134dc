// Tasks whose answers can be checked: JSONL, one task a line (docs/quality.md).
//
//   {"id": "add-002", "kind": "add", "messages": [...], "expected": "39", "check": "exact"}
//
// check: exact (the answer's text, without white space around it), json (equal as JSON values),
// tool_call (expected is {"name": ..., "arguments": {...}}). `tools` as in OpenAI's API.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat_prompt.h"
#include "engine/session.h"
#include "measure/quality_stats.h"
#include "text/chat_template.h"

namespace penstock::measure {

enum class Check { Exact, Json, ToolCall };

struct Task {
  std::string id, kind;
  text::ChatRequest request;
  nlohmann::json expected;
  Check check = Check::Exact;
};

// Throws Error(Io); Error(Format) naming line and field; Error(Usage) for a file without tasks.
std::vector<Task> read_tasks(const std::string& path);

struct Answer {
  std::string text;    // control tokens by name
  bool ended = false;  // by the model's end token
  int64_t tokens = 0;
};

struct TaskResult {
  uint64_t index = 0;  // of the task in its file
  std::string id, kind;
  Answer answer;
  bool solved = false;
  // The answer is valid as what was asked for: JSON, or a call of a tool that was offered with the
  // arguments that it requires. Not of exact tasks.
  std::optional<bool> valid;
};

// The first tool call of an answer: JSON in <tool_call> tags or alone, or <function=NAME> with
// <parameter=KEY> elements. None if there is no such thing.
struct CalledTool {
  std::string name;
  nlohmann::json arguments;
};
std::optional<CalledTool> find_tool_call(std::string_view answer);

TaskResult judge(const Task& task, Answer answer);

// A continuation that has fallen into repeating itself: its last `span` tokens have a period of at
// most `span` / 4.
bool degenerate(std::span<const int32_t> tokens, size_t span = 32);

struct TaskSummary {
  uint64_t n = 0;
  Estimate accuracy;
  Estimate ended;                       // answers that the model ended itself
  uint64_t n_valid = 0, n_checked = 0;  // of the answers that can be valid or not
  std::map<std::string, std::pair<uint64_t, uint64_t>> by_kind;  // solved, all
};
TaskSummary summarise(const std::vector<TaskResult>& results);

struct TaskOptions {
  std::string chat_format = "auto";
  int64_t max_tokens = 256;
  uint32_t shard = 0, n_shards = 1;  // tasks index, index + n, ...
};
// Answers every task greedily, each in a context of its own. Throws as check_repeatable() does.
std::vector<TaskResult> run_tasks(engine::Runtime& runtime, const std::vector<Task>& tasks,
                                  const TaskOptions& options,
                                  const std::function<void(const TaskResult&)>& progress,
                                  const std::function<bool()>& stop);

// The continuation gate: greedy continuations of places in a text, the share of which is
// degenerate.
struct ContinuationResult {
  uint64_t n = 0;
  uint64_t degenerate = 0;
};
ContinuationResult run_continuations(engine::Runtime& runtime, std::span<const int32_t> text,
                                     int places, int64_t prompt, int64_t length,
                                     const std::function<bool()>& stop);

}  // namespace penstock::measure
