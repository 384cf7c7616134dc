// One GGUF file: header, pairs, descriptors and where the data lies (spec/gguf-quants.md §1, §3).
#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "gguf/parser.h"

namespace penstock::gguf {
namespace {

constexpr uint64_t kMinPairBytes = 13;        // empty key, type, one byte
constexpr uint64_t kMinDescriptorBytes = 24;  // empty name, no dimension, type, offset
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxNameBytes = 63;  // the reference keeps names in 64-byte buffers
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr uint64_t kMaxReserved = 65536;  // beyond this, memory grows with what was really read

// Block layouts of forks that reuse an upstream type id (spec/gguf-quants.md §5.2). They are
// smaller than upstream's, so a file that holds them has too little room for upstream's.
struct LegacyLayout {
  TypeId id;
  uint32_t block_elems;
  uint32_t block_bytes;
  const char* name;
};
constexpr LegacyLayout kLegacyLayouts[] = {
    {TypeId::Q2_0, 128, 34, "the PrismML fork's old Q2_0 (g128: 34 bytes per 128 weights)"},
    {TypeId::NVFP4, 32, 6, "an early one-bit fork's Q1_0 (6 bytes per 32 weights)"},
};

class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  uint64_t position() const noexcept { return position_; }
  uint64_t remaining() const noexcept { return bytes_.size() - position_; }

  std::span<const std::byte> take(uint64_t n, std::string_view what) {
    if (n > remaining()) {
      fail(ErrorKind::Format,
           "{}: {} at offset {} needs {} bytes, but the file ends at byte {}; it is truncated or "
           "corrupt, download it again",
           path_, what, position_, n, bytes_.size());
    }
    const auto piece = bytes_.subspan(position_, n);
    position_ += n;
    return piece;
  }
  template <typename T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::string_view read_string(std::string_view what) {
    const auto length = read<uint64_t>(what);
    const auto piece = take(length, what);
    return {reinterpret_cast<const char*>(piece.data()), piece.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  uint64_t position_ = 0;
};

std::string_view head(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 256)};
}

bool looks_like_html(std::string_view text) {
  const size_t start = text.find_first_not_of("\xEF\xBB\xBF \t\r\n");
  if (start == std::string_view::npos) return false;
  std::string lower(text.substr(start, 16));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower.starts_with("<!doctype") || lower.starts_with("<html") ||
         lower.starts_with("<head") || lower.starts_with("<?xml");
}

class FileParser {
 public:
  FileParser(std::span<const std::byte> bytes, const std::string& path, const OpenOptions& options)
      : bytes_(bytes), path_(path), options_(options), cursor_(bytes, path) {}

  ParsedFile parse();

 private:
  void read_fixed_header();
  void read_pairs();
  Entry read_value(std::string_view key);
  void read_array(Entry* entry);
  uint64_t alignment() const;
  void read_descriptors();
  Tensor read_descriptor();
  TypeId read_type(const Tensor& tensor);
  void place_tensors();
  void diagnose_legacy(std::span<Tensor* const> by_offset) const;
  [[noreturn]] void bad(const std::string& what) const;

