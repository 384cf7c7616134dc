#include "measure/token_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "measure/archive.h"
#include "measure/formula.h"
#include "measure/report_svg.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

constexpr size_t kStrips = 4;
constexpr size_t kMostSpans = 20000;  // of a record that somebody else wrote
constexpr double kStripTop = 58, kStrip = 74, kLane = 20;

struct Span {
  std::string what;
  double from_ms = 0, ms = 0;
  int layer = -1;
  double mb = 0;
};

struct Token {
  double number = 0, ms = 0;
  std::vector<Span> spans;
};

// Colours of the plot, in the order of its legend.
constexpr const char* kKinds[] = {"dense",        "route, shared expert, predictions",
                                  "experts",      "waiting for reads",
                                  "reads wanted", "reads ahead"};

size_t colour_of(const std::string& what) {
  if (what == "dense") return 0;
  if (what == "experts") return 2;
  if (what == "waiting for reads") return 3;
  if (what == "read ahead" || what == "read fill") return 5;
  return what.starts_with("read ") ? 4 : 1;
}

std::optional<double> number(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  const double x = value.get<double>();
  return std::isfinite(x) && x >= -1 && x < 1e12 ? std::optional(x) : std::nullopt;
}

std::optional<Span> span_of(const Json& row) {
  if (!row.is_array() || row.size() != 5 || !row[0].is_string()) return std::nullopt;
  const auto from = number(row[1]), us = number(row[2]), layer = number(row[3]),
             bytes = number(row[4]);
  if (!from || !us || !layer || !bytes || *from < 0 || *us < 0) return std::nullopt;
  return Span{row[0].get<std::string>(), *from / 1e3, *us / 1e3, static_cast<int>(*layer),
              *bytes / 1e6};
}

std::optional<Token> token_of(const Json& record) {
  const Json* ms = resolve_pointer(record, "/token_timeline/ms");
  const Json* spans = resolve_pointer(record, "/token_timeline/spans");
  const Json* which = resolve_pointer(record, "/token_timeline/token");
  if (ms == nullptr || spans == nullptr || which == nullptr || !spans->is_array() ||
      spans->size() > kMostSpans) {
    return std::nullopt;
  }
  Token out;
  out.ms = number(*ms).value_or(0);
  out.number = number(*which).value_or(0);
  if (out.ms <= 0 || out.number < 1) return std::nullopt;
  for (const Json& row : *spans) {
    std::optional<Span> span = span_of(row);
    if (!span || span->from_ms + span->ms > out.ms * 1.001) return std::nullopt;
    out.spans.push_back(std::move(*span));
  }
  return out;
}

// One strip: the part of the token from `begin` on, `ms` long. Work above, reads below, side by
// side in as many rows as were in flight.
class Strip {
 public:
  Strip(Canvas* canvas, double top, double begin, double ms)
      : canvas_(canvas), top_(top), begin_(begin), ms_(ms) {}

  void draw(const std::vector<Span>& spans) {
    size_t rows = 1;
    for (const auto& [span, row] : reads_of(spans)) rows = std::max(rows, row + 1);
    const double height = (kLane - 2) / static_cast<double>(rows);
    int labelled = -1;
    double free_from = -1;
    for (const Span& span : spans) {
      if (span.what.starts_with("read ") || !inside(span)) continue;
      bar(span, top_, kLane);
      const double x = at(std::max(span.from_ms, begin_));
      if (span.layer < 0 || span.layer == labelled || x < free_from) continue;
      labelled = span.layer;
      free_from = x + 44;
      if (x < kPlotWidth - 30) {
        canvas_->text(x, top_ - 4, fmt::format("{}", span.layer), "start", "s");
      }
    }
    for (const auto& [span, row] : reads_of(spans)) {
      bar(*span, top_ + kLane + 2 + height * static_cast<double>(row), height);
    }
  }

 private:
  bool inside(const Span& span) const {
    return span.from_ms < begin_ + ms_ && span.from_ms + span.ms > begin_;
  }
  double at(double when) const { return (when - begin_) / ms_ * kPlotWidth; }

  // The reads of the strip, each with the first row that is free when it begins.
  std::vector<std::pair<const Span*, size_t>> reads_of(const std::vector<Span>& spans) const {
    std::vector<std::pair<const Span*, size_t>> out;
    std::vector<double> free;
    for (const Span& span : spans) {
      if (!span.what.starts_with("read ") || !inside(span)) continue;
      size_t row = 0;
      while (row < free.size() && free[row] > span.from_ms) ++row;
      if (row == free.size()) free.push_back(0);
      free[row] = span.from_ms + span.ms;
      out.emplace_back(&span, row);
    }
    return out;
  }

  void bar(const Span& span, double y, double height) {
    const double x = at(std::max(span.from_ms, begin_));
    const double right = at(std::min(span.from_ms + span.ms, begin_ + ms_));
    const std::string where = span.layer >= 0 ? fmt::format(", layer {}", span.layer) : "";
    const std::string how_much = span.mb > 0 ? fmt::format(", {:.2f} MB", span.mb) : "";
    canvas_->bar(x, y, std::max(0.4, right - x), height, colour_of(span.what),
                 fmt::format("{}{}{}, {:.3f} ms", span.what, where, how_much, span.ms));
  }

  Canvas* canvas_;
  double top_, begin_, ms_;
};

}  // namespace

nlohmann::ordered_json token_timeline_json(const experts::TokenTimeline& token) {
  const auto us = [](int64_t ns) { return static_cast<double>(ns) * 1e-3; };
  nlohmann::ordered_json spans = nlohmann::ordered_json::array();
  for (const experts::TokenTimeline::Span& span : token.spans) {
    std::string what = span.read
                           ? std::string("read ") +
                                 experts::reason_name(static_cast<experts::ReadReason>(span.what))
                           : experts::work_name(static_cast<experts::Work>(span.what));
    spans.push_back({std::move(what), us(span.from_ns), us(span.ns), span.layer, span.bytes});
  }
  return {{"token", token.token},
          {"ms", static_cast<double>(token.ns) * 1e-6},
          {"columns", {"what", "from_us", "us", "layer", "bytes"}},
          {"spans", std::move(spans)}};
}

ReportPlot token_plot(const ReportSection& section, const ReportComparison& comparison) {
  for (const ReportGroup& group : comparison.groups) {
    const ReportRun* run = group.typical();
    if (run == nullptr || run->record == nullptr) continue;
    const std::optional<Token> token = token_of(run->record->value);
    if (!token) continue;
    const std::string title = "Inside one token";
    Canvas canvas;
    canvas.text(0, 20, title + (section.is_void ? ", VOID" : ""), "start", "h");
    canvas.text(0, 38,
                shortened(fmt::format("token {:.0f}, {:.1f} ms in four rows, layers above; {}",
                                      token->number, token->ms, group.label),
                          80),
                "start", "s");
    const double part = token->ms / static_cast<double>(kStrips);
    for (size_t i = 0; i < kStrips; ++i) {
      const auto n = static_cast<double>(i);
      Strip(&canvas, kStripTop + kStrip * n, part * n, part).draw(token->spans);
    }
    const double bottom = kStripTop + kStrip * static_cast<double>(kStrips) - 20;
    const double used = canvas.legend(bottom, {std::begin(kKinds), std::end(kKinds)});
    return {"token", title, canvas.svg(title, bottom + used)};
  }
  return {};
}

}  // namespace penstock::measure
