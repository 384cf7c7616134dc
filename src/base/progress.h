// A progress line on stderr for work that takes more than a moment: percent, rate and time left.
// On a terminal one line is rewritten ten times a second; elsewhere a line appears every 10 s.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

class Progress {
 public:
  // The unit "B" prints amounts as MB or GB; any other unit prints plain counts.
  Progress(std::string label, uint64_t total, std::string unit = "B");
  ~Progress();  // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set(uint64_t done);
  void finish();

 private:
  void print(int64_t now, bool last);

  std::string label_;
  std::string unit_;
  uint64_t total_;
  uint64_t done_ = 0;
  int64_t start_;
  int64_t last_print_ = 0;
  bool terminal_;
  bool printed_ = false;
  bool finished_ = false;
};

}  // namespace penstock
