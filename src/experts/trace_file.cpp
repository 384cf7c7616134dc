#include "experts/trace_file.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_nesting.h"
#include "experts/stream_setup.h"
#include "quant/half.h"

namespace penstock::experts {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMagic[8] = {'X', 'P', 'R', 'T', 'T', 'R', 'C', 'E'};
constexpr uint32_t kVersion = 2;  // 1 did not have the number of a prompt's uses
constexpr size_t kBlock = size_t{1} << 20;
constexpr size_t kMostBlock = size_t{64} << 20;
constexpr uint32_t kMostHeader = 1 << 24;
constexpr size_t kDeepestHeader = 32;
constexpr uint64_t kMostExperts = 1 << 20;  // of all layers: whoever replays keeps tables of them

struct FilePrefix {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
};

struct BlockPrefix {
  uint32_t bytes;     // 0: the end
  uint32_t reserved;  // 0
  uint64_t checksum;  // XXH64 of the block; at the end, the number of all records
};

enum class Record : uint8_t { Decode = 1, Predicted, Prompt, StepEnd, TurnEnd, Token };

Json header_json(const std::vector<TraceLayer>& layers, bool logits, const std::string& settings) {
  Json json;
  json["logits"] = logits;
  for (const TraceLayer& layer : layers) {
    json["layers"].push_back(
        {{"layer", layer.layer}, {"n_expert", layer.n_expert}, {"n_used", layer.n_used}});
  }
  json["settings"] = Json::parse(settings);
  return json;
}

}  // namespace

TraceWriter::TraceWriter(const std::string& path, const Geometry& geometry, bool logits,
                         const std::string& settings)
    : file_(path), logits_(logits) {
  for (const LayerGeometry& layer : geometry.layers) {
    layers_.push_back({layer.layer, layer.n_expert, layer.n_used});
  }
  prompt_uses_.resize(most_experts(geometry));
  const std::string header = header_json(layers_, logits, settings).dump();
  FilePrefix prefix{};
  std::memcpy(prefix.magic, kMagic, sizeof kMagic);
  prefix.version = kVersion;
  prefix.header_bytes = static_cast<uint32_t>(header.size());
  file_.write(&prefix, sizeof prefix);
  file_.write(header.data(), header.size());
  buffer_.reserve(kBlock + (size_t{1} << 17));
}

template <typename T>
void TraceWriter::put(T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  buffer_.insert(buffer_.end(), bytes, bytes + sizeof value);
}

void TraceWriter::put_half(std::span<const float> values) {
  for (const float value : values) put(quant::float_to_half(value));
}

void TraceWriter::flush_if_full() {
  ++records_;
  if (buffer_.size() < kBlock) return;
  const BlockPrefix prefix{static_cast<uint32_t>(buffer_.size()), 0, xxh64(buffer_)};
  file_.write(&prefix, sizeof prefix);
  file_.write(buffer_);
  buffer_.clear();
}

void TraceWriter::end_prompt_layer() {
  if (prompt_layer_ < 0) return;
  put(Record::Prompt);
  put(static_cast<uint16_t>(prompt_layer_));
  put(prompt_rows_);
  const auto n_expert = static_cast<size_t>(layers_[static_cast<size_t>(prompt_layer_)].n_expert);
  const std::span<const uint32_t> uses{prompt_uses_.data(), n_expert};
  put(static_cast<uint16_t>(
      std::count_if(uses.begin(), uses.end(), [](uint32_t n) { return n != 0; })));
  for (size_t e = 0; e < n_expert; ++e) {
    if (uses[e] == 0) continue;
    put(static_cast<uint16_t>(e));
    put(uses[e]);
  }
  prompt_layer_ = -1;
  flush_if_full();
}

void TraceWriter::selected(int index, int row, Phase phase, std::span<const int32_t> ids,
                           std::span<const float> logits) {
  if (phase == Phase::Prompt) {
    if (index != prompt_layer_ || row == 0) {
      end_prompt_layer();
      prompt_layer_ = index;
      prompt_rows_ = 0;
      std::fill(prompt_uses_.begin(), prompt_uses_.end(), uint32_t{0});
    }
    ++prompt_rows_;
    for (const int32_t e : ids) ++prompt_uses_[static_cast<size_t>(e)];
    return;
  }
  end_prompt_layer();
  put(Record::Decode);
  put(static_cast<uint16_t>(index));
  put(static_cast<uint16_t>(row));
  for (const int32_t e : ids) put(static_cast<uint16_t>(e));
  if (logits_) put_half(logits);
  flush_if_full();
}

