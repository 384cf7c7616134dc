// The plots of a report: one comparison each, drawn from the figures of its groups.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "measure/formula.h"
#include "measure/record.h"
#include "measure/report.h"
#include "measure/report_groups.h"
#include "measure/report_svg.h"
#include "measure/report_text.h"
#include "measure/token_timeline.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

constexpr double kTop = 40, kRow = 48, kAxis = 30, kBar = 13;
constexpr size_t kLabel = 62;  // characters that fit beside no value

// Nothing sensible can be drawn of values that are near the end of what a number holds.
bool drawable(double most) {
  return most > 0 && most < 1e300;
}

// Where a bar's label ends and its value begins.
void row_text(Canvas* canvas, double y, const std::string& label, const std::string& value) {
  const size_t taken = characters(value) + 2;
  canvas->text(0, y + 15, shortened(label, taken + 8 < kLabel ? kLabel - taken : 8));
  canvas->text(kPlotWidth, y + 15, value, "end", "v");
}

void bottom_axis(Canvas* canvas, const Axis& axis, double top, double bottom, int about) {
  for (const double tick : axis.ticks(about)) {
    const double x = axis.at(tick);
    canvas->line(x, top, x, bottom, tick == 0 ? "base" : "grid");
    const char* anchor = x > kPlotWidth - 14 ? "end" : x < 6 ? "start" : "middle";
    canvas->text(x, bottom + 20, tick_text(tick), anchor, "s");
  }
}

std::string value_text(const ReportSeries& series) {
  const int digits = series.figure->digits;
  std::string out = number_text(series.spread.median, digits);
  if (!series.figure->unit.empty()) out += " " + series.figure->unit;
  return out;
}

std::string why_nothing(const ReportGroup& group) {
  for (const ReportRun& run : group.runs) {
    if (!run.reason.empty()) return run.reason;
  }
  for (const ReportRun& run : group.runs) {
    if (!run.no_decode.empty()) return run.no_decode;
  }
  return "not given by its records";
}

std::string run_name(const ReportRun& run) {
  return run.record == nullptr ? std::string("no record") : short_id(*run.record);
}

std::string void_text(const ReportSection& section) {
  return section.is_void ? " (VOID)" : "";
}

// Medians as bars, every run as a dot; groups without the figure say why.
ReportPlot bars(const ReportSection& section, const ReportComparison& comparison, const char* name,
                const char* figure, const std::string& title) {
  double most = 0;
  size_t n = 0;
  for (const ReportGroup& group : comparison.groups) {
    if (const ReportSeries* series = group.find(figure)) {
      most = std::max(most, series->spread.most);
      ++n;
    }
  }
  if (n == 0 || !drawable(most)) return {};
  Canvas canvas;
  canvas.text(0, 20, title + void_text(section), "start", "h");
  const double bottom = kTop + kRow * static_cast<double>(comparison.groups.size());
  const Axis axis(0, most * 1.02, 0, kPlotWidth - 6);
  bottom_axis(&canvas, axis, kTop, bottom, 5);
  for (size_t i = 0; i < comparison.groups.size(); ++i) {
    const ReportGroup& group = comparison.groups[i];
    const double y = kTop + kRow * static_cast<double>(i);
    const ReportSeries* series = group.find(figure);
    std::string label = group.label;
    if (!group.lossy.empty()) label += " [lossy: " + group.lossy + "]";
    if (series == nullptr) {
      row_text(&canvas, y, label, "none");
      canvas.text(0, y + 33, shortened(why_nothing(group), kLabel), "start", "s");
      continue;
    }
    if (series->spread.n < kLeastRuns) label += fmt::format(" (n < {})", kLeastRuns);
    row_text(&canvas, y, label, value_text(*series));
    canvas.bar(0, y + 22, axis.at(series->spread.median), kBar, 0,
               fmt::format("{}: median {}", group.label, value_text(*series)));
    for (const auto& [run, value] : series->values) {
      canvas.dot(axis.at(value), y + 22 + kBar / 2, 1,
                 fmt::format("{}: {}", run_name(group.runs[run]),
                             number_text(value, series->figure->digits)));
    }
  }
  return {name, title, canvas.svg(title + void_text(section), bottom + kAxis)};
}

