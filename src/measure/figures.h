// The figures that a record gives, each a formula over the record's own members, with its unit and
// the phase that it belongs to. Tables, claims and comparisons all take them from here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/formula.h"

namespace penstock::measure {

struct Figure {
  std::string name;   // "decode_tok_s"
  std::string title;  // "decode"
  std::string unit;   // "tok/s"
  std::string phase;  // load, fill, prefill, "cold start", "first token", decode, run, memory
  Formula formula;
  int digits;  // after the point, in tables
};

// Of a schema: run records and peer records; empty for any other.
const std::vector<Figure>& figures_of(const std::string& schema);
const Figure* find_figure(const std::string& schema, const std::string& name);

// The phase of one pointer of a record: what is under /timings/prefill belongs to the prefill, and
// so on; "" where it is of no phase.
std::string phase_of(const std::string& schema, const std::string& pointer);

// Nothing where the record does not give it (no decode steps, a member that was cut out).
std::optional<double> figure_value(const Figure& figure, const nlohmann::json& record);

// Why a run's decode speed is none: it ended early or did not finish; "" if it counts
// (spec/streaming.md §J.2: at least `least` tokens, or the limit that was asked for).
std::string why_no_decode(const nlohmann::json& record, uint64_t least = 64);

}  // namespace penstock::measure
