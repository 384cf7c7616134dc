#include "measure/task_set.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "base/error.h"
#include "models/tiny_models.h"

namespace penstock::measure {
namespace {

class Tasks : public ::testing::Test {
 protected:
  Task task(const std::string& line) {
    const std::string path = folder_.path() + "/tasks.jsonl";
    std::ofstream(path) << line << "\n";
    return read_tasks(path).front();
  }
  penstock::testing::TemporaryFolder folder_;
};

constexpr const char* kTool =
    R"({"id": "t", "kind": "k", "messages": [{"role": "user", "content": "x"}], "check": "tool_call",
 "expected": {"name": "add", "arguments": {"a": 91, "b": "c d"}},
 "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
  "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}}}]})";

std::string one_line(std::string text) {
  for (char& c : text) c = c == '\n' ? ' ' : c;
  return text;
}

TEST_F(Tasks, ExactAnswersAreComparedAsText) {
  const Task t =
      task(R"({"id": "a", "messages": [{"role": "user", "content": "1 + 1 ="}], "expected": "2"})");
  EXPECT_TRUE(judge(t, {"2", true, 1}).solved);
  EXPECT_TRUE(judge(t, {" 2\n", true, 1}).solved);
  EXPECT_TRUE(judge(t, {"<think>one and one</think>\n\n2", true, 1}).solved);
  EXPECT_FALSE(judge(t, {"2.", true, 1}).solved);
  EXPECT_FALSE(judge(t, {"2", false, 1}).solved);  // it never ended
  EXPECT_FALSE(judge(t, {"2", true, 1}).valid.has_value());
}

TEST_F(Tasks, JsonIsComparedAsValues) {
  const Task t =
      task(R"({"id": "a", "messages": [{"role": "user", "content": "x"}], "check": "json", )"
           R"("expected": "{\"b\": 1, \"a\": [2]}"})");
  EXPECT_TRUE(judge(t, {"{\"a\":[2],\"b\":1}", true, 1}).solved);
  EXPECT_TRUE(judge(t, {"{\"a\": [2]}", true, 1}).valid.value());
  EXPECT_FALSE(judge(t, {"{\"a\": [2]}", true, 1}).solved);
  EXPECT_FALSE(judge(t, {"{\"a\": [2", true, 1}).valid.value());
}

TEST_F(Tasks, ToolCallsAreFoundAndChecked) {
  const Task t = task(one_line(kTool));
  EXPECT_EQ(t.request.messages.size(), 1u);
  const auto solved = [&](const char* text) { return judge(t, {text, true, 1}); };
  const TaskResult tagged = solved(
      "<tool_call>\n<function=add>\n<parameter=a>\n91\n</parameter>\n<parameter=b>\nc d\n"
      "</parameter>\n</function>\n</tool_call>");
  EXPECT_TRUE(tagged.solved);
  EXPECT_TRUE(tagged.valid.value());
  EXPECT_TRUE(
      solved(
          "<tool_call>{\"name\": \"add\", \"arguments\": {\"b\": \"c d\", \"a\": 91}}</tool_call>")
          .solved);
  EXPECT_TRUE(
      solved("{\"name\": \"add\", \"arguments\": \"{\\\"b\\\": \\\"c d\\\", \\\"a\\\": 91}\"}")
          .solved);
  // Another value: a valid call, but not the right one.
  const TaskResult other = solved(
      "<tool_call>{\"name\": \"add\", \"arguments\": {\"b\": \"c d\", \"a\": 92}}</tool_call>");
  EXPECT_FALSE(other.solved);
  EXPECT_TRUE(other.valid.value());
  // Unknown tool, unknown argument, missing argument, no call, cut off.
  for (const char* text :
       {"<tool_call>{\"name\": \"sub\", \"arguments\": {\"b\": \"c d\", \"a\": 91}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"b\": \"\", \"a\": 1, \"z\": "
        "1}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 91}}</tool_call>", "91 and c d",
        "<tool_call><function=add><parameter=a>91", "<tool_call>{\"name\": 3}</tool_call>", "",
        "<tool_call>[1,2", "<tool_call><function=></function></tool_call>"}) {
    const TaskResult result = solved(text);
    EXPECT_FALSE(result.solved) << text;
    EXPECT_FALSE(result.valid.value()) << text;
  }
}

TEST_F(Tasks, LinesThatAreNoTasksAreNamed) {
  for (const char* line :
       {"{", "{}", "[]", R"({"id": "a", "messages": [], "expected": "x"})",
        R"({"id": "a", "messages": [{"role": "user"}], "expected": "x", "check": "taste"})",
        R"({"id": "a", "messages": [{"role": "user"}], "expected": {}, "check": "tool_call"})",
        R"({"id": "a", "messages": [{"role": "user"}], "expected": "{", "check": "json"})",
        R"({"id": "a", "messages": [{"content": "no role"}], "expected": "x"})",
        R"({"id": "a", "messages": [{"role": "user"}], "expected": 4})"}) {
    try {
      task(line);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Format);
      EXPECT_NE(std::string(error.what()).find("line 1"), std::string::npos);
    }
  }
  EXPECT_THROW(task("\n\n"), Error);
}

TEST(Continuations, LoopsAreSeen) {
  std::vector<int32_t> fine(64);
  std::iota(fine.begin(), fine.end(), 0);
  EXPECT_FALSE(degenerate(fine));
  std::vector<int32_t> loop = fine;
  for (size_t i = 32; i < 64; ++i) loop[i] = static_cast<int32_t>(i % 8);
  EXPECT_TRUE(degenerate(loop));
  for (size_t i = 32; i < 64; ++i) loop[i] = static_cast<int32_t>(i % 9);
  EXPECT_FALSE(degenerate(loop));  // a period of 9 of 32
  std::fill(loop.begin() + 32, loop.end(), 7);
  EXPECT_TRUE(degenerate(loop));
  EXPECT_FALSE(degenerate(std::span(loop).first(10)));
}

TEST(Summaries, CountByKind) {
  std::vector<TaskResult> results(10);
  for (size_t i = 0; i < 10; ++i) {
    results[i].kind = i < 4 ? "a" : "b";
    results[i].solved = i % 2 == 0;
    results[i].answer.ended = i != 9;
    if (i < 2) results[i].valid = i == 0;
  }
  const TaskSummary s = summarise(results);
  EXPECT_EQ(s.n, 10u);
  EXPECT_DOUBLE_EQ(s.accuracy.value, 0.5);
  EXPECT_DOUBLE_EQ(s.ended.value, 0.9);
  EXPECT_EQ(s.by_kind.at("a"), std::pair(uint64_t{2}, uint64_t{4}));
  EXPECT_EQ(s.by_kind.at("b"), std::pair(uint64_t{3}, uint64_t{6}));
  EXPECT_EQ(s.n_checked, 2u);
  EXPECT_EQ(s.n_valid, 1u);
}

}  // namespace
}  // namespace penstock::measure
