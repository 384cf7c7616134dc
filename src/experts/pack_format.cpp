#include "experts/pack_format.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "gguf/types.h"

namespace penstock::experts {
namespace {

constexpr uint32_t kMaxAlign = 1 << 20;
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxEntryBytes = 4096;
constexpr uint32_t kMaxWidth = 1 << 20;    // of n_embd and n_ff
constexpr uint32_t kMaxExperts = 1 << 16;  // keeps every product below 2^63

template <typename... Args>
[[noreturn]] void bad(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorKind::Format, "{}: {}; make the pack again with `penstock pack`", path,
       fmt::format(format, std::forward<Args>(args)...));
}

// CRC32C (Castagnoli), reflected, as iSCSI and ext4 compute it.
uint32_t crc32c(std::span<const std::byte> bytes) noexcept {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0x82f63b78u : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t crc = 0xffffffffu;
  for (const std::byte b : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint32_t>(b)) & 0xff];
  return ~crc;
}

struct MatrixCheck {
  const char* name;
  uint32_t type;
  uint64_t n_in, n_out, bytes;
};

void check_matrix(const MatrixCheck& m, uint32_t layer, const std::string& path) {
  const gguf::TypeInfo* type = gguf::find_type(m.type);
  if (type == nullptr) bad(path, "layer {}: {} has the unknown type {}", layer, m.name, m.type);
  if (m.n_in % type->block_elems != 0) {
    bad(path, "layer {}: rows of {} elements are no whole number of {} blocks", layer, m.n_in,
        type->name);
  }
  const uint64_t wanted = m.n_out * gguf::row_bytes(type->id, m.n_in);
  if (m.bytes != wanted) {
    bad(path, "layer {}: {} has {} bytes, but {} of [{}, {}] take {}", layer, m.name, m.bytes,
        type->name, m.n_in, m.n_out, wanted);
  }
}

void check_layer(const PackLayer& l, uint32_t align, const std::string& path) {
  if (l.role > static_cast<uint32_t>(PackRole::Draft)) {
    bad(path, "layer {}: unknown role {}", l.layer, l.role);
  }
  if (l.layer >= kMaxLayers || l.n_expert < 1 || l.n_expert >= kMaxExperts || l.n_used < 1 ||
      l.n_used > l.n_expert || l.n_embd < 1 || l.n_embd > kMaxWidth || l.n_ff < 1 ||
      l.n_ff > kMaxWidth) {
    bad(path, "layer {}: {} of {} experts of [{}, {}] make no sense", l.layer, l.n_used, l.n_expert,
        l.n_embd, l.n_ff);
  }
  check_matrix({"gate", l.type_gate, l.n_embd, l.n_ff, l.gate_bytes}, l.layer, path);
  check_matrix({"up", l.type_up, l.n_embd, l.n_ff, l.up_bytes}, l.layer, path);
  check_matrix({"down", l.type_down, l.n_ff, l.n_embd, l.down_bytes}, l.layer, path);
  const uint64_t up_off = round_up(l.gate_bytes, kMatrixAlign);
  const uint64_t down_off = round_up(up_off + l.up_bytes, kMatrixAlign);
  if (l.up_off != up_off || l.down_off != down_off || l.record_bytes != down_off + l.down_bytes ||
      l.stride != round_up(l.record_bytes, align)) {
    bad(path,
        "layer {}: up at {}, down at {}, record of {} bytes, stride {}; computed are {}, {}, {}, "
        "{}",
        l.layer, l.up_off, l.down_off, l.record_bytes, l.stride, up_off, down_off,
        down_off + l.down_bytes, round_up(down_off + l.down_bytes, align));
  }
}

}  // namespace

const char* checksum_name(Checksum kind) noexcept {
  return kind == Checksum::Xxh64 ? "XXH64" : "CRC32C";
}

uint64_t checksum(Checksum kind, std::span<const std::byte> bytes) noexcept {
  return kind == Checksum::Xxh64 ? xxh64(bytes) : crc32c(bytes);
}

uint64_t header_sum(const PackHeader& header) noexcept {
  PackHeader copy = header;
  copy.header_sum = 0;
  return xxh64(std::as_bytes(std::span(&copy, 1)));
}

PackLayer pack_layer(const LayerGeometry& layer, PackRole role, uint32_t align) {
  PackLayer entry;
  entry.layer = static_cast<uint32_t>(layer.layer);
  entry.role = static_cast<uint32_t>(role);
  entry.n_expert = static_cast<uint32_t>(layer.n_expert);
  entry.n_used = static_cast<uint32_t>(layer.n_used);
  entry.n_embd = static_cast<uint32_t>(layer.gate.n_in);
  entry.n_ff = static_cast<uint32_t>(layer.gate.n_out);
  entry.type_gate = static_cast<uint32_t>(layer.gate.type);
  entry.type_up = static_cast<uint32_t>(layer.up.type);
  entry.type_down = static_cast<uint32_t>(layer.down.type);
  entry.gate_bytes = layer.gate.bytes;
  entry.up_bytes = layer.up.bytes;
  entry.down_bytes = layer.down.bytes;
  entry.up_off = round_up(entry.gate_bytes, kMatrixAlign);
  entry.down_off = round_up(entry.up_off + entry.up_bytes, kMatrixAlign);
  entry.record_bytes = entry.down_off + entry.down_bytes;
  entry.stride = round_up(entry.record_bytes, align);
  return entry;
}

uint64_t pack_table_bytes(const PackHeader& header) noexcept {
  return uint64_t{header.n_layers} * header.entry_bytes;
}