  std::span<const std::byte> bytes_;
  const std::string& path_;
  const OpenOptions& options_;
  Cursor cursor_;
  uint64_t n_tensors_ = 0;
  uint64_t n_pairs_ = 0;
  ParsedFile out_;
};

void FileParser::bad(const std::string& what) const {
  fail(ErrorKind::Format, "{}: {}", path_, what);
}

void FileParser::read_fixed_header() {
  const std::string_view start = head(bytes_);
  if (start.starts_with("version https://git-lfs")) {
    bad("this is a Git LFS pointer, not the model; run `git lfs pull` or download the file itself");
  }
  if (looks_like_html(start)) {
    bad("this is a web page, not the model; download the file itself (on Hugging Face: the "
        "/resolve/ address, not /blob/)");
  }
  if (bytes_.size() < 24) {
    bad(fmt::format("{} bytes are too few for a GGUF header (24); download the file again",
                    bytes_.size()));
  }
  if (!start.starts_with("GGUF")) {
    bad(fmt::format("not a GGUF file: it starts with \"{}\" instead of \"GGUF\"",
                    printable(start.substr(0, 4))));
  }
  cursor_.take(4, "magic");
  const auto version = cursor_.read<uint32_t>("version");
  if ((version & 0xFFFF) == 0 && version != 0) {
    bad(fmt::format(
        "wrong endianness: the version at offset 4 reads {:#010x}; this is a big-endian "
        "GGUF, convert it to little-endian",
        version));
  }
  if (version < 2 || version > 3) {
    bad(
        fmt::format("GGUF version {} at offset 4 is not supported (2 and 3 are); convert the model "
                    "with a current tool",
                    version));
  }
  n_tensors_ = cursor_.read<uint64_t>("tensor count");
  n_pairs_ = cursor_.read<uint64_t>("key count");
  if (n_pairs_ > cursor_.remaining() / kMinPairBytes) {
    bad(
        fmt::format("the key count {} at offset 16 cannot fit into a file of {} bytes; it is "
                    "truncated or corrupt, download it again",
                    n_pairs_, bytes_.size()));
  }
  if (n_tensors_ > (cursor_.remaining() - n_pairs_ * kMinPairBytes) / kMinDescriptorBytes) {
    bad(
        fmt::format("the tensor count {} at offset 8 cannot fit into a file of {} bytes; it is "
                    "truncated or corrupt, download it again",
                    n_tensors_, bytes_.size()));
  }
}

void FileParser::read_pairs() {
  out_.entries.reserve(std::min(n_pairs_, kMaxReserved));
  std::unordered_set<std::string_view> seen;
  for (uint64_t i = 0; i < n_pairs_; ++i) {
    const uint64_t at = cursor_.position();
    const std::string_view key = cursor_.read_string(fmt::format("key {} of {}", i + 1, n_pairs_));
    if (key.empty()) bad(fmt::format("key {} of {} at offset {} is empty", i + 1, n_pairs_, at));
    if (key.size() > kMaxKeyBytes) {
      bad(fmt::format("key {} of {} at offset {} is {} bytes long; at most {} are allowed", i + 1,
                      n_pairs_, at, key.size(), kMaxKeyBytes));
    }
    if (!seen.insert(key).second) {
      bad(fmt::format("key {} at offset {} appears twice", printable(key), at));
    }
    out_.entries.push_back(read_value(key));
  }
}

Entry FileParser::read_value(std::string_view key) {
  const std::string what = fmt::format("the value of key {}", printable(key));
  const uint64_t at = cursor_.position();
  const auto type = cursor_.read<uint32_t>(what);
  if (type > static_cast<uint32_t>(ValueType::F64)) {
    bad(fmt::format("key {} at offset {} has the unknown value type {}", printable(key), at, type));
  }
  Entry entry;
  entry.key = key;
  entry.type = entry.element = static_cast<ValueType>(type);
  entry.offset = cursor_.position();
  if (entry.type == ValueType::Array) {
    read_array(&entry);
  } else if (entry.type == ValueType::String) {
    const auto length = cursor_.read<uint64_t>(what);
    entry.offset = cursor_.position();
    entry.bytes = cursor_.take(length, what);
  } else {
    entry.bytes = cursor_.take(value_type_bytes(entry.type), what);
  }
  if (entry.element == ValueType::Bool) {
    for (size_t i = 0; i < entry.bytes.size(); ++i) {
      const auto byte = static_cast<uint8_t>(entry.bytes[i]);
      if (byte > 1) {
        bad(fmt::format("key {} at offset {} is a bool, but its byte is {} (0 or 1 expected)",
                        printable(key), entry.offset + i, byte));
      }
    }
  }
  return entry;
}

void FileParser::read_array(Entry* entry) {
  const std::string what = fmt::format("the array of key {}", printable(entry->key));
  const uint64_t at = cursor_.position();
  const auto element = cursor_.read<uint32_t>(what);
  if (element > static_cast<uint32_t>(ValueType::F64)) {
    bad(fmt::format("key {} at offset {} has the unknown array element type {}",
                    printable(entry->key), at, element));
  }
  entry->element = static_cast<ValueType>(element);
  if (entry->element == ValueType::Array) {
    bad(fmt::format("key {} at offset {} is an array of arrays, which no known model uses",
                    printable(entry->key), at));
  }
  entry->count = cursor_.read<uint64_t>(what);
  const uint64_t start = entry->offset = cursor_.position();
  const bool strings = entry->element == ValueType::String;
  const uint64_t least = strings ? 8 : value_type_bytes(entry->element);
  if (entry->count > cursor_.remaining() / least) {
    bad(
        fmt::format("key {} at offset {} claims {} elements of {}, but only {} bytes are left; the "
                    "file is truncated or corrupt, download it again",
                    printable(entry->key), at + 4, entry->count, value_type_name(entry->element),
                    cursor_.remaining()));
  }
  if (strings) {
    for (uint64_t i = 0; i < entry->count; ++i) cursor_.read_string(what);
  } else {
    cursor_.take(entry->count * least, what);
  }
  entry->bytes = bytes_.subspan(start, cursor_.position() - start);
}

uint64_t FileParser::alignment() const {
  const auto entry = std::find_if(out_.entries.begin(), out_.entries.end(),
                                  [](const Entry& e) { return e.key == "general.alignment"; });
  if (entry == out_.entries.end()) return 32;
  if (entry->type != ValueType::U32) {
    bad(fmt::format("key general.alignment at offset {} is {}, but u32 is needed", entry->offset,
                    value_type_name(entry->type)));
  }
  uint32_t value = 0;
  std::memcpy(&value, entry->bytes.data(), sizeof value);
  if (value == 0 || (value & (value - 1)) != 0 || value > kMaxAlignment) {
    bad(
        fmt::format("key general.alignment at offset {} is {}, but a power of two from 1 to {} is "
                    "needed",
                    entry->offset, value, kMaxAlignment));
  }
  return value;
}

void FileParser::read_descriptors() {
  out_.tensors.reserve(std::min(n_tensors_, kMaxReserved));
  for (uint64_t i = 0; i < n_tensors_; ++i) out_.tensors.push_back(read_descriptor());
  std::unordered_set<std::string_view> seen;
  for (const Tensor& tensor : out_.tensors) {
    if (!seen.insert(tensor.name).second) {
      bad(fmt::format("tensor {} is described twice", printable(tensor.name)));
    }
  }
}

TypeId FileParser::read_type(const Tensor& tensor) {
  const uint64_t at = cursor_.position();
  const auto id = cursor_.read<uint32_t>(fmt::format("the type of tensor {}", tensor.name));
  if (find_type(id) != nullptr) return static_cast<TypeId>(id);
  const bool removed = id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38);
  const char* why = removed     ? "a type that was removed from the format"
                    : id == 142 ? "the PrismML fork's PQ2_0, which only that fork reads"
                    : id == 143 ? "the PrismML fork's PTQ1_0, which only that fork reads"
                                : "no type of the format: it is a fork's own";
  fail(ErrorKind::Unsupported,
       "{}: tensor {} at offset {} has type id {}, {}; get the model in a current upstream type",
       path_, printable(tensor.name), at, id, why);
}

