// Text for calibration and for measuring quality: files, one after the other as tokens, cut into
// windows of a fixed length. The same cut as llama.cpp's tools make, so that figures compare.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/runtime.h"

namespace penstock::surgery {

class Corpus {
 public:
  struct Part {
    std::string name;  // the file's, without its folders
    Sha256 tokens_id{};
    uint64_t first = 0;  // its place among all tokens
    uint64_t count = 0;
  };

  // Text files; a file NAME.ids holds token ids separated by white space. Throws Error(Io),
  // Error(Usage) when a file gives no token or all files less than a window.
  static Corpus load(const engine::Runtime& runtime, const std::vector<std::string>& files,
                     int64_t window);
  // Tokens that are there already, as one part.
  static Corpus of(std::vector<int32_t> tokens, int64_t window, std::optional<int32_t> first);

  uint64_t n_windows() const noexcept { return tokens_.size() / window_; }
  int64_t window_tokens() const noexcept { return static_cast<int64_t>(window_); }
  // Window w: its tokens, the first of them replaced by BOS where the model wants one.
  std::vector<int32_t> window(uint64_t w) const;
  bool begins_with_bos() const noexcept { return first_.has_value(); }

  std::span<const int32_t> tokens() const noexcept { return tokens_; }
  std::span<const Part> parts() const noexcept { return parts_; }
  // The part in which window w begins.
  size_t part_of(uint64_t w) const noexcept;
  const Sha256& id() const noexcept { return id_; }  // of all tokens, 32-bit little-endian

 private:
  void add(const std::string& name, std::span<const int32_t> ids);
  void close(const std::string& names);

  size_t window_ = 0;
  std::optional<int32_t> first_;
  std::vector<int32_t> tokens_;
  std::vector<Part> parts_;
  Sha256 id_{};
};

// SHA-256 over token ids, 32-bit little-endian.
Sha256 tokens_id(std::span<const int32_t> ids);

}  // namespace penstock::surgery
