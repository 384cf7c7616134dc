// Drawing for reports: an SVG of fixed width that scales, is styled by plot_style() for light and
// dark, and needs nothing beside itself.
#pragma once

#include <string>
#include <vector>

namespace penstock::measure {

inline constexpr double kPlotWidth = 560;  // user units; a phone shows them at about two thirds
inline constexpr size_t kPlotColours = 6;

class Canvas {
 public:
  // All text is escaped. `anchor`: start, middle or end.
  void text(double x, double y, const std::string& what, const char* anchor = "start",
            const char* style = "");
  void line(double x0, double y0, double x1, double y1, const char* style = "grid");
  // With `hint` for whoever points at it.
  void bar(double x, double y, double width, double height, size_t colour,
           const std::string& hint = {});
  void dot(double x, double y, size_t colour, const std::string& hint = {});
  void path(const std::vector<std::pair<double, double>>& points, size_t colour);

  // Swatches with names, wrapped; returns the height used.
  double legend(double y, const std::vector<std::string>& names);

  // The whole drawing. `title` is said to those who cannot see it.
  std::string svg(const std::string& title, double height) const;

 private:
  std::string body_;
};

// A linear or logarithmic axis: values in [low, high] onto [from, to].
class Axis {
 public:
  Axis(double low, double high, double from, double to, bool logarithmic = false);
  double at(double value) const;
  std::vector<double> ticks(int about) const;

 private:
  double low_, high_, from_, to_;
  bool logarithmic_;
};

std::string tick_text(double value);

}  // namespace penstock::measure
