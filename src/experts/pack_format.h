// The expert pack on disk (docs/pack.md), byte by byte: header, layer table, zero padding, one
// aligned record per expert, checksums, metadata. Little-endian. Nothing read here is trusted.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "experts/geometry.h"

namespace penstock::experts {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

inline constexpr std::array<char, 8> kPackMagic = {'X', 'P', 'R', 'T', 'P', 'A', 'C', 'K'};
inline constexpr uint16_t kPackMajor = 1;
inline constexpr uint16_t kPackMinor = 1;  // 1.1 added dense_id
inline constexpr uint32_t kDefaultPackAlign = 16384;
inline constexpr uint64_t kMatrixAlign = 64;  // of matrices within a record

enum PackFlag : uint32_t {
  kPackComplete = 1,
  kPackPruned = 2,
  kPackRequantised = 4,
  kPackUniform = 8,  // all records have one stride
  kPackDraft = 16,   // has layers of a draft head
};

enum class Checksum : uint32_t { Xxh64 = 1, Crc32c = 2 };  // CRC32C in the low word
const char* checksum_name(Checksum kind) noexcept;
uint64_t checksum(Checksum kind, std::span<const std::byte> bytes) noexcept;

enum class PackRole : uint32_t { Trunk = 0, Draft = 1 };

inline constexpr uint32_t kPlainLayout = 0;  // rows as in GGUF; numerics are those of direct mode

struct PackHeader {
  std::array<char, 8> magic = kPackMagic;
  uint16_t major = kPackMajor, minor = kPackMinor;
  uint32_t align = kDefaultPackAlign;
  uint32_t flags = 0;  // PackFlag
  uint32_t checksum = static_cast<uint32_t>(Checksum::Xxh64);
  uint32_t n_layers = 0, entry_bytes = 0;
  uint64_t file_bytes = 0, table_off = 0, sums_off = 0, sums_bytes = 0, meta_off = 0,
           meta_bytes = 0, data_off = 0, n_records = 0;
  Sha256 source_header_id{};   // the source's metadata and tensor descriptors, all shards
  Sha256 source_content_id{};  // all bytes of the source; zeros: not computed
  Sha256 keep_map_id{}, quant_recipe_id{};
  uint64_t header_sum = 0;  // XXH64 of these 4096 bytes with this field zero
  uint64_t table_sum = 0, sums_sum = 0, meta_sum = 0;
  Sha256 model_id{};  // gguf::Model::model_id()
  uint32_t layout = kPlainLayout;
  uint32_t reserved0 = 0;
  Sha256 dense_id{};  // since 1.1: ModelIdentity::dense_id; zeros: not computed
  std::array<uint8_t, 3744> reserved1{};
  // Only while a pack is being made (not kPackComplete); zero in complete packs.
  uint64_t source_stamp = 0;  // of the source's sizes and modification times
  uint64_t n_done = 0;        // records written
  uint64_t reserved2 = 0;

  bool has(PackFlag flag) const noexcept { return (flags & flag) != 0; }
  bool operator==(const PackHeader&) const = default;
};
inline constexpr size_t kPackHeaderBytes = 4096;
static_assert(sizeof(PackHeader) == kPackHeaderBytes);
static_assert(offsetof(PackHeader, file_bytes) == 32 &&
              offsetof(PackHeader, source_header_id) == 96 &&
              offsetof(PackHeader, header_sum) == 224 && offsetof(PackHeader, model_id) == 256 &&
              offsetof(PackHeader, layout) == 288 && offsetof(PackHeader, dense_id) == 296 &&
              offsetof(PackHeader, source_stamp) == 4072);

// A layer of the table. Record of expert e: [base_off + e * stride, + stride): gate at 0, up at
// up_off, down at down_off, zeros between and behind.
struct PackLayer {
  uint32_t layer = 0, role = 0, n_expert = 0, n_used = 0, n_embd = 0, n_ff = 0;
  uint32_t type_gate = 0, type_up = 0, type_down = 0, reserved0 = 0;
  uint64_t gate_bytes = 0, up_bytes = 0, down_bytes = 0, up_off = 0, down_off = 0, record_bytes = 0,
           stride = 0, base_off = 0;
  std::array<uint8_t, 24> reserved1{};
  bool operator==(const PackLayer&) const = default;
};
inline constexpr size_t kPackLayerBytes = 128;
static_assert(sizeof(PackLayer) == kPackLayerBytes && offsetof(PackLayer, gate_bytes) == 40);

uint64_t header_sum(const PackHeader& header) noexcept;

// The entry of a layer, sizes computed from types and shapes; base_off is left to the caller.
PackLayer pack_layer(const LayerGeometry& layer, PackRole role, uint32_t align);

// The first kPackHeaderBytes of a file of `file_bytes`. Throws Error(Format) for what is no pack,
// damaged, cut short or not finished, Error(Unsupported) for an unknown version or layout; both
// name the file and the field.
PackHeader parse_pack_header(std::span<const std::byte> bytes, uint64_t file_bytes,
                             const std::string& path);
uint64_t pack_table_bytes(const PackHeader& header) noexcept;  // bounded: at most 16 MiB
// `table`: the pack_table_bytes() at header.table_off. Throws as above.
std::vector<PackLayer> parse_pack_layers(const PackHeader& header, std::span<const std::byte> table,
                                         const std::string& path);

}  // namespace penstock::experts
