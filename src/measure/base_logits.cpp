#include "measure/base_logits.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace penstock::measure {
namespace {

constexpr char kMagic[8] = {'P', 'N', 'S', 'T', 'B', 'A', 'S', 'E'};
constexpr char kLlamaMagic[8] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};
// Version 1 has no checksum over header and tokens and no scores beside a window's rows.
constexpr uint32_t kVersion = 2;
constexpr uint64_t kMostHeader = uint64_t{1} << 24;
constexpr int64_t kMostVocabulary = 1 << 22;
constexpr int64_t kMostWindow = 1 << 24;

// Before the header's JSON, the tokens and the windows.
struct Prefix {
  char magic[8];
  uint32_t version;
  uint32_t json_bytes;
};

// Of a window: its index, the rows, -ln p of the token after each as double, then XXH64 of rows and
// scores with the index as seed.
struct WindowHead {
  uint64_t index;
};

std::string header_text(const BaseHeader& h) {
  const nlohmann::ordered_json out = {{"form", h.form == BaseRows::Form::Compact ? "u16" : "f32"},
                                      {"n_vocab", h.n_vocab},
                                      {"window_tokens", h.window_tokens},
                                      {"n_windows", h.n_windows},
                                      {"mode", h.mode},
                                      {"model_id", hex(h.model_id)},
                                      {"corpus_id", hex(h.corpus_id)},
                                      {"model_name", h.model_name},
                                      {"quality_key", h.quality_key},
                                      {"tokenizer_id", hex(h.tokenizer_id)},
                                      {"chat_template", h.chat_template},
                                      {"n_tokens", h.tokens.size()}};
  return out.dump();
}

void check_sizes(const BaseHeader& h, const std::string& path) {
  if (h.n_vocab < 1 || h.n_vocab > kMostVocabulary || h.window_tokens < 2 ||
      h.window_tokens > kMostWindow ||
      h.n_windows > h.tokens.size() / static_cast<uint64_t>(h.window_tokens)) {
    fail(ErrorKind::Format,
         "{}: base logits of {} windows of {} tokens, {} tokens in all, vocabulary {}: they do not "
         "fit together",
         path, h.n_windows, h.window_tokens, h.tokens.size(), h.n_vocab);
  }
}

uint64_t scores_bytes(const BaseHeader& h) noexcept {
  return static_cast<uint64_t>(n_scored(h.window_tokens)) * sizeof(double);
}

uint64_t sum_of(uint64_t index, std::span<const std::byte> body) noexcept {
  return xxh64(body, index);
}

void write_all(int fd, uint64_t offset, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      fail(ErrorKind::Io, "{}: writing {} bytes at {}: {}", path, bytes.size(), offset,
           std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

std::vector<std::byte> encode_header(const BaseHeader& header) {
  const std::string json = header_text(header);
  Prefix prefix{};
  std::memcpy(prefix.magic, kMagic, sizeof kMagic);
  prefix.version = kVersion;
  prefix.json_bytes = static_cast<uint32_t>(json.size());
  const size_t summed = sizeof prefix + json.size() + header.tokens.size() * sizeof(int32_t);
  std::vector<std::byte> out(summed + sizeof(uint64_t));
  std::memcpy(out.data(), &prefix, sizeof prefix);
  std::memcpy(out.data() + sizeof prefix, json.data(), json.size());
  std::ranges::copy(std::as_bytes(std::span(header.tokens)),
                    out.begin() + static_cast<ptrdiff_t>(sizeof prefix + json.size()));
  const uint64_t sum = xxh64(std::span(out).first(summed));
  std::memcpy(out.data() + summed, &sum, sizeof sum);
  return out;
}

// That of all before `end`, which stands there.
void check_header_sum(const File& file, uint64_t end) {
  uint64_t sum = 0;
  if (file.size() - end < sizeof sum) {
    fail(ErrorKind::Format, "{}: cut off in its header", file.path());
  }
  file.read_at(end, std::as_writable_bytes(std::span(&sum, 1)));
  std::vector<std::byte> bytes(end);
  file.read_at(0, bytes);
  if (sum != xxh64(bytes)) {
    fail(ErrorKind::Format, "{}: header or tokens are damaged: their checksum does not fit",
         file.path());
  }
}

}  // namespace

uint64_t BaseHeader::row_bytes() const noexcept {
  return form == BaseRows::Form::Compact ? CompactRow::words(n_vocab) * sizeof(uint16_t)
                                         : static_cast<uint64_t>(n_vocab) * sizeof(float);
}

uint64_t BaseHeader::window_bytes() const noexcept {
  return static_cast<uint64_t>(n_scored(window_tokens)) * row_bytes();
}

Sha256 tokenizer_id(const gguf::Metadata& metadata) {
  if (!metadata.has("tokenizer.ggml.tokens")) return {};
  Sha256Stream hash;
  const auto add = [&](std::string_view text) {
    const uint64_t size = text.size();
    hash.update(&size, sizeof size);
    hash.update(text.data(), text.size());
  };
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre"}) {
    add(metadata.get_string(key, ""));
  }
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    add(key);
    if (!metadata.has(key)) continue;
    for (const std::string_view text : metadata.get_string_array(key)) add(text);
  }
  return hash.finish();
}

