#include "measure/sim_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "base/error.h"
#include "measure/report_text.h"

namespace penstock::measure {
namespace {

constexpr double kWidth = 720, kPanel = 420, kLeft = 76, kRight = 20, kTop = 56, kBottom = 62;
constexpr double kLegendRow = 26;
constexpr size_t kColours = 8;

struct Curve {
  std::string name;
  bool clairvoyant = false;
  std::vector<const SimResult*> points;  // by rising slots
};

std::vector<Curve> curves_of(const SimReport& report) {
  std::vector<Curve> curves;
  for (const SimResult& r : report.results) {
    const std::string name = setting_text(r.setting);
    auto at =
        std::find_if(curves.begin(), curves.end(), [&](const Curve& c) { return c.name == name; });
    if (at == curves.end()) {
      curves.push_back({name, is_clairvoyant(r.setting.policy), {}});
      at = curves.end() - 1;
    }
    at->points.push_back(&r);
  }
  for (Curve& c : curves) {
    std::stable_sort(c.points.begin(), c.points.end(),
                     [](const SimResult* a, const SimResult* b) { return a->slots < b->slots; });
  }
  std::erase_if(curves, [](const Curve& c) { return c.points.size() < 2; });
  return curves;
}

// 1, 2 or 5 times a power of ten, so that about `n` of them make up `span`.
double nice_step(double span, int n) {
  const double raw = span / n;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (m * power >= raw) return m * power;
  }
  return 10 * power;
}

class Panel {
 public:
  Panel(double top, double x0, double x1, double y0, double y1)
      : top_(top), x0_(std::log(x0)), x1_(std::log(x1)), y0_(y0), y1_(y1) {}

  double x(double value) const {
    return kLeft + (std::log(value) - x0_) / (x1_ - x0_) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return top_ + kTop + (1 - (value - y0_) / (y1_ - y0_)) * (kPanel - kTop - kBottom);
  }
  double bottom() const { return top_ + kPanel - kBottom; }