Tensor FileParser::read_descriptor() {
  const uint64_t at = cursor_.position();
  Tensor tensor;
  const std::string_view name =
      cursor_.read_string(fmt::format("descriptor {} of {}", out_.tensors.size() + 1, n_tensors_));
  if (name.empty()) bad(fmt::format("the tensor described at offset {} has no name", at));
  if (name.size() > kMaxNameBytes) {
    bad(fmt::format("the name of tensor {} at offset {} is {} bytes long; at most {} are allowed",
                    printable(name), at, name.size(), kMaxNameBytes));
  }
  tensor.name = name;
  const std::string shown = printable(name);
  const std::string what = fmt::format("the descriptor of tensor {}", shown);
  tensor.n_dims = cursor_.read<uint32_t>(what);
  if (tensor.n_dims > 4) {
    bad(fmt::format("tensor {} at offset {} has {} dimensions; at most 4 are allowed", shown, at,
                    tensor.n_dims));
  }
  uint64_t n_elements = 1;
  for (uint32_t d = 0; d < tensor.n_dims; ++d) {
    const auto size = cursor_.read<uint64_t>(what);
    if (size == 0) {
      bad(fmt::format("tensor {} at offset {}: dimension {} is zero", shown, at, d));
    }
    if (size >> 63 != 0 || __builtin_mul_overflow(n_elements, size, &n_elements) ||
        n_elements >> 63 != 0) {
      bad(
          fmt::format("tensor {} at offset {}: dimension {} is {}, which makes more than 2^63 "
                      "elements",
                      shown, at, d, size));
    }
    tensor.ne[d] = size;
  }
  tensor.type = read_type(tensor);
  tensor.offset = cursor_.read<uint64_t>(what);  // relative to the data section until placed
  const TypeInfo& type = type_info(tensor.type);
  if (tensor.ne[0] % type.block_elems != 0) {
    bad(
        fmt::format("tensor {} at offset {}: rows of {} elements are no whole number of {} blocks "
                    "({} elements)",
                    shown, at, tensor.ne[0], type.name, type.block_elems));
  }
  // n_elements < 2^63 keeps a row below 2^63 * 8 only for one-element types of 8 bytes: check both.
  if (__builtin_mul_overflow(tensor.ne[0] / type.block_elems, uint64_t{type.block_bytes},
                             &tensor.row_bytes) ||
      __builtin_mul_overflow(tensor.row_bytes, tensor.rows(), &tensor.bytes)) {
    bad(fmt::format("tensor {} at offset {}: its size in bytes exceeds 2^64", shown, at));
  }
  return tensor;
}

