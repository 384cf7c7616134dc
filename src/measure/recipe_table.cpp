// What came out of a recipe, as rows and as a table.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "measure/recipe.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::ordered_json;
using Results = std::map<std::string, nlohmann::json>;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

// Figures with their errors and intervals.
void copy_figures(const nlohmann::json& from, std::initializer_list<const char*> fields,
                  Json* row) {
  for (const char* field : fields) {
    for (const char* suffix : {"", "_error", "_interval"}) {
      const std::string name = std::string(field) + suffix;
      if (from.contains(name)) (*row)[name] = from[name];
    }
  }
}

void copy_fields(const nlohmann::json& from, std::initializer_list<const char*> fields, Json* row) {
  for (const char* field : fields) {
    if (from.contains(field)) (*row)[field] = from[field];
  }
}

void put_kld(const nlohmann::json& kld, Json* row) {
  copy_figures(kld, {"ppl", "ppl_ratio", "mean_kld", "same_top", "rms_dp"}, row);
  copy_fields(kld, {"kld_quantiles", "quality_key", "mode", "positions", "streaming", "parts"},
              row);
  if (kld.contains("routing")) (*row)["replaced_share"] = kld["routing"].at("replaced_share");
}

// The price of the steps between the base and this arm alone.
Json against_json(const std::string& base, const nlohmann::json& kld) {
  Json out = {{"arm", base}};
  copy_figures(kld, {"ppl_ratio", "mean_kld", "same_top", "rms_dp"}, &out);
  copy_fields(kld, {"kld_quantiles"}, &out);
  return out;
}

Json tasks_json(const nlohmann::json& tasks) {
  Json out;
  copy_figures(tasks, {"accuracy"}, &out);
  out["n"] = tasks.value("n", 0);
  out["structured"] = tasks.value("structured", nlohmann::json());
  return out;
}

// null when no run is there.
Json speed_json(const Recipe& recipe, const std::string& name, const Results& results) {
  std::vector<double> rates, hits, read;
  for (int r = 1; r <= recipe.speed_runs; ++r) {
    const auto run = results.find(fmt::format("{}.speed-{}", name, r));
    if (run == results.end()) continue;
    const nlohmann::json& j = run->second;
    rates.push_back(j.at("timings").at("decode").at("tokens_per_second"));
    const nlohmann::json& uses = j.at("counters").at("uses_steady");
    const double total = std::max(1.0, uses.at("total").get<double>());
    hits.push_back((uses.at("arena").get<double>() + uses.at("ra_timely").get<double>() +
                    uses.at("ra_late").get<double>()) /
                   total);
    const double demand = j["counters"].at("reads_demand").at("bytes");
    const double spec = j["counters"].at("reads_spec").at("bytes");
    read.push_back((demand + spec) / j["counters"].at("tokens").get<double>());
  }
  if (rates.empty()) return nullptr;
  const auto [low, high] = std::minmax_element(rates.begin(), rates.end());
  const auto [least, most] = std::minmax_element(hits.begin(), hits.end());
  return {{"decode_tokens_per_second", median(rates)},
          {"min", *low},
          {"max", *high},
          {"all", rates},
          {"hit_rate", median(hits)},
          {"hit_rate_min", *least},
          {"hit_rate_max", *most},
          {"bytes_per_token", median(read)}};
}

Json row_json(const Recipe& recipe, const RecipeArm& arm, const RecipeRouting& routing,
              const Results& results, const std::map<std::string, uint64_t>& bytes) {
  const std::string name = recipe_row_name(arm, routing);
  const auto result = [&](const char* step) {
    const auto found = results.find(name + step);
    return found == results.end() ? nullptr : &found->second;
  };
  Json row = {{"arm", arm.name}, {"routing", routing.name()}};
  if (bytes.contains(arm.name)) row["bytes"] = bytes.at(arm.name);
  if (const nlohmann::json* kld = result(".kld")) put_kld(*kld, &row);
  if (const nlohmann::json* kld = result(".against")) {
    row["against"] = against_json(arm.base, *kld);
  }
  if (const nlohmann::json* tasks = result(".tasks")) row["tasks"] = tasks_json(*tasks);
  if (Json speed = speed_json(recipe, name, results); !speed.is_null()) {
    row["speed"] = std::move(speed);
  }
  return row;
}