struct Part {
  const char* figure;
  const char* title;
};

// Parts of one run each, the typical one of its group.
ReportPlot stacked(const ReportSection& section, const ReportComparison& comparison,
                   const char* name, const std::string& title, const std::string& unit,
                   const std::vector<Part>& parts, double whole) {
  std::vector<const ReportGroup*> groups;
  double most = whole;
  for (const ReportGroup& group : comparison.groups) {
    const ReportRun* run = group.typical();
    if (run == nullptr) continue;
    double sum = 0;
    size_t given = 0;
    for (const Part& part : parts) {
      if (!run->gives(part.figure)) continue;
      sum += std::max(0.0, run->values.at(part.figure));
      ++given;
    }
    if (given < 2) continue;
    groups.push_back(&group);
    most = std::max(most, sum);
  }
  if (groups.empty() || !drawable(most)) return {};
  Canvas canvas;
  canvas.text(0, 20, title + void_text(section), "start", "h");
  const double bottom = kTop + kRow * static_cast<double>(groups.size());
  const Axis axis(0, whole > 0 ? whole : most * 1.02, 0, kPlotWidth - 6);
  bottom_axis(&canvas, axis, kTop, bottom, 5);
  for (size_t i = 0; i < groups.size(); ++i) {
    const ReportRun& run = *groups[i]->typical();
    const double y = kTop + kRow * static_cast<double>(i);
    double sum = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (!run.gives(parts[p].figure)) continue;
      const double value = std::max(0.0, run.values.at(parts[p].figure));
      canvas.bar(
          axis.at(sum), y + 22, axis.at(sum + value) - axis.at(sum), kBar + 3, p,
          fmt::format("{}, {}: {} {}", run_name(run), parts[p].title, number_text(value, 3), unit));
      sum += value;
    }
    row_text(&canvas, y, groups[i]->label,
             whole > 0 ? run_name(run) : number_text(sum, 2) + " " + unit);
  }
  std::vector<std::string> names;
  for (const Part& part : parts) names.emplace_back(part.title);
  const double used = canvas.legend(bottom + kAxis + 6, names);
  return {name, title, canvas.svg(title + void_text(section), bottom + kAxis + 6 + used)};
}

// Wall of every decode step, split into compute and stall; steps are averaged where there are more
// than fit.
ReportPlot timeline(const ReportSection& section, const ReportComparison& comparison) {
  const ReportRun* run = nullptr;
  const ReportGroup* group = nullptr;
  for (const ReportGroup& candidate : comparison.groups) {
    const ReportRun* typical = candidate.typical();
    if (run != nullptr || typical == nullptr || !typical->gives("decode_tok_s")) continue;
    const Json* rows = resolve_pointer(typical->record->value, "/tokens");
    if (typical->record->schema != kRecordSchema || rows == nullptr || rows->size() < 2) continue;
    run = typical;
    group = &candidate;
  }
  if (run == nullptr) return {};
  const Json& rows = *resolve_pointer(run->record->value, "/tokens");
  const auto& columns = token_columns();
  const auto column = [&](const char* name) {
    return static_cast<size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin());
  };
  constexpr size_t kMost = 256;
  const size_t per = (rows.size() + kMost - 1) / kMost;
  std::vector<std::pair<double, double>> steps;  // compute and stall, in ms
  double most = 0;
  for (size_t i = 0; i < rows.size(); i += per) {
    double compute = 0, stall = 0;
    const size_t end = std::min(rows.size(), i + per);
    for (size_t j = i; j < end; ++j) {
      compute += rows[j][column("compute_ns")].get<double>() / 1e6;
      stall += rows[j][column("stall_ns")].get<double>() / 1e6;
    }
    const double n = static_cast<double>(end - i);
    steps.emplace_back(std::max(0.0, compute / n), stall / n);
    most = std::max(most, steps.back().first + steps.back().second);
  }
  if (!drawable(most)) return {};
  const std::string title = "Time of every token";
  constexpr double kLeft = 48, kBottom = 260, kFirst = 70;
  Canvas canvas;
  canvas.text(0, 20, title + void_text(section), "start", "h");
  canvas.text(0, 44,
              shortened(fmt::format("ms; {}, run {}{}", group->label, run_name(*run),
                                    per > 1 ? fmt::format(", means of {} tokens", per) : ""),
                        kLabel + 8),
              "start", "s");
  const Axis y(0, most * 1.02, kBottom, kFirst);
  for (const double tick : y.ticks(4)) {
    canvas.line(kLeft, y.at(tick), kPlotWidth, y.at(tick), tick == 0 ? "base" : "grid");
    canvas.text(kLeft - 8, y.at(tick) + 5, tick_text(tick), "end", "s");
  }
  const Axis x(0, static_cast<double>(rows.size()), kLeft, kPlotWidth);
  const double width = (kPlotWidth - kLeft) / static_cast<double>(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const double left = kLeft + width * static_cast<double>(i);
    const auto [compute, stall] = steps[i];
    const double middle = y.at(compute);
    canvas.bar(left, middle, width * 0.86, kBottom - middle, 0);
    canvas.bar(left, y.at(compute + stall), width * 0.86, middle - y.at(compute + stall), 1);
  }
  for (const double tick : x.ticks(5)) {
    const char* anchor = x.at(tick) > kPlotWidth - 14 ? "end" : "middle";
    canvas.text(x.at(tick), kBottom + 20, tick_text(tick), anchor, "s");
  }
  const double used = canvas.legend(kBottom + 34, {"computing", "waiting for the disk"});
  return {"timeline", title, canvas.svg(title, kBottom + 34 + used)};
}

