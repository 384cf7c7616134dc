// Stored distributions of a base model over a text, to compare others with (docs/quality.md gives
// the layout). Written window by window, each with its checksum; an interrupted file goes on where
// it ended. llama.cpp's files (`llama-perplexity --kl-divergence-base`) are read too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "gguf/metadata.h"
#include "measure/scores.h"
#include "surgery/corpus.h"

namespace penstock::measure {

struct BaseHeader {
  BaseRows::Form form = BaseRows::Form::Compact;
  int64_t n_vocab = 0;
  int64_t window_tokens = 0;
  uint64_t n_windows = 0;  // of the text
  std::string mode;        // batch or step
  Sha256 model_id{};
  Sha256 corpus_id{};
  std::string model_name, quality_key;
  Sha256 tokenizer_id{};       // tokenizer_id() of the model; zeros where nothing says
  bool chat_template = false;  // whether the text went through the model's chat template
  // Of what goes into the file beside the rows: without them a base is only as good as its name.
  std::vector<int32_t> tokens;  // the whole text's

  uint64_t row_bytes() const noexcept;
  uint64_t window_bytes() const noexcept;  // its rows, without index, scores and checksum
};

// SHA-256 over what makes token ids of text: kind, pre-tokenizer, tokens and merges. Zeros where
// the file has no tokenizer.
Sha256 tokenizer_id(const gguf::Metadata& metadata);

class BaseWriter {
 public:
  // Goes on with PATH.partial if it is the beginning of the same file. Throws Error(Io) when the
  // disk has no room for all of it.
  BaseWriter(std::string path, const BaseHeader& header, uint64_t windows_to_come);
  ~BaseWriter();
  BaseWriter(const BaseWriter&) = delete;
  BaseWriter& operator=(const BaseWriter&) = delete;

  bool has(uint64_t window) const noexcept { return offsets_.contains(window); }
  // All rows of a window, in the header's form, and -ln p of the token after each.
  void write(uint64_t window, std::span<const std::byte> rows, std::span<const double> nll);
  // Those of a window that is there: [n_scored].
  std::vector<double> nll(uint64_t window) const;
  void finish();  // the file appears under its name

 private:
  void resume(uint64_t header_bytes);

  std::string path_, partial_;
  BaseHeader header_;
  int fd_ = -1;
  uint64_t end_ = 0;
  std::unordered_map<uint64_t, uint64_t> offsets_;
};

class BaseReader {
 public:
  // Throws Error(Format) naming the field for a file of neither kind, a truncated or damaged one,
  // or one with tokens outside its vocabulary.
  static BaseReader open(const std::string& path);
  // Whether the file begins like one.
  static bool is_base(const std::string& path);

  const BaseHeader& header() const noexcept { return header_; }
  bool llama() const noexcept { return llama_; }
  bool has(uint64_t window) const noexcept { return offsets_.contains(window); }
  // The rows of a window, checked; valid until the next call. Throws Error(Format) naming the
  // window when the checksum does not fit.
  BaseRows rows(uint64_t window);

 private:
  void open_ours();
  void open_llama();

  void read_header(std::string_view json, uint64_t* n_tokens);
  void check_tokens() const;

  File file_;
  BaseHeader header_;
  bool llama_ = false;
  std::unordered_map<uint64_t, uint64_t> offsets_;  // of a window's rows
  std::vector<std::byte> buffer_;
  std::optional<uint64_t> loaded_;  // the window in it
};

}  // namespace penstock::measure