BaseWriter::BaseWriter(std::string path, const BaseHeader& header, uint64_t windows_to_come)
    : path_(std::move(path)), partial_(path_ + ".partial"), header_(header) {
  const std::vector<std::byte> bytes = encode_header(header_);
  fd_ = open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ErrorKind::Io, "{}: {}", partial_, std::strerror(errno));
  const std::filesystem::path file = std::filesystem::absolute(path_);
  const auto size = static_cast<uint64_t>(lseek(fd_, 0, SEEK_END));
  const uint64_t whole =
      bytes.size() + windows_to_come * (header_.window_bytes() + scores_bytes(header_) + 16);
  const std::filesystem::space_info space = std::filesystem::space(file.parent_path());
  if (whole > size && whole - size > space.available) {
    close(fd_);
    if (size == 0) unlink(partial_.c_str());
    fail(ErrorKind::Io, "{}: {} more bytes are needed, the disk has {}", path_, whole - size,
         space.available);
  }
  if (size > 0) {
    std::vector<std::byte> there(std::min<uint64_t>(size, bytes.size()));
    if (pread(fd_, there.data(), there.size(), 0) != static_cast<ssize_t>(bytes.size()) ||
        there != bytes) {
      close(fd_);
      fail(ErrorKind::Usage,
           "{} is the beginning of base logits of another model, text, form or version: remove it "
           "or "
           "choose another name",
           partial_);
    }
    resume(bytes.size());
    return;
  }
  write_all(fd_, 0, bytes, partial_);
  end_ = bytes.size();
}

BaseWriter::~BaseWriter() {
  if (fd_ >= 0) close(fd_);
}

// Windows that are there whole and sound; what comes after them is cut off.
void BaseWriter::resume(uint64_t header_bytes) {
  end_ = header_bytes;
  std::vector<std::byte> rows(header_.window_bytes() + scores_bytes(header_));  // and scores
  for (;;) {
    WindowHead head{};
    uint64_t sum = 0;
    const auto at = static_cast<off_t>(end_);
    const auto rows_at = at + static_cast<off_t>(sizeof head);
    if (pread(fd_, &head, sizeof head, at) != sizeof head ||
        pread(fd_, rows.data(), rows.size(), rows_at) != static_cast<ssize_t>(rows.size()) ||
        pread(fd_, &sum, sizeof sum, rows_at + static_cast<off_t>(rows.size())) != sizeof sum ||
        sum != sum_of(head.index, rows) || head.index >= header_.n_windows) {
      break;
    }
    offsets_.emplace(head.index, end_ + sizeof head);
    end_ += sizeof head + rows.size() + sizeof sum;
  }
  if (ftruncate(fd_, static_cast<off_t>(end_)) != 0) {
    fail(ErrorKind::Io, "{}: {}", partial_, std::strerror(errno));
  }
  log::info("{} windows of {} are there already", offsets_.size(), partial_);
}

void BaseWriter::write(uint64_t window, std::span<const std::byte> rows,
                       std::span<const double> nll) {
  const WindowHead head{window};
  std::vector<std::byte> body(rows.begin(), rows.end());
  const std::span<const std::byte> scores = std::as_bytes(nll);
  body.insert(body.end(), scores.begin(), scores.end());
  const uint64_t sum = sum_of(window, body);
  write_all(fd_, end_, std::as_bytes(std::span(&head, 1)), partial_);
  write_all(fd_, end_ + sizeof head, body, partial_);
  write_all(fd_, end_ + sizeof head + body.size(), std::as_bytes(std::span(&sum, 1)), partial_);
  offsets_.emplace(window, end_ + sizeof head);
  end_ += sizeof head + body.size() + sizeof sum;
}

