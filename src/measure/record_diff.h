// In what two records differ: who ran what with which settings where, and what came of it. `report`
// takes from here what tells configurations apart, `diff` everything.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/archive.h"
#include "measure/figures.h"
#include "measure/spread.h"

namespace penstock::measure {

// Facts that a record states about its run, as text, by "kind/name". Kinds: identity (program,
// build, model, pack, profile, limit, lossy options), settings, environment, machine. Paths are cut
// to their last part. What the record does not say has no entry.
std::map<std::string, std::string> facts_of(const nlohmann::json& record);

// The last part of a path, whatever bytes it has, as valid UTF-8 without control characters.
std::string shown_name(const std::string& path);

// The options of a command line, each with its values; where the record's own files go is left out.
std::map<std::string, std::vector<std::string>> options_of(const nlohmann::json& argv);

struct Difference {
  std::string kind, name;  // "settings", "slots"
  std::string a, b;        // "-" where that record does not say
  // A setting that the two command lines set differently, or that follows from one that they do.
  // Two command lines that say the same, or none, name nothing.
  bool named = false;
};

// In order of kinds, then names. Settings of two programs are not set against each other.
std::vector<Difference> differences_of(const nlohmann::json& a, const nlohmann::json& b);

// What a run was given and asked for; figures of two runs are comparable where all of these agree.
struct Workload {
  std::string model;        // its identity, else its file's name
  std::string prompt;       // SHA-256 of the prompt's file, "" if it was not archived
  std::string prompt_text;  // for people: "31 tokens (0f3a22b1)"
  std::optional<double> prompt_tokens;
  std::optional<double> decode_tokens;  // steps of decode; nothing where decode is no result
};
Workload workload_of(const nlohmann::json& record);
// Why figures of the two are not comparable, a sentence each.
std::vector<std::string> why_uncomparable(const Workload& a, const Workload& b);

// A figure of two groups of runs.
struct FigureChange {
  std::string name, title, unit, phase;
  int digits = 2;
  std::vector<double> a, b;  // every run that gives it
  Spread spread_a = {}, spread_b = {};
  double p = 1;  // Mann-Whitney, two-sided
};

struct CounterChange {
  std::string pointer;  // in a record
  double a = 0, b = 0;  // medians
};

struct RecordDiff {
  std::vector<const Archived*> a, b;
  std::vector<std::string> uncomparable;  // empty: the speeds may be compared
  std::vector<std::string> not_results;   // runs without a decode result, and why
  std::vector<Difference> differences;    // of the groups' first records
  std::vector<std::string> within;        // in what runs of one group differ from its first
  std::vector<FigureChange> figures;
  std::vector<CounterChange> counters;
  std::string output;    // whether they said the same
  std::string sentence;  // what is to be said about decode speed
};

// Both groups hold at least one record. Throws Error(Usage) if not.
RecordDiff diff_records(std::vector<const Archived*> a, std::vector<const Archived*> b);

// What n and m runs show about a figure where more is better: "faster by 4.1 % (p = 0.008, ...)".
std::string change_sentence(const FigureChange& change);

std::string diff_table(const RecordDiff& diff);
nlohmann::ordered_json diff_json(const RecordDiff& diff);

}  // namespace penstock::measure