void TraceWriter::predicted(int index, int distance, int row, std::span<const float> logits) {
  if (!logits_) return;
  end_prompt_layer();
  put(Record::Predicted);
  put(static_cast<uint16_t>(index));
  put(static_cast<uint16_t>(row));
  put(static_cast<uint8_t>(distance));
  put_half(logits);
  flush_if_full();
}

void TraceWriter::step_ended(int rows) {
  end_prompt_layer();
  put(Record::StepEnd);
  put(static_cast<uint16_t>(rows));
  flush_if_full();
}

void TraceWriter::turn_ended() {
  end_prompt_layer();
  put(Record::TurnEnd);
  flush_if_full();
}

void TraceWriter::token(int32_t id) {
  end_prompt_layer();
  put(Record::Token);
  put(id);
  flush_if_full();
}

void TraceWriter::finish() {
  end_prompt_layer();
  if (!buffer_.empty()) {
    const BlockPrefix prefix{static_cast<uint32_t>(buffer_.size()), 0, xxh64(buffer_)};
    file_.write(&prefix, sizeof prefix);
    file_.write(buffer_);
    buffer_.clear();
  }
  const BlockPrefix end{0, 0, records_};
  file_.write(&end, sizeof end);
  file_.commit();
}

namespace {

// Takes values from a block; whoever asks for more than there is meets an error.
class BlockReader {
 public:
  BlockReader(std::span<const std::byte> bytes, const std::string& path)
      : bytes_(bytes), path_(path) {}