std::vector<double> BaseWriter::nll(uint64_t window) const {
  std::vector<double> out(static_cast<size_t>(n_scored(header_.window_tokens)));
  const uint64_t at = offsets_.at(window) + header_.window_bytes();
  const size_t bytes = out.size() * sizeof(double);
  if (pread(fd_, out.data(), bytes, static_cast<off_t>(at)) != static_cast<ssize_t>(bytes)) {
    fail(ErrorKind::Io, "{}: reading {} bytes at {}: {}", partial_, bytes, at,
         std::strerror(errno));
  }
  return out;
}

void BaseWriter::finish() {
  if (fsync(fd_) != 0 || rename(partial_.c_str(), path_.c_str()) != 0) {
    fail(ErrorKind::Io, "{}: {}", path_, std::strerror(errno));
  }
}

bool BaseReader::is_base(const std::string& path) {
  const File file = File::open_read(path);
  char magic[8];
  if (file.size() < sizeof magic) return false;
  file.read_at(0, std::as_writable_bytes(std::span(magic)));
  return std::memcmp(magic, kMagic, sizeof magic) == 0 ||
         std::memcmp(magic, kLlamaMagic, sizeof magic) == 0;
}

BaseReader BaseReader::open(const std::string& path) {
  if (!is_base(path)) {
    fail(ErrorKind::Format,
         "{} holds no base logits: write them with `penstock eval perplexity MODEL --text FILE "
         "--base-out FILE`",
         path);
  }
  BaseReader reader;
  reader.file_ = File::open_read(path);
  char magic[8];
  reader.file_.read_at(0, std::as_writable_bytes(std::span(magic)));
  reader.llama_ = std::memcmp(magic, kLlamaMagic, sizeof magic) == 0;
  if (reader.llama_) {
    reader.open_llama();
  } else {
    reader.open_ours();
  }
  reader.check_tokens();
  return reader;
}

void BaseReader::open_ours() {
  const std::string& path = file_.path();
  Prefix prefix{};
  if (file_.size() < sizeof prefix) fail(ErrorKind::Format, "{}: cut off in its header", path);
  file_.read_at(0, std::as_writable_bytes(std::span(&prefix, 1)));
  if (prefix.version < 1 || prefix.version > kVersion) {
    fail(ErrorKind::Unsupported, "{}: base logits of version {}; this program knows 1 to {}", path,
         prefix.version, kVersion);
  }
  if (prefix.json_bytes > kMostHeader || sizeof prefix + prefix.json_bytes > file_.size()) {
    fail(ErrorKind::Format, "{}: a header of {} bytes in a file of {}", path, prefix.json_bytes,
         file_.size());
  }
  std::string text(prefix.json_bytes, '\0');
  file_.read_at(sizeof prefix, std::as_writable_bytes(std::span(text)));
  uint64_t n_tokens = 0;
  read_header(text, &n_tokens);
  uint64_t at = sizeof prefix + prefix.json_bytes;
  if (n_tokens > (file_.size() - at) / sizeof(int32_t)) {
    fail(ErrorKind::Format, "{}: {} tokens in a file of {} bytes", path, n_tokens, file_.size());
  }
  header_.tokens.resize(n_tokens);
  file_.read_at(at, std::as_writable_bytes(std::span(header_.tokens)));
  check_sizes(header_, path);
  at += n_tokens * sizeof(int32_t);
  const bool old = prefix.version == 1;
  if (!old) check_header_sum(file_, at);
  if (!old) at += sizeof(uint64_t);
  buffer_.resize(header_.window_bytes() + (old ? 0 : scores_bytes(header_)));
  const uint64_t record = sizeof(WindowHead) + buffer_.size() + sizeof(uint64_t);
  if ((file_.size() - at) % record != 0) {
    fail(ErrorKind::Format, "{}: its last window is cut off", path);
  }
  for (; at < file_.size(); at += record) {
    WindowHead head{};
    file_.read_at(at, std::as_writable_bytes(std::span(&head, 1)));
    if (head.index >= header_.n_windows) {
      fail(ErrorKind::Format, "{}: window {} of {}", path, head.index, header_.n_windows);
    }
    offsets_.emplace(head.index, at + sizeof head);
  }
}

