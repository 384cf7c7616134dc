// Runs the program as a user does: arguments in; text, files and exit code out.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "models/tiny_models.h"

namespace penstock::testing {

struct Outcome {
  int code = -1;
  std::string out, err;
};

inline std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << text;
  }
}

// The program as another process, with a folder for its files.
class Program : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  // Standard output and error go to the files out.TAG and err.TAG.
  pid_t start(const std::vector<std::string>& arguments, const std::string& tag = "0") const {
    const pid_t child = fork();
    if (child != 0) return child;
    std::vector<char*> argv = {const_cast<char*>(PENSTOCK_PROGRAM)};
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    if (std::freopen("/dev/null", "r", stdin) == nullptr ||
        std::freopen(path("out." + tag).c_str(), "w", stdout) == nullptr ||
        std::freopen(path("err." + tag).c_str(), "w", stderr) == nullptr) {
      _exit(126);
    }
    execv(PENSTOCK_PROGRAM, argv.data());
    _exit(127);
  }

  Outcome finish(pid_t child, const std::string& tag = "0") const {
    int status = 0;
    waitpid(child, &status, 0);
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    outcome.out = read_all(path("out." + tag));
    outcome.err = read_all(path("err." + tag));
    return outcome;
  }

  Outcome run(const std::vector<std::string>& arguments) const { return finish(start(arguments)); }

  std::string tiny(const std::string& architecture = "qwen4exp") const {
    TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    return write_tiny(folder_.path(), architecture, options);
  }

  TemporaryFolder folder_;
};

}  // namespace penstock::testing