  bool empty() const noexcept { return bytes_.empty(); }
  template <typename T>
  T take() {
    T value;
    if (bytes_.size() < sizeof value) bad("a record is cut short");
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  [[noreturn]] void bad(const char* what) const {
    fail(ErrorKind::Format, "{}: {}: the trace is damaged, record it again", path_, what);
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
};

class Replay {
 public:
  Replay(const TraceHeader& header, const std::string& path, TraceVisitor& visitor)
      : header_(header), path_(path), visitor_(visitor) {}

  uint64_t block(std::span<const std::byte> bytes) {
    BlockReader in(bytes, path_);
    uint64_t records = 0;
    for (; !in.empty(); ++records) record(in);
    return records;
  }

 private:
  const TraceLayer& layer(BlockReader& in, int* index) {
    *index = in.take<uint16_t>();
    if (static_cast<size_t>(*index) >= header_.layers.size()) in.bad("a layer that is not there");
    return header_.layers[static_cast<size_t>(*index)];
  }
  std::span<const float> halves(BlockReader& in, int n) {
    logits_.resize(static_cast<size_t>(n));
    for (float& z : logits_) z = quant::half_to_float(in.take<uint16_t>());
    return logits_;
  }

  void record(BlockReader& in) {
    int index = 0;
    switch (in.take<Record>()) {
      case Record::Decode: {
        const TraceLayer& l = layer(in, &index);
        const int row = in.take<uint16_t>();
        ids_.resize(static_cast<size_t>(l.n_used));
        for (uint16_t& e : ids_) {
          e = in.take<uint16_t>();
          if (e >= l.n_expert) in.bad("an expert that is not there");
          if (++seen_[e] != 1) in.bad("an expert that a token selected twice");
        }
        for (const uint16_t e : ids_) seen_[e] = 0;
        const auto logits = header_.logits ? halves(in, l.n_expert) : std::span<const float>();
        visitor_.decode(index, row, ids_, logits);
        return;
      }
      case Record::Predicted: {
        const TraceLayer& l = layer(in, &index);
        const int row = in.take<uint16_t>();
        const int distance = in.take<uint8_t>();
        visitor_.predicted(index, distance, row, halves(in, l.n_expert));
        return;
      }
      case Record::Prompt: {
        const TraceLayer& l = layer(in, &index);
        const auto rows = in.take<uint32_t>();
        uses_.assign(static_cast<size_t>(l.n_expert), 0);
        for (int n = in.take<uint16_t>(); n > 0; --n) {
          const int e = in.take<uint16_t>();
          if (e >= l.n_expert) in.bad("an expert that is not there");
          uses_[static_cast<size_t>(e)] = in.take<uint32_t>();
        }
        visitor_.prompt(index, rows, uses_);
        return;
      }
      case Record::StepEnd:
        visitor_.step_ended(in.take<uint16_t>());
        return;
      case Record::TurnEnd:
        visitor_.turn_ended();
        return;
      case Record::Token:
        visitor_.token(in.take<int32_t>());
        return;
    }
    in.bad("a record of an unknown kind");
  }

  const TraceHeader& header_;
  const std::string& path_;
  TraceVisitor& visitor_;
  std::vector<uint16_t> ids_;
  std::vector<uint8_t> seen_ = std::vector<uint8_t>(1 << 16);  // by expert, within a record
  std::vector<float> logits_;
  std::vector<uint32_t> uses_;
};

[[noreturn]] void no_trace(const std::string& path, const char* why) {
  fail(ErrorKind::Format, "{} is no routing trace: {}", path, why);
}

int layer_number(const Json& layer, const char* name, const std::string& path) {
  const Json& value = layer.at(name);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > 65535) {
    no_trace(path, "its header has a layer that cannot be");
  }
  return value.get<int>();
}

TraceHeader parse_header(const File& file, uint64_t* behind) {
  const std::string& path = file.path();
  FilePrefix prefix{};
  if (file.size() < sizeof prefix) no_trace(path, "it is too short");
  file.read_at(0, std::as_writable_bytes(std::span(&prefix, 1)));
  if (std::memcmp(prefix.magic, kMagic, sizeof kMagic) != 0) no_trace(path, "another kind of file");
  if (prefix.version != kVersion) {
    fail(ErrorKind::Unsupported,
         "{} has version {}, this program reads version {}: record it again", path, prefix.version,
         kVersion);
  }
  if (prefix.header_bytes > kMostHeader || sizeof prefix + prefix.header_bytes > file.size()) {
    no_trace(path, "its header is cut short");
  }
  std::string text(prefix.header_bytes, '\0');
  file.read_at(sizeof prefix, std::as_writable_bytes(std::span(text)));
  *behind = sizeof prefix + prefix.header_bytes;
  if (json_nesting(text) > kDeepestHeader) no_trace(path, "its header is nested too deeply");
  TraceHeader header;
  try {
    const Json json = Json::parse(text);
    uint64_t n_experts = 0;
    header.logits = json.at("logits").get<bool>();
    header.settings = json.at("settings").dump();
    for (const Json& layer : json.at("layers")) {
      header.layers.push_back({layer_number(layer, "layer", path),
                               layer_number(layer, "n_expert", path),
                               layer_number(layer, "n_used", path)});
      const TraceLayer& l = header.layers.back();
      if (l.n_expert < 1 || l.n_expert >= 65536 || l.n_used < 1 || l.n_used > l.n_expert) {
        no_trace(path, "its header has a layer that cannot be");
      }
      n_experts += static_cast<uint64_t>(l.n_expert);
      if (n_experts > kMostExperts) no_trace(path, "its header has more experts than can be");
    }
  } catch (const Json::exception&) {
    no_trace(path, "its header is damaged");
  }
  return header;
}

}  // namespace

TraceHeader read_trace_header(const std::string& path) {
  uint64_t at = 0;
  return parse_header(File::open_read(path), &at);
}

void read_trace(const std::string& path, TraceVisitor& visitor) {
  const File file = File::open_read(path);
  uint64_t at = 0;
  const TraceHeader header = parse_header(file, &at);
  Replay replay(header, path, visitor);
  std::vector<std::byte> block;
  uint64_t records = 0;
  const uint64_t size = file.size();
  for (;;) {
    BlockPrefix prefix{};
    if (size - at < sizeof prefix) no_trace(path, "its end is missing");
    file.read_at(at, std::as_writable_bytes(std::span(&prefix, 1)));
    at += sizeof prefix;
    if (prefix.reserved != 0) no_trace(path, "a block is damaged");
    if (prefix.bytes == 0) {
      if (prefix.checksum != records || at != size) no_trace(path, "its end is damaged");
      return;
    }
    if (prefix.bytes > kMostBlock || size - at < prefix.bytes) {
      no_trace(path, "a block is cut short");
    }
    block.resize(prefix.bytes);
    file.read_at(at, block);
    at += prefix.bytes;
    if (xxh64(block) != prefix.checksum) no_trace(path, "the checksum of a block differs");
    records += replay.block(block);
  }
}

}  // namespace penstock::experts