  std::string frame(const std::string& title, const std::string& unit, double first_x,
                    double last_x) const {
    std::string out = fmt::format("<text class=\"title\" x=\"{}\" y=\"{:.0f}\">{}</text>\n", 12,
                                  top_ + 30, title);
    const double step = nice_step(y1_ - y0_, 5);
    for (double v = std::ceil(y0_ / step) * step; v <= y1_ + 1e-9 * step; v += step) {
      out += fmt::format(
          "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{2:.1f}\" x2=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
          "<text class=\"tick\" text-anchor=\"end\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5:g}{6}</text>\n",
          kLeft, kWidth - kRight, y(v), kLeft - 8, y(v) + 6, v, unit);
    }
    // Few enough that they never touch on a narrow screen.
    for (int i = 0; i <= 4; ++i) {
      const double v =
          std::exp(std::log(first_x) + i / 4.0 * (std::log(last_x) - std::log(first_x)));
      const char* anchor = i == 0 ? "start" : i == 4 ? "end" : "middle";
      out += fmt::format(
          "<text class=\"tick\" text-anchor=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{:.0f}</text>\n",
          anchor, x(v), bottom() + 24, v);
    }
    out += fmt::format(
        "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">slots (experts in "
        "memory)</text>\n",
        (kLeft + kWidth - kRight) / 2, bottom() + 48);
    return out;
  }

 private:
  double top_, x0_, x1_, y0_, y1_;
};

using Value = std::function<double(const SimResult&)>;

std::string path_of(const Panel& panel, const Curve& curve, const Value& value) {
  std::string out;
  for (const SimResult* r : curve.points) {
    out += fmt::format("{}{:.1f},{:.1f}", out.empty() ? "M" : " L",
                       panel.x(static_cast<double>(r->slots)), panel.y(value(*r)));
  }
  return out;
}

// Between the best policy and the bound: what a better policy could still win.
std::string gap_area(const Panel& panel, const std::vector<Curve>& curves, const Value& value) {
  std::map<uint64_t, double> best;
  std::map<uint64_t, double> bound;
  for (const Curve& c : curves) {
    for (const SimResult* r : c.points) {
      if (r->setting.policy == SimPolicy::Clairvoyant) {
        const auto [at, fresh] = bound.try_emplace(r->slots, value(*r));
        if (!fresh) at->second = std::max(at->second, value(*r));
      } else if (r->bound_misses && !c.clairvoyant) {
        const auto [at, fresh] = best.try_emplace(r->slots, value(*r));
        if (!fresh) at->second = std::max(at->second, value(*r));
      }
    }
  }
  std::string forth, back;
  for (const auto& [slots, low] : best) {
    const auto high = bound.find(slots);
    if (high == bound.end()) continue;
    const double at = panel.x(static_cast<double>(slots));
    forth += fmt::format("{:.1f},{:.1f} ", at, panel.y(high->second));
    back = fmt::format("{:.1f},{:.1f} ", at, panel.y(low)) + back;
  }
  if (forth.empty()) return {};
  return fmt::format("<polygon class=\"gap\" points=\"{}{}\"/>\n", forth, back);
}

std::string draw(const Panel& panel, const std::vector<Curve>& curves, const Value& value) {
  std::string out = gap_area(panel, curves, value);
  for (size_t i = 0; i < curves.size(); ++i) {
    const Curve& c = curves[i];
    out += fmt::format("<path class=\"curve c{}{}\" d=\"{}\"/>\n", i % kColours,
                       c.clairvoyant ? " bound" : "", path_of(panel, c, value));
    std::vector<double> xs, ys;
    for (const SimResult* r : c.points) {
      xs.push_back(static_cast<double>(r->slots));
      ys.push_back(value(*r));
    }
    const auto knee = find_knee(xs, ys);
    if (!knee || c.clairvoyant) continue;
    out += fmt::format(
        "<circle class=\"knee c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6\"><title>knee of {}: {} "
        "slots</title></circle>\n",
        i % kColours, panel.x(xs[*knee]), panel.y(ys[*knee]), html_text(c.name), xs[*knee]);
  }
  return out;
}

std::string legend(const std::vector<Curve>& curves, double top) {
  std::string out;
  for (size_t i = 0; i < curves.size(); ++i) {
    const double y = top + kLegendRow * static_cast<double>(i) + 14;
    out += fmt::format(
        "<path class=\"curve c{}{}\" d=\"M 12,{:.0f} L 52,{:.0f}\"/><text class=\"tick\" x=\"62\" "
        "y=\"{:.0f}\">{}</text>\n",
        i % kColours, curves[i].clairvoyant ? " bound" : "", y, y, y + 6,
        html_text(curves[i].name));
  }
  const double y = top + kLegendRow * static_cast<double>(curves.size()) + 14;
  return out + fmt::format(
                   "<text class=\"tick\" x=\"12\" y=\"{:.0f}\">dots: knees; shaded: from the best "
                   "policy to the clairvoyant bound</text>\n",
                   y + 6);
}

constexpr const char* kStyle = R"(<style>
svg{background:#fff;color:#1b1f24}
text{fill:currentColor;font-family:system-ui,sans-serif}
.title{font-size:21px;font-weight:600}.tick{font-size:17px}
.grid{stroke:currentColor;stroke-opacity:.15}
.gap{fill:currentColor;fill-opacity:.07}
.curve{fill:none;stroke-width:3}.bound{stroke-dasharray:9 6}
.knee{stroke-width:3;fill:#fff}
.c0{stroke:#0b62c4}.c1{stroke:#b3261e}.c2{stroke:#1a7f37}.c3{stroke:#8250df}
.c4{stroke:#9a6700}.c5{stroke:#57606a}.c6{stroke:#0e7c86}.c7{stroke:#bf3989}
@media (prefers-color-scheme:dark){
svg{background:#0d1117;color:#e6edf3}.knee{fill:#0d1117}
.c0{stroke:#6cb6ff}.c1{stroke:#ff8b81}.c2{stroke:#57d364}.c3{stroke:#d2a8ff}
.c4{stroke:#e3b341}.c5{stroke:#adbac7}.c6{stroke:#56d4dd}.c7{stroke:#ff9bce}}
</style>
)";

}  // namespace

std::string sim_plot(const SimReport& report) {
  const std::vector<Curve> curves = curves_of(report);
  if (curves.empty()) {
    fail(ErrorKind::Usage, "a plot needs several sizes: --slots sweep, or a list");
  }
  double x0 = 1e300, x1 = 0, low = 100, fastest = 0;
  for (const Curve& c : curves) {
    for (const SimResult* r : c.points) {
      x0 = std::min(x0, static_cast<double>(r->slots));
      x1 = std::max(x1, static_cast<double>(r->slots));
      low = std::min(low, 100 * r->counts.hit_rate());
      fastest = std::max(fastest, r->tokens_per_s());
    }
  }
  if (x1 <= x0) fail(ErrorKind::Usage, "a plot needs several sizes: --slots sweep, or a list");
  const bool speed = fastest > 0;
  const double panels = speed ? 2 * kPanel : kPanel;
  const double height = panels + kLegendRow * static_cast<double>(curves.size() + 1) + 16;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\">\n"
      "<title>Routing replayed: hits by arena size</title>\n",
      kWidth, height);
  out += kStyle;
  const Panel hits(0, x0, x1, std::floor(low / 10) * 10, 100);
  out += hits.frame("Uses found in memory or read ahead", " %", x0, x1);
  out += draw(hits, curves, [](const SimResult& r) { return 100 * r.counts.hit_rate(); });
  if (speed) {
    const Panel rate(kPanel, x0, x1, 0, fastest * 1.05);
    out += rate.frame("Tokens per second, estimated", "", x0, x1);
    out += draw(rate, curves, [](const SimResult& r) { return r.tokens_per_s(); });
  }
  return out + legend(curves, panels) + "</svg>\n";
}

}  // namespace penstock::measure