PackHeader parse_pack_header(std::span<const std::byte> bytes, uint64_t file_bytes,
                             const std::string& path) {
  PackHeader h;
  if (bytes.size() < kPackHeaderBytes) {
    fail(ErrorKind::Format, "{}: {} bytes are too few for a pack's header ({}); the file is cut",
         path, bytes.size(), kPackHeaderBytes);
  }
  std::memcpy(&h, bytes.data(), sizeof h);
  if (h.magic != kPackMagic) {
    fail(ErrorKind::Format, "{} is not an expert pack: it does not start with XPRTPACK", path);
  }
  if (h.major != kPackMajor) {
    fail(ErrorKind::Unsupported,
         "{}: packs of version {}.{} are not known, {}.x are; make the pack again with this "
         "program, or use the one that made it",
         path, h.major, h.minor, kPackMajor);
  }
  if (h.header_sum != header_sum(h)) {
    bad(path, "the header's checksum is {:016x}, computed is {:016x}: it is damaged", h.header_sum,
        header_sum(h));
  }
  if (!h.has(kPackComplete)) {
    fail(ErrorKind::Format,
         "{}: packing was not finished ({} of {} records); the same `penstock pack` command goes "
         "on with it",
         path, h.n_done, h.n_records);
  }
  if (h.file_bytes != file_bytes) {
    bad(path, "the file has {} bytes where its header says {}: it was cut or copied incompletely",
        file_bytes, h.file_bytes);
  }
  if (h.layout != kPlainLayout) {
    fail(ErrorKind::Unsupported,
         "{}: records have layout {}, which this program does not know; make the pack again", path,
         h.layout);
  }
  if (h.checksum != static_cast<uint32_t>(Checksum::Xxh64) &&
      h.checksum != static_cast<uint32_t>(Checksum::Crc32c)) {
    fail(ErrorKind::Unsupported, "{}: checksums of kind {} are not known; make the pack again",
         path, h.checksum);
  }
  if (h.align < 4096 || h.align > kMaxAlign || !std::has_single_bit(h.align)) {
    bad(path, "the alignment {} is no power of two from 4096 to {}", h.align, kMaxAlign);
  }
  if (h.n_layers < 1 || h.n_layers > kMaxLayers || h.entry_bytes < kPackLayerBytes ||
      h.entry_bytes > kMaxEntryBytes || h.entry_bytes % 8 != 0) {
    bad(path, "a table of {} layers of {} bytes each makes no sense", h.n_layers, h.entry_bytes);
  }
  const uint64_t table = pack_table_bytes(h);
  // In this order, each behind the other: no sum below can overflow.
  const auto inside = [&](uint64_t off, uint64_t size, uint64_t from, uint64_t limit) {
    return off >= from && off <= limit && size <= limit - off;
  };
  if (!inside(h.table_off, table, kPackHeaderBytes, file_bytes) ||
      !inside(h.data_off, 0, h.table_off + table, file_bytes) || h.data_off % h.align != 0 ||
      !inside(h.sums_off, h.sums_bytes, h.data_off, file_bytes) ||
      !inside(h.meta_off, h.meta_bytes, h.sums_off + h.sums_bytes, file_bytes)) {
    bad(path,
        "its parts overlap or leave the file of {} bytes: table at {}, records from {}, {} bytes "
        "of checksums at {}, {} of metadata at {}",
        file_bytes, h.table_off, h.data_off, h.sums_bytes, h.sums_off, h.meta_bytes, h.meta_off);
  }
  if (h.sums_bytes % 8 != 0 || h.n_records != h.sums_bytes / 8) {
    bad(path, "{} records, but {} bytes of checksums", h.n_records, h.sums_bytes);
  }
  return h;
}

std::vector<PackLayer> parse_pack_layers(const PackHeader& header, std::span<const std::byte> table,
                                         const std::string& path) {
  if (table.size() != pack_table_bytes(header)) {
    fail(ErrorKind::Internal, "{}: a layer table of {} bytes was read", path, table.size());
  }
  if (xxh64(table) != header.table_sum)
    bad(path, "the layer table is damaged: its checksum differs");
  std::vector<PackLayer> layers(header.n_layers);
  std::set<uint32_t> seen;
  uint64_t n_records = 0;
  uint64_t end = header.data_off;
  for (size_t i = 0; i < layers.size(); ++i) {
    PackLayer& l = layers[i];
    std::memcpy(&l, table.data() + i * header.entry_bytes, sizeof l);
    check_layer(l, header.align, path);
    if (!seen.insert(l.layer).second) bad(path, "layer {} is there twice", l.layer);
    const uint64_t bytes = l.n_expert * l.stride;  // < 2^16 * 2^46
    if (l.base_off % header.align != 0 || l.base_off < end || l.base_off > header.sums_off ||
        bytes > header.sums_off - l.base_off) {
      bad(path, "layer {}: {} bytes of records at {} overlap others or leave their place [{}, {})",
          l.layer, bytes, l.base_off, end, header.sums_off);
    }
    end = l.base_off + bytes;
    n_records += l.n_expert;
    if (header.has(kPackUniform) && l.stride != layers[0].stride) {
      bad(path, "the strides {} and {} differ, but the header says that all are one",
          layers[0].stride, l.stride);
    }
  }
  if (n_records != header.n_records) {
    bad(path, "the layers have {} experts, but the header says {} records", n_records,
        header.n_records);
  }
  return layers;
}

}  // namespace penstock::experts