// If the room between a tensor and its successor (or the file's end) is too small for upstream's
// layout and exactly right for a fork's, the file is that fork's: refused by name, because nothing
// in the header tells the two apart and reading one as the other gives garbage.
void FileParser::diagnose_legacy(std::span<Tensor* const> by_offset) const {
  for (size_t i = 0; i < by_offset.size(); ++i) {
    const Tensor& tensor = *by_offset[i];
    for (const LegacyLayout& legacy : kLegacyLayouts) {
      if (tensor.type != legacy.id || tensor.ne[0] % legacy.block_elems != 0) continue;
      const uint64_t bytes = tensor.ne[0] / legacy.block_elems * legacy.block_bytes * tensor.rows();
      const uint64_t padded = round_up(bytes, out_.shard.alignment);
      const bool last = i + 1 == by_offset.size();
      const uint64_t data_bytes =
          bytes_.size() > out_.shard.data_start ? bytes_.size() - out_.shard.data_start : 0;
      const uint64_t end = last ? data_bytes : by_offset[i + 1]->offset;
      if (end < tensor.offset) continue;
      const uint64_t span = end - tensor.offset;
      if (span < tensor.bytes && (span == padded || (last && span == bytes))) {
        fail(ErrorKind::Unsupported,
             "{}: tensor {} has type id {} and {} bytes of room; {} takes {} and upstream's {} "
             "would take {}, so the file is that fork's; get the model in upstream's {}",
             path_, printable(tensor.name), static_cast<uint32_t>(legacy.id), span, legacy.name,
             bytes, type_name(legacy.id), tensor.bytes, type_name(legacy.id));
      }
    }
  }
}

void FileParser::place_tensors() {
  Shard& shard = out_.shard;
  std::vector<Tensor*> by_offset;
  by_offset.reserve(out_.tensors.size());
  for (Tensor& tensor : out_.tensors) {
    if (tensor.offset % shard.alignment != 0) {
      bad(fmt::format("tensor {}: its data offset {} is no multiple of the alignment {}",
                      printable(tensor.name), tensor.offset, shard.alignment));
    }
    by_offset.push_back(&tensor);
  }
  std::stable_sort(by_offset.begin(), by_offset.end(),
                   [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; });
  diagnose_legacy(by_offset);

  const Tensor* before = nullptr;
  uint64_t end = 0;  // of the data so far, relative to data_start
  uint64_t gaps = 0;
  for (Tensor* tensor : by_offset) {
    if (before != nullptr && tensor->offset < end) {
      bad(fmt::format(
          "tensor {} starts at data offset {}, inside tensor {} ({} of shape {} ends at "
          "{}); the file is corrupt, or {} stands for a fork's own layout in it",
          printable(tensor->name), tensor->offset, printable(before->name), type_name(before->type),
          shape_text(*before), end, type_name(before->type)));
    }
    if (before != nullptr && tensor->offset - end >= shard.alignment) ++gaps;
    uint64_t file_end = 0;
    const bool overflow = __builtin_add_overflow(tensor->offset, tensor->bytes, &end) ||
                          __builtin_add_overflow(end, shard.data_start, &file_end);
    if (overflow || file_end > bytes_.size()) {
      if (overflow || !options_.allow_missing_experts || !is_expert_bank(tensor->name)) {
        bad(
            fmt::format("tensor {} ({} of shape {}, {} bytes at data offset {}) lies past the end "
                        "of the file ({} bytes, data from {}); the file is truncated, download it "
                        "again",
                        printable(tensor->name), type_name(tensor->type), shape_text(*tensor),
                        tensor->bytes, tensor->offset, bytes_.size(), shard.data_start));
      }
      tensor->present = false;
    }
    before = tensor;
  }
  for (Tensor& tensor : out_.tensors) tensor.offset += shard.data_start;
  if (gaps > 0) log::debug("{}: {} gaps between tensors", path_, gaps);
  const bool whole = before != nullptr && before->present;
  if (whole && bytes_.size() - (shard.data_start + end) >= shard.alignment) {
    log::warn("{}: {} bytes after the last tensor are ignored", path_,
              bytes_.size() - (shard.data_start + end));
  }
}

ParsedFile FileParser::parse() {
  read_fixed_header();
  read_pairs();
  out_.shard.path = path_;
  out_.shard.file_bytes = bytes_.size();
  out_.shard.alignment = alignment();
  read_descriptors();
  out_.shard.n_tensors = out_.tensors.size();
  out_.shard.header_bytes = cursor_.position();
  out_.shard.data_start = round_up(cursor_.position(), out_.shard.alignment);
  place_tensors();
  return std::move(out_);
}

}  // namespace

ParsedFile parse_file(std::span<const std::byte> bytes, const std::string& path,
                      const OpenOptions& options) {
  return FileParser(bytes, path, options).parse();
}

}  // namespace penstock::gguf