// A figure over the number of slots: medians joined, every run a dot.
double panel(Canvas* canvas, const ReportComparison& comparison, const char* figure,
             const std::string& title, double top, size_t colour) {
  std::vector<std::pair<double, double>> medians;
  std::vector<std::pair<double, double>> dots;
  double low = 1e300, high = 0, most = 0;
  for (const ReportGroup& group : comparison.groups) {
    const ReportSeries* series = group.find(figure);
    const ReportSeries* slots = group.find("slots");
    if (series == nullptr || slots == nullptr || !(slots->spread.median > 0)) continue;
    if (!of_an_arena_plot(comparison, group)) continue;
    if (group.runs.front().control) continue;  // its size is there already
    medians.emplace_back(slots->spread.median, series->spread.median);
    for (const auto& [run, value] : series->values) dots.emplace_back(medians.back().first, value);
    low = std::min(low, medians.back().first);
    high = std::max(high, medians.back().first);
    most = std::max(most, series->spread.most);
  }
  if (medians.size() < 2 || !(high > low) || !drawable(most) || !drawable(high)) return 0;
  std::sort(medians.begin(), medians.end());
  constexpr double kLeft = 52, kHeight = 190;
  canvas->text(0, top + 15, title);
  const Axis x(low, high, kLeft + 8, kPlotWidth - 14, true);
  const Axis y(0, most * 1.04, top + kHeight, top + 28);
  for (const double tick : y.ticks(4)) {
    canvas->line(kLeft, y.at(tick), kPlotWidth, y.at(tick), tick == 0 ? "base" : "grid");
    canvas->text(kLeft - 8, y.at(tick) + 5, tick_text(tick), "end", "s");
  }
  std::vector<std::pair<double, double>> line;
  double last = -100;
  for (const auto& [slots, value] : medians) {
    line.emplace_back(x.at(slots), y.at(value));
    if (x.at(slots) - last < 46) continue;
    last = x.at(slots);
    canvas->text(last, top + kHeight + 20, tick_text(slots),
                 last > kPlotWidth - 24 ? "end" : "middle", "s");
  }
  canvas->path(line, colour);
  for (const auto& [slots, value] : dots) canvas->dot(x.at(slots), y.at(value), colour);
  return kHeight + 34;
}

