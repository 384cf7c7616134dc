#include "surgery/corpus.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "text/token_ids.h"

namespace penstock::surgery {

Sha256 tokens_id(std::span<const int32_t> ids) {
  Sha256Stream hash;
  for (const int32_t id : ids) {
    const auto value = static_cast<uint32_t>(id);
    const uint8_t bytes[] = {static_cast<uint8_t>(value), static_cast<uint8_t>(value >> 8),
                             static_cast<uint8_t>(value >> 16), static_cast<uint8_t>(value >> 24)};
    hash.update(bytes, sizeof bytes);
  }
  return hash.finish();
}

Corpus Corpus::load(const engine::Runtime& runtime, const std::vector<std::string>& files,
                    int64_t window) {
  Corpus corpus;
  corpus.window_ = static_cast<size_t>(window);
  std::string names;
  for (const std::string& path : files) {
    const std::filesystem::path file = path;
    std::vector<int32_t> ids;
    if (file.extension() == ".ids") {
      ids = text::read_token_ids(path);
    } else {
      ids = runtime.tokenizer().encode(read_text_file(path), false);
      runtime.tokenizer().prepend_bos(ids);
    }
    if (ids.empty()) fail(ErrorKind::Usage, "{} holds no text", path);
    const auto most = std::max_element(ids.begin(), ids.end());
    if (*most >= runtime.info().n_vocab) {
      fail(ErrorKind::Usage, "{}: token id {} is outside the vocabulary of {}", path, *most,
           runtime.info().n_vocab);
    }
    corpus.add(file.filename().string(), ids);
    names += (names.empty() ? "" : ", ") + path;
  }
  if (runtime.has_tokenizer() && runtime.tokenizer().add_bos()) {
    corpus.first_ = runtime.tokenizer().bos();
  }
  corpus.close(names);
  return corpus;
}

Corpus Corpus::of(std::vector<int32_t> tokens, int64_t window, std::optional<int32_t> first) {
  Corpus corpus;
  corpus.window_ = static_cast<size_t>(window);
  corpus.first_ = first;
  corpus.add("tokens", tokens);
  corpus.close("the tokens");
  return corpus;
}

void Corpus::add(const std::string& name, std::span<const int32_t> ids) {
  parts_.push_back({name, tokens_id(ids), tokens_.size(), ids.size()});
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
}

void Corpus::close(const std::string& names) {
  if (window_ < 2) fail(ErrorKind::Usage, "a window of {} tokens: 2 is the least", window_);
  if (n_windows() == 0) {
    fail(ErrorKind::Usage,
         "{}: {} tokens are less than one window of {}; give more text or a smaller window", names,
         tokens_.size(), window_);
  }
  id_ = tokens_id(tokens_);
}

std::vector<int32_t> Corpus::window(uint64_t w) const {
  const auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(w * window_);
  std::vector<int32_t> ids(begin, begin + static_cast<std::ptrdiff_t>(window_));
  if (first_) ids.front() = *first_;
  return ids;
}

size_t Corpus::part_of(uint64_t w) const noexcept {
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), w * window_,
                       [](uint64_t place, const Part& part) { return place < part.first; });
  return static_cast<size_t>(after - parts_.begin()) - 1;
}

}  // namespace penstock::surgery
