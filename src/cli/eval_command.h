// What the parts of penstock eval share (eval.cpp, eval_tasks.cpp).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/run_record.h"
#include "cli/runtime_flags.h"

namespace penstock::cli {

struct EvalFlags {
  RuntimeFlags runtime;
  std::vector<std::string> texts;
  std::string base, base_out, base_form = "u16", scores, shard, quality_dir, tasks, chat = "auto";
  std::string record, against;
  int64_t window = 512, max_tokens = 256;
  int continuations = 0;
  bool step = false, json = false, answers = false, no_record = false;
  std::vector<std::string> held_out_from;
  std::vector<std::string> parts;  // of merge
};

// JSON as it is printed.
std::string eval_text(const nlohmann::ordered_json& json);

// Puts a measurement where other commands look for it, unless --no-record.
void record_evaluation(const EvalFlags& flags, const nlohmann::ordered_json& measurement);

// With cache-aware routing: how much it replaced; else null.
nlohmann::ordered_json routing_json(const engine::Runtime& runtime);

// eval tasks, and eval merge of the results of its shards.
int run_tasks(const EvalFlags& flags, RunRecord& run_record);
int merge_tasks(const EvalFlags& flags);

}  // namespace penstock::cli