ReportPlot by_slots(const ReportSection& section, const ReportComparison& comparison) {
  if (!comparison.by_slots) return {};
  const std::string title = "Arena size";
  Canvas canvas;
  canvas.text(0, 20, title + void_text(section), "start", "h");
  double height = kTop;
  height += panel(&canvas, comparison, "decode_tok_s", "decode, tok/s, by slots", height, 0);
  height += panel(&canvas, comparison, "hit_pct", "hits, % of uses, by slots", height, 2);
  if (height == kTop) return {};
  return {"slots", title, canvas.svg(title, height)};
}

struct Judged {
  const ReportGroup* group;
  std::string label;
};

// Of the kind and text; null if the group has none.
const ReportQuality* quality_of_kind(const ReportGroup& group, const std::string& kind,
                                     const std::string& text) {
  for (const ReportQuality& quality : group.quality) {
    if (quality.kind == kind && quality.text == text && !quality.values.empty()) return &quality;
  }
  return nullptr;
}

struct Box {
  double left, right, top, bottom;
  bool touches(const Box& other) const noexcept {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// Beside the point, where the number covers nothing that is there: to its right or left, above it
// or below, each a little farther as long as nothing is free.
Box free_place(const std::pair<double, double>& point, const std::string& number,
               const std::vector<Box>& taken) {
  const double width = 9.0 * static_cast<double>(number.size());
  const auto at = [&](double left, double bottom) {
    return Box{left, left + width, bottom - 11, bottom};
  };
  for (double far = 0; far < 60; far += 6) {
    for (const Box& box : {at(point.first + 8, point.second - 7 - far),
                           at(point.first - 8 - width, point.second - 7 - far),
                           at(point.first + 8, point.second + 17 + far),
                           at(point.first - 8 - width, point.second + 17 + far)}) {
      if (std::ranges::none_of(taken, [&](const Box& t) { return t.touches(box); })) return box;
    }
  }
  return at(point.first + 8, point.second - 7);
}

ReportPlot quality_plot(const ReportSection& section, const std::vector<Judged>& groups,
                        const std::string& kind, const std::string& text,
                        const std::string& title) {
  std::vector<std::pair<double, double>> points;
  std::vector<std::string> names;
  std::string axis_title;
  double low = 1e300, high = -1e300, most = 0;
  for (const Judged& judged : groups) {
    const ReportSeries* speed = judged.group->find("decode_tok_s");
    if (speed == nullptr || judged.group->runs.front().control) continue;
    const ReportQuality* quality = quality_of_kind(*judged.group, kind, text);
    if (quality == nullptr) {
      names.push_back("-  " + judged.label + " (quality: unmeasured)");
      continue;
    }
    const ReportQuality::Value& value = quality->values.front();
    axis_title = value.title + (value.unit.empty() ? "" : ", " + value.unit);
    points.emplace_back(value.value, speed->spread.median);
    names.push_back(fmt::format("{}  {}", points.size(), judged.label));
    low = std::min(low, value.value);
    high = std::max(high, value.value);
    most = std::max(most, speed->spread.median);
  }
  // Of one quality only their speeds differ, which other plots show.
  const bool apart = std::fabs(low) < 1e300 && std::fabs(high) < 1e300 && high > low;
  if (points.size() < 2 || !drawable(most) || !apart) return {};
  constexpr double kLeft = 52, kHeight = 240;
  Canvas canvas;
  canvas.text(0, 20, title + void_text(section), "start", "h");
  canvas.text(0, kTop + 10, "decode, tok/s", "start", "s");
  const double margin = (high - low) * 0.08;
  const Axis x(low - margin, high + margin, kLeft, kPlotWidth - 10);
  const Axis y(0, most * 1.08, kTop + kHeight, kTop + 24);
  for (const double tick : y.ticks(4)) {
    canvas.line(kLeft, y.at(tick), kPlotWidth, y.at(tick), tick == 0 ? "base" : "grid");
    canvas.text(kLeft - 8, y.at(tick) + 5, tick_text(tick), "end", "s");
  }
  for (const double tick : x.ticks(4)) {
    canvas.text(x.at(tick), kTop + kHeight + 20, tick_text(tick), "middle", "s");
  }
  canvas.text((kLeft + kPlotWidth) / 2, kTop + kHeight + 42,
              shortened(axis_title + ": " + text, kLabel), "middle", "s");
  std::vector<Box> taken;
  for (auto& [px, py] : points) {
    px = x.at(px);
    py = y.at(py);
    canvas.dot(px, py, 0);
    taken.push_back({px - 5, px + 5, py - 5, py + 5});
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const std::string number = fmt::format("{}", i + 1);
    const Box box = free_place(points[i], number, taken);
    canvas.text(box.left, box.bottom, number, "start", "v");
    taken.push_back(box);
  }
  double height = kTop + kHeight + 70;
  for (const std::string& name : names) {
    canvas.text(0, height, shortened(name, kLabel + 6));
    height += 20;
  }
  return {"quality-" + kind, title, canvas.svg(title, height)};
}

}  // namespace

std::vector<ReportPlot> report_plots(const ReportSection& section,
                                     const ReportComparison& comparison) {
  std::vector<ReportPlot> out;
  const auto add = [&](ReportPlot plot) {
    if (!plot.svg.empty()) out.push_back(std::move(plot));
  };
  add(bars(section, comparison, "decode", "decode_tok_s", "Decode, tokens per second"));
  add(by_slots(section, comparison));
  add(bars(section, comparison, "prefill", "prefill_tok_s", "Prompt, tokens per second"));
  add(stacked(section, comparison, "classes", "Where decode found its experts, % of uses", "%",
              {{"arena_pct", "arena"},
               {"ra_timely_pct", "read ahead in time"},
               {"ra_late_pct", "read ahead too late"},
               {"miss_pct", "missed"}},
              100));
  add(bars(section, comparison, "bytes", "mb_per_token", "Read per token, MB"));
  add(stacked(section, comparison, "phases", "Phases of a run, seconds", "s",
              {{"load_s", "load"},
               {"fill_s", "warm fill"},
               {"prefill_s", "prompt"},
               {"first_token_s", "first token"},
               {"decode_s", "decode"}},
              0));
  add(timeline(section, comparison));
  add(token_plot(section, comparison));
  return out;
}

std::vector<ReportPlot> quality_plots(const ReportSection& section) {
  // Comparisons that differ in the model alone are drawn together.
  using Work = std::tuple<std::string, double, double>;
  std::map<Work, std::vector<const ReportComparison*>> together;
  for (const ReportComparison& comparison : section.comparisons) {
    const Workload& w = comparison.workload;
    std::string prompt = w.prompt;
    if (!comparison.groups.empty() && !comparison.groups[0].prompt.empty()) {
      prompt = comparison.groups[0].prompt;
    }
    together[{prompt, w.prompt_tokens.value_or(-1), w.decode_tokens.value_or(-1)}].push_back(
        &comparison);
  }
  struct Kind {
    const char* name;
    const char* title;
  };
  static constexpr Kind kKinds[] = {{"kld", "Decode speed against divergence"},
                                    {"perplexity", "Decode speed against perplexity"},
                                    {"tasks", "Decode speed against tasks solved"}};
  std::vector<ReportPlot> out;
  for (const auto& [work, comparisons] : together) {
    std::vector<Judged> groups;
    for (const ReportComparison* comparison : comparisons) {
      const std::string model = comparisons.size() > 1 ? comparison->model + ": " : "";
      for (const ReportGroup& group : comparison->groups) {
        std::string label = model + group.label;
        if (!group.lossy.empty()) label += " [lossy: " + group.lossy + "]";
        groups.push_back({&group, label});
      }
    }
    for (const Kind& kind : kKinds) {
      std::set<std::string> texts;
      for (const Judged& judged : groups) {
        for (const ReportQuality& quality : judged.group->quality) {
          if (quality.kind == kind.name) texts.insert(quality.text);
        }
      }
      for (const std::string& text : texts) {
        ReportPlot plot = quality_plot(section, groups, kind.name, text, kind.title);
        if (!plot.svg.empty()) out.push_back(std::move(plot));
      }
    }
  }
  return out;
}

}  // namespace penstock::measure
