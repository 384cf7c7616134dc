#include "experts/pack.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "experts/expert_scan.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kMaxMetadata = uint64_t{64} << 20;
constexpr size_t kMaxListed = 20;

}  // namespace

Pack Pack::open(const std::string& path) {
  Pack pack;
  pack.file_ = File::open_read(path);
  const uint64_t size = pack.file_.size();
  std::vector<std::byte> bytes(std::min<uint64_t>(size, kPackHeaderBytes));
  pack.file_.read_at(0, bytes);
  pack.header_ = parse_pack_header(bytes, size, path);
  bytes.resize(pack_table_bytes(pack.header_));
  pack.file_.read_at(pack.header_.table_off, bytes);
  pack.layers_ = parse_pack_layers(pack.header_, bytes, path);
  return pack;
}

const PackLayer* Pack::find(int layer) const noexcept {
  const auto found = std::find_if(layers_.begin(), layers_.end(), [layer](const PackLayer& l) {
    return l.layer == static_cast<uint32_t>(layer);
  });
  return found == layers_.end() ? nullptr : &*found;
}

LayerGeometry Pack::geometry(const PackLayer& l, uint32_t shard) const {
  LayerGeometry g;
  g.layer = static_cast<int>(l.layer);
  g.n_expert = static_cast<int>(l.n_expert);
  g.n_used = static_cast<int>(l.n_used);
  g.record_bytes = l.stride;
  const auto matrix = [&](uint32_t type, uint32_t n_in, uint32_t n_out, uint64_t bytes,
                          uint64_t at) {
    const auto id = static_cast<gguf::TypeId>(type);
    return MatrixGeometry{id,    n_in,  n_out,           gguf::row_bytes(id, n_in),
                          bytes, shard, l.base_off + at, l.stride};
  };
  g.gate = matrix(l.type_gate, l.n_embd, l.n_ff, l.gate_bytes, 0);
  g.up = matrix(l.type_up, l.n_embd, l.n_ff, l.up_bytes, l.up_off);
  g.down = matrix(l.type_down, l.n_ff, l.n_embd, l.down_bytes, l.down_off);
  return g;
}

Geometry Pack::geometry() const {
  Geometry geometry;
  geometry.shards.push_back(path());
  for (const PackLayer& layer : layers_) geometry.layers.push_back(this->geometry(layer, 0));
  return geometry;
}

std::vector<RecordSums> Pack::read_sums() const {
  std::vector<uint64_t> all(header_.n_records);
  const auto bytes = std::as_writable_bytes(std::span(all));
  file_.read_at(header_.sums_off, bytes);
  if (xxh64(bytes) != header_.sums_sum) {
    fail(ErrorKind::Format,
         "{}: the list of checksums at {} is damaged; make the pack again with `penstock pack`",
         path(), header_.sums_off);
  }
  std::vector<RecordSums> sums;
  auto from = all.begin();
  for (const PackLayer& layer : layers_) {
    sums.push_back({header_.checksum, {from, from + layer.n_expert}});
    from += layer.n_expert;
  }
  return sums;
}

std::string Pack::read_metadata() const {
  if (header_.meta_bytes > kMaxMetadata) {
    fail(ErrorKind::Format, "{}: {} bytes of metadata are beyond any use", path(),
         header_.meta_bytes);
  }
  std::string text(header_.meta_bytes, '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  file_.read_at(header_.meta_off, bytes);
  if (xxh64(bytes) != header_.meta_sum) {
    fail(ErrorKind::Format,
         "{}: the metadata at {} is damaged; make the pack again with `penstock pack`", path(),
         header_.meta_off);
  }
  return text;
}

PackCheck verify_pack(const Pack& pack, const StreamOptions& options,
                      const PackProgress& progress) {
  PackCheck check;
  const std::vector<RecordSums> sums = pack.read_sums();
  pack.read_metadata();
  const int64_t started = now_ns();
  const auto kind = static_cast<Checksum>(pack.header().checksum);
  uint64_t total = 0;
  for (const PackLayer& layer : pack.layers()) total += layer.n_expert * layer.stride;
  ExpertScan scan(pack.geometry(), options);
  check.io = scan.report().describe();
  while (const ExpertScan::Item* item = scan.next()) {
    const PackLayer& layer = pack.layers()[static_cast<size_t>(item->index)];
    const auto expert = static_cast<size_t>(item->expert);
    std::string what;
    if (item->error != 0) {
      what = fmt::format("reading it failed: {}", item->error_text());
    } else if (checksum(kind, {item->data.gate, layer.stride}) !=
               sums[static_cast<size_t>(item->index)].sums[expert]) {
      what = "its checksum differs";
    }
    if (!what.empty() && ++check.n_bad <= kMaxListed) {
      check.bad.push_back({static_cast<int>(layer.layer), item->expert,
                           layer.base_off + expert * layer.stride, std::move(what)});
    }
    ++check.n_records;
    check.bytes += layer.stride;
    if (progress) progress("verifying", check.bytes, total);
  }
  check.seconds = seconds_since(started);
  return check;
}

}  // namespace penstock::experts