void BaseReader::read_header(std::string_view text, uint64_t* n_tokens) {
  const std::string& path = file_.path();
  try {
    const auto json = nlohmann::json::parse(text);
    const std::string form = json.at("form");
    if (form != "u16" && form != "f32") {
      fail(ErrorKind::Format, "{}: rows of form '{}'; known are u16 and f32", path, form);
    }
    header_.form = form == "u16" ? BaseRows::Form::Compact : BaseRows::Form::Logits;
    header_.n_vocab = json.at("n_vocab");
    header_.window_tokens = json.at("window_tokens");
    header_.n_windows = json.at("n_windows");
    header_.mode = json.at("mode");
    header_.model_name = json.at("model_name");
    header_.quality_key = json.at("quality_key");
    *n_tokens = json.at("n_tokens");
    header_.chat_template = json.value("chat_template", false);
    const std::string none(2 * header_.tokenizer_id.size(), '0');
    if (!parse_sha256(json.value("tokenizer_id", none), &header_.tokenizer_id) ||
        !parse_sha256(json.at("model_id").get<std::string>(), &header_.model_id) ||
        !parse_sha256(json.at("corpus_id").get<std::string>(), &header_.corpus_id)) {
      fail(ErrorKind::Format, "{}: an identity is no SHA-256", path);
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::Format, "{}: the header is no JSON of base logits: {}", path, error.what());
  }
}

void BaseReader::check_tokens() const {
  for (size_t i = 0; i < header_.tokens.size(); ++i) {
    const int32_t id = header_.tokens[i];
    if (id < 0 || id >= header_.n_vocab) {
      fail(ErrorKind::Format, "{}: token {} is {}, outside its vocabulary of {}", file_.path(), i,
           id, header_.n_vocab);
    }
  }
}

// magic, int32 n_ctx, n_vocab, n_chunk, int32 tokens [n_chunk * n_ctx], compact rows.
void BaseReader::open_llama() {
  const std::string& path = file_.path();
  int32_t head[3];
  if (file_.size() < sizeof kLlamaMagic + sizeof head) {
    fail(ErrorKind::Format, "{}: cut off in its header", path);
  }
  file_.read_at(sizeof kLlamaMagic, std::as_writable_bytes(std::span(head)));
  header_.window_tokens = head[0];
  header_.n_vocab = head[1];
  header_.mode = "batch";
  header_.model_name = "unknown (a file of llama.cpp)";
  uint64_t at = sizeof kLlamaMagic + sizeof head;
  if (head[0] < 2 || head[1] < 1 || head[2] < 1 || head[0] > kMostWindow ||
      head[1] > kMostVocabulary ||
      static_cast<uint64_t>(head[0]) * static_cast<uint64_t>(head[2]) >
          (file_.size() - at) / sizeof(int32_t)) {
    fail(ErrorKind::Format, "{}: {} chunks of {} tokens, vocabulary {}, in a file of {} bytes",
         path, head[2], head[0], head[1], file_.size());
  }
  header_.n_windows = static_cast<uint64_t>(head[2]);
  header_.tokens.resize(header_.n_windows * static_cast<uint64_t>(head[0]));
  file_.read_at(at, std::as_writable_bytes(std::span(header_.tokens)));
  check_sizes(header_, path);
  header_.corpus_id = surgery::tokens_id(header_.tokens);
  buffer_.resize(header_.window_bytes());
  at += header_.tokens.size() * sizeof(int32_t);
  if (file_.size() - at < header_.n_windows * header_.window_bytes()) {
    fail(ErrorKind::Format, "{}: cut off: {} bytes, {} are needed", path, file_.size(),
         at + header_.n_windows * header_.window_bytes());
  }
  for (uint64_t w = 0; w < header_.n_windows; ++w) {
    offsets_.emplace(w, at + w * header_.window_bytes());
  }
}

BaseRows BaseReader::rows(uint64_t window) {
  const auto found = offsets_.find(window);
  if (found == offsets_.end()) {
    fail(ErrorKind::Usage,
         "{} does not hold window {}: it was made from a shard, score the same shard", file_.path(),
         window);
  }
  if (loaded_ == window) return {header_.form, buffer_.data()};
  loaded_.reset();
  file_.read_at(found->second, buffer_);
  if (!llama_) {
    uint64_t sum = 0;
    file_.read_at(found->second + buffer_.size(), std::as_writable_bytes(std::span(&sum, 1)));
    if (sum != sum_of(window, buffer_)) {
      fail(ErrorKind::Format, "{}: window {} is damaged: its checksum does not fit", file_.path(),
           window);
    }
  }
  loaded_ = window;
  return {header_.form, buffer_.data()};
}

}  // namespace penstock::measure
