#include "measure/sim_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

[[noreturn]] void bad_settings(const std::string& path, const char* what) {
  fail(ErrorKind::Format, "{}: the settings in its header make no sense: {}; record it again", path,
       what);
}

constexpr uint64_t kMostTransit = 1 << 16;  // the replay keeps a slot for each

uint64_t count_of(const Json& value, const TraceModel& model) {
  if (!value.is_number_unsigned()) bad_settings(model.path, "a count that is none");
  return value.get<uint64_t>();
}

// The classes as the run had them: slots of one size each.
void read_classes(const Json& settings, TraceModel* out) {
  const Json& classes = settings.at("classes");
  const Json& class_of = settings.at("class_of_layer");
  if (settings.contains("transit")) out->shape.transit = count_of(settings.at("transit"), *out);
  for (const Json& c : classes) {
    out->shape.classes.push_back(
        {.slot_bytes = count_of(c.at("slot_bytes"), *out), .slots = count_of(c.at("slots"), *out)});
  }
  for (const Json& c : class_of) {
    out->shape.class_of.push_back(
        static_cast<uint32_t>(std::min<uint64_t>(count_of(c, *out), UINT32_MAX)));
  }
  if (out->shape.transit > kMostTransit) bad_settings(out->path, "transit");
  if (out->shape.class_of.size() != out->geometry.layers.size()) {
    bad_settings(out->path, "class_of_layer has another number of layers");
  }
}

void read_settings(const Json& settings, TraceModel* out) {
  if (settings.contains("depth")) {
    const uint64_t depth = count_of(settings.at("depth"), *out);
    if (depth < 1 || depth > 4096) bad_settings(out->path, "depth");
    out->depth = static_cast<int>(depth);
  }
  if (settings.contains("classes")) read_classes(settings, out);
  if (settings.contains("read_bytes")) {
    out->read_bytes = settings.at("read_bytes").get<std::vector<double>>();
    const bool sound = out->read_bytes.size() == out->geometry.layers.size() &&
                       std::all_of(out->read_bytes.begin(), out->read_bytes.end(),
                                   [](double bytes) { return bytes > 0 && bytes < 1e12; });
    if (!sound) bad_settings(out->path, "read_bytes");
  }
}

// What the classes are made of, from the layers.
void count_classes(TraceModel* out) {
  experts::ArenaShape& shape = out->shape;
  if (shape.classes.empty()) {
    shape.classes.push_back({});
    shape.class_of.assign(out->geometry.layers.size(), 0);
  }
  for (size_t l = 0; l < out->geometry.layers.size(); ++l) {
    if (shape.class_of[l] >= shape.classes.size()) bad_settings(out->path, "class_of_layer");
    const experts::LayerGeometry& layer = out->geometry.layers[l];
    experts::SlotClass& c = shape.classes[shape.class_of[l]];
    c.n_experts += static_cast<uint64_t>(layer.n_expert);
    c.cycle += static_cast<uint64_t>(layer.n_used);
    c.max_used = std::max(c.max_used, layer.n_used);
  }
  for (const experts::SlotClass& c : shape.classes) {
    if (c.n_experts == 0) bad_settings(out->path, "a class without layers");
    if (c.slots > c.n_experts) bad_settings(out->path, "more slots than experts");
  }
}

}  // namespace

uint64_t TraceModel::uses_per_token() const noexcept {
  return shape.cycle();
}

experts::ArenaShape TraceModel::with_slots(uint64_t n_slots) const {
  const uint64_t floor = experts::hard_floor(shape, depth);
  if (n_slots < floor) {
    fail(ErrorKind::Usage, "{} slots are too few for {}: a token needs {}", n_slots, path, floor);
  }
  experts::ArenaShape out = shape;
  experts::share_slots(out, n_slots, depth, 2 * static_cast<uint64_t>(depth));
  return out;
}

