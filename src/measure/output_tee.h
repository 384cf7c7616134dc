// Keeps a copy of what the process writes to a file descriptor while it goes where it went before.
#pragma once

#include <atomic>
#include <string>
#include <thread>

namespace penstock::measure {

class OutputTee {
 public:
  // fd: 1 or 2. Throws Error(Io) when the system gives no pipe.
  explicit OutputTee(int fd);
  ~OutputTee();
  OutputTee(const OutputTee&) = delete;
  OutputTee& operator=(const OutputTee&) = delete;

  // Ends the copying; the descriptor is what it was. The caller has flushed its buffers before.
  // Returns what was written.
  std::string stop();

 private:
  void pump();

  int fd_;
  int original_ = -1;
  int read_end_ = -1;
  std::string text_;
  std::thread thread_;
};

}  // namespace penstock::measure
