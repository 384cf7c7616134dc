#include "measure/report_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "measure/report.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

constexpr double kCharacter = 7.6;  // mean width of a character of the plots' text
constexpr double kLegendRow = 22;

std::string hint_text(const std::string& hint) {
  return hint.empty() ? std::string() : "<title>" + html_text(hint) + "</title>";
}

}  // namespace

void Canvas::text(double x, double y, const std::string& what, const char* anchor,
                  const char* style) {
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"", x, y);
  if (*style != '\0') body_ += fmt::format(" class=\"{}\"", style);
  if (anchor != std::string("start")) body_ += fmt::format(" text-anchor=\"{}\"", anchor);
  body_ += ">" + html_text(what) + "</text>\n";
}

void Canvas::line(double x0, double y0, double x1, double y1, const char* style) {
  body_ +=
      fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                  style, x0, y0, x1, y1);
}

void Canvas::bar(double x, double y, double width, double height, size_t colour,
                 const std::string& hint) {
  if (!(width > 0) || !(height > 0)) return;
  body_ += fmt::format(
      "<rect class=\"f{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
      "height=\"{:.2f}\">{}</rect>\n",
      colour % kPlotColours, x, y, width, height, hint_text(hint));
}

void Canvas::dot(double x, double y, size_t colour, const std::string& hint) {
  body_ += fmt::format("<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\">{}</circle>\n",
                       colour % kPlotColours, x, y, hint_text(hint));
}

void Canvas::path(const std::vector<std::pair<double, double>>& points, size_t colour) {
  std::string d;
  for (const auto& [x, y] : points)
    d += fmt::format("{}{:.1f},{:.1f}", d.empty() ? "M" : " L", x, y);
  body_ += fmt::format("<path class=\"l{}\" d=\"{}\"/>\n", colour % kPlotColours, d);
}

double Canvas::legend(double y, const std::vector<std::string>& names) {
  double x = 0, row = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const double width = 20 + kCharacter * static_cast<double>(characters(names[i])) + 16;
    if (x > 0 && x + width > kPlotWidth) {
      x = 0;
      row += kLegendRow;
    }
    bar(x, y + row, 13, 13, i);
    text(x + 19, y + row + 12, names[i]);
    x += width;
  }
  return row + kLegendRow;
}

std::string Canvas::svg(const std::string& title, double height) const {
  constexpr double kMargin = 8;
  return fmt::format(
             "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"{:.0f} 0 {:.0f} "
             "{:.0f}\" role=\"img\">\n<title>{}</title>\n",
             -kMargin, kPlotWidth + 2 * kMargin, height + kMargin, html_text(title)) +
         body_ + "</svg>\n";
}

Axis::Axis(double low, double high, double from, double to, bool logarithmic)
    : low_(low), high_(high), from_(from), to_(to), logarithmic_(logarithmic && low > 0) {
  if (!(high_ > low_)) high_ = low_ + (low_ == 0 ? 1 : std::fabs(low_));
}

double Axis::at(double value) const {
  const double share = logarithmic_ ? std::log(value / low_) / std::log(high_ / low_)
                                    : (value - low_) / (high_ - low_);
  return from_ + share * (to_ - from_);
}

std::vector<double> Axis::ticks(int about) const {
  const double raw = (high_ - low_) / about;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double m : {5.0, 2.0, 1.0}) {
    if (m * power >= raw * 0.999) step = m * power;
  }
  std::vector<double> out;
  // By index: adding up a step that is small beside the values would not end.
  const double first = std::ceil(low_ / step - 1e-9);
  for (int i = 0; i < 4 * about; ++i) {
    const double value = (first + i) * step;
    if (value > high_ * (1 + 1e-9)) break;
    out.push_back(value == 0 ? 0 : value);
  }
  return out;
}

std::string tick_text(double value) {
  return fmt::format("{:.6g}", value);
}

const char* plot_style() {
  return R"(.plot{--bg:#fff;--fg:#1b1f24;--f0:#2f7ad1;--f1:#d1603d;--f2:#3a9a5b;--f3:#8a63c9;--f4:#b58a1b;--f5:#6b7785;background:var(--bg);display:block;width:100%;height:auto;max-width:640px}
@media (prefers-color-scheme:dark){.plot{--bg:#0d1117;--fg:#e6edf3;--f0:#58a6ff;--f1:#ff8b6b;--f2:#56c977;--f3:#bc96f5;--f4:#e3b341;--f5:#9aa7b4}}
.plot text{fill:var(--fg);font:15px system-ui,sans-serif}
.plot .h{font-size:18px;font-weight:600}.plot .s{opacity:.75}.plot .v{font-weight:600}
.plot .grid{stroke:var(--fg);stroke-opacity:.16}.plot .base{stroke:var(--fg);stroke-opacity:.5}
.plot .f0,.plot .d0{fill:var(--f0)}.plot .f1,.plot .d1{fill:var(--f1)}.plot .f2,.plot .d2{fill:var(--f2)}
.plot .f3,.plot .d3{fill:var(--f3)}.plot .f4,.plot .d4{fill:var(--f4)}.plot .f5,.plot .d5{fill:var(--f5)}
.plot circle{stroke:var(--bg);stroke-width:1.5}.plot path{fill:none;stroke-width:2.5}
.plot .l0{stroke:var(--f0)}.plot .l1{stroke:var(--f1)}.plot .l2{stroke:var(--f2)}.plot .l3{stroke:var(--f3)}.plot .l4{stroke:var(--f4)}.plot .l5{stroke:var(--f5)}
)";
}

std::string svg_file(const ReportPlot& plot) {
  const size_t end = plot.svg.find(">\n");
  return plot.svg.substr(0, end + 2) + "<style>" + plot_style() + "</style>\n" +
         plot.svg.substr(end + 2);
}

}  // namespace penstock::measure