Json source_json(const Results& results, const std::map<std::string, uint64_t>& bytes) {
  Json out;
  if (bytes.contains("source")) out["bytes"] = bytes.at("source");
  const auto found = results.find("source");
  if (found == results.end()) return out;
  copy_figures(found->second, {"ppl"}, &out);
  copy_fields(found->second,
              {"quality_key", "positions", "text", "text_sha256", "overlap", "parts"}, &out);
  return out;
}

// "4.000 [3.500, 4.500]"
std::string with_interval(const Json& row, const char* name, double scale, int digits) {
  if (!row.contains(name)) return "-";
  std::string text = fmt::format("{:.{}f}", scale * row[name].get<double>(), digits);
  const std::string field = std::string(name) + "_interval";
  if (row.contains(field)) {
    text += fmt::format(" [{:.{}f}, {:.{}f}]", scale * row[field][0].get<double>(), digits,
                        scale * row[field][1].get<double>(), digits);
  }
  return text;
}

// "75.0 (70.0-80.0)"
std::string with_range(const Json& speed, const char* name, const char* low, const char* high,
                       double scale, int digits) {
  return fmt::format("{:.{}f} ({:.{}f}-{:.{}f})", scale * speed[name].get<double>(), digits,
                     scale * speed[low].get<double>(), digits, scale * speed[high].get<double>(),
                     digits);
}

std::string table_row(const std::string& arm, const std::string& routing, const Json& row) {
  const std::string size =
      row.contains("bytes") ? fmt::format("{:.1f}", row["bytes"].get<double>() * 1e-6) : "-";
  std::string speed = "-", hits = "-", tasks = "-", against = "-";
  if (row.contains("speed")) {
    const Json& s = row["speed"];
    speed = with_range(s, "decode_tokens_per_second", "min", "max", 1, 2);
    hits = with_range(s, "hit_rate", "hit_rate_min", "hit_rate_max", 100, 1);
  }
  if (row.contains("tasks")) tasks = with_interval(row["tasks"], "accuracy", 100, 1);
  if (row.contains("against")) {
    against = fmt::format("{}: {}", row["against"]["arm"].get<std::string>(),
                          with_interval(row["against"], "mean_kld", 1, 4));
  }
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", arm, routing, size,
                     speed, hits, with_interval(row, "ppl", 1, 3),
                     with_interval(row, "mean_kld", 1, 4), against,
                     with_interval(row, "same_top", 100, 2), tasks);
}

}  // namespace

Json recipe_result(const Recipe& recipe, const Results& results,
                   const std::map<std::string, uint64_t>& bytes) {
  Json rows = Json::array();
  for (const RecipeArm& arm : recipe.arms) {
    for (const RecipeRouting& routing : arm.routings) {
      rows.push_back(row_json(recipe, arm, routing, results, bytes));
    }
  }
  return {{"source", source_json(results, bytes)}, {"rows", std::move(rows)}};
}

std::string recipe_table(const Json& result) {
  std::string out =
      "| arm | routing | MB | tokens/s (min-max) | hits % (min-max) | perplexity [95 %] | mean KLD "
      "[95 %] | KLD against its base [95 %] | same top % [95 %] | tasks % [95 %] |\n"
      "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  const Json& source = result["source"];
  out += table_row("source", "exact", source);
  for (const Json& row : result["rows"]) {
    out += table_row(row["arm"].get<std::string>(), row["routing"].get<std::string>(), row);
  }
  if (source.contains("overlap") && source["overlap"].is_object()) {
    out += fmt::format(
        "\nof {} sequences of 13 tokens in the text that judges, {} stand in the "
        "calibration text too\n",
        source["overlap"]["sequences_of_13"].get<uint64_t>(),
        source["overlap"]["shared"].get<uint64_t>());
  }
  return out;
}

}  // namespace penstock::measure
