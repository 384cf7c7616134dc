// Scores and tasks as JSON and as a table for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "measure/scores.h"
#include "measure/task_set.h"

namespace penstock::measure {

// "kind" is kld where there is a base, else perplexity. Throws Error(Usage) when there are fewer
// positions than a summary needs.
nlohmann::ordered_json quality_json(const ScoreSet& set);
std::string quality_table(const ScoreSet& set);

// With every answer where `answers`; read_answers() takes them from there.
std::vector<TaskResult> read_answers(const nlohmann::json& tasks, const std::string& path);
nlohmann::ordered_json tasks_json(const std::vector<TaskResult>& results, bool answers);
std::string tasks_table(const TaskSummary& summary);

// Results and `others` of the same tasks, item by item: how many only one of the two solved, the
// difference of the shares with error and interval, the p-value of McNemar's exact test. Throws
// Error(Usage) naming the task that `path` does not answer.
nlohmann::ordered_json paired_json(const std::vector<TaskResult>& results,
                                   const std::vector<TaskResult>& others, const std::string& path);
std::string paired_table(const nlohmann::ordered_json& paired);

}  // namespace penstock::measure