TraceModel read_trace_model(const std::string& path) {
  const experts::TraceHeader header = experts::read_trace_header(path);
  TraceModel out;
  out.path = path;
  out.logits = header.logits;
  out.settings = header.settings;
  if (header.layers.empty()) bad_settings(path, "no layers");
  for (const experts::TraceLayer& layer : header.layers) {
    experts::LayerGeometry& g = out.geometry.layers.emplace_back();
    g.layer = layer.layer;
    g.n_expert = layer.n_expert;
    g.n_used = layer.n_used;
  }
  try {
    read_settings(Json::parse(header.settings), &out);
  } catch (const Json::exception&) {
    bad_settings(path, "a value of another type");
  }
  count_classes(&out);
  return out;
}

namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;

class Chunker final : public experts::TraceVisitor {
 public:
  Chunker(bool with_logits, FunctionRef<void(const TraceChunk&)> take)
      : with_logits_(with_logits), take_(take) {}

  void decode(int index, int row, std::span<const uint16_t> ids,
              std::span<const float> logits) override {
    TraceEvent& e = event(TraceEventKind::Decode, index, 0, row, chunk_.ids.size());
    if (e.rows == 0) e.logits = chunk_.logits.size();
    ++e.rows;
    chunk_.file_bytes += 5 + 2 * (ids.size() + logits.size());
    chunk_.ids.insert(chunk_.ids.end(), ids.begin(), ids.end());
    if (with_logits_) chunk_.logits.insert(chunk_.logits.end(), logits.begin(), logits.end());
  }

  void predicted(int index, int distance, int row, std::span<const float> logits) override {
    chunk_.file_bytes += 6 + 2 * logits.size();
    if (!with_logits_) return;
    ++event(TraceEventKind::Predicted, index, distance, row, chunk_.logits.size()).rows;
    chunk_.logits.insert(chunk_.logits.end(), logits.begin(), logits.end());
  }

  void prompt(int index, uint32_t rows, std::span<const uint32_t> uses) override {
    event(TraceEventKind::Prompt, index, 0, 0, chunk_.uses.size()).rows = rows;
    chunk_.uses.insert(chunk_.uses.end(), uses.begin(), uses.end());
    flush_if_full();
  }

  void step_ended(int rows) override {
    event(TraceEventKind::StepEnd, 0, 0, 0, 0).rows = static_cast<uint32_t>(rows);
    chunk_.tokens += static_cast<uint64_t>(rows);
    flush_if_full();
  }
  void turn_ended() override { event(TraceEventKind::TurnEnd, 0, 0, 0, 0); }
  void token(int32_t) override {}

  void flush() {
    if (!chunk_.events.empty()) take_(chunk_);
    chunk_.events.clear();
    chunk_.ids.clear();
    chunk_.logits.clear();
    chunk_.uses.clear();
    chunk_.tokens = 0;
    chunk_.file_bytes = 0;
  }

 private:
  // The event that a record belongs to: rows of one layer follow one another, numbered from 0.
  TraceEvent& event(TraceEventKind kind, int index, int distance, int row, size_t at) {
    if (row != 0 && !chunk_.events.empty()) {
      TraceEvent& last = chunk_.events.back();
      if (last.kind == kind && last.index == index && last.distance == distance &&
          last.rows == static_cast<uint32_t>(row)) {
        return last;
      }
    }
    TraceEvent& e = chunk_.events.emplace_back();
    e.kind = kind;
    e.index = static_cast<uint16_t>(index);
    e.distance = static_cast<uint8_t>(distance);
    e.at = at;
    return e;
  }

  void flush_if_full() {
    const size_t bytes =
        chunk_.events.size() * sizeof(TraceEvent) + chunk_.ids.size() * sizeof(uint16_t) +
        chunk_.logits.size() * sizeof(float) + chunk_.uses.size() * sizeof(uint32_t);
    if (bytes >= kChunkBytes) flush();
  }

  bool with_logits_;
  FunctionRef<void(const TraceChunk&)> take_;
  TraceChunk chunk_;
};

}  // namespace

void read_chunks(const std::string& path, bool with_logits,
                 FunctionRef<void(const TraceChunk&)> take) {
  Chunker chunker(with_logits, take);
  experts::read_trace(path, chunker);
  chunker.flush();
}

}  // namespace penstock::measure
