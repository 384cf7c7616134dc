// The key-value section of a GGUF file. Values stay where they are in the mapped file: an entry is
// a place and a type, already validated; reading it converts. Writers are inconsistent about
// integer widths, so every integer width is accepted for an integer and floats also take integers
// (spec/gguf-quants.md §3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace penstock::gguf {

enum class ValueType : uint32_t {
  U8 = 0,
  I8 = 1,
  U16 = 2,
  I16 = 3,
  U32 = 4,
  I32 = 5,
  F32 = 6,
  Bool = 7,
  String = 8,
  Array = 9,
  U64 = 10,
  I64 = 11,
  F64 = 12,
};

const char* value_type_name(ValueType type) noexcept;
// Bytes of a fixed-size value; 0 for strings and arrays.
size_t value_type_bytes(ValueType type) noexcept;

// Text from a file, fit for a message or a terminal: control characters escaped, length capped.
std::string printable(std::string_view text);

struct Entry {
  std::string_view key;
  ValueType type{};
  ValueType element{};  // of an array; otherwise equal to type
  uint64_t count = 1;   // elements of an array; otherwise 1
  // The payload in the mapped file: the scalar, the string's characters, or an array's elements
  // (strings of an array each with their 8-byte length in front).
  std::span<const std::byte> bytes;
  uint64_t offset = 0;  // of the payload in the file, for messages

  bool is_array() const noexcept { return type == ValueType::Array; }
};

// Getters throw Error(Format) naming file and key when the key is absent (unless a fallback is
// given) or its type or range does not fit. Views live as long as the Model.
class Metadata {
 public:
  const std::string& path() const noexcept { return path_; }  // of the file that holds the entries
  std::span<const Entry> entries() const noexcept { return entries_; }
  const Entry* find(std::string_view key) const noexcept;
  bool has(std::string_view key) const noexcept { return find(key) != nullptr; }

  uint64_t get_u64(std::string_view key) const;
  int64_t get_i64(std::string_view key) const;
  double get_f64(std::string_view key) const;
  bool get_bool(std::string_view key) const;  // bool, or an integer: non-zero is true
  std::string_view get_string(std::string_view key) const;

  uint64_t get_u64(std::string_view key, uint64_t fallback) const;
  int64_t get_i64(std::string_view key, int64_t fallback) const;
  double get_f64(std::string_view key, double fallback) const;
  bool get_bool(std::string_view key, bool fallback) const;
  std::string_view get_string(std::string_view key, std::string_view fallback) const;

  std::vector<uint64_t> get_u64_array(std::string_view key) const;
  std::vector<int64_t> get_i64_array(std::string_view key) const;
  std::vector<double> get_f64_array(std::string_view key) const;
  std::vector<bool> get_bool_array(std::string_view key) const;
  std::vector<std::string_view> get_string_array(std::string_view key) const;

  // A hyper-parameter that may be one number for all layers or an array of exactly n.
  std::vector<uint64_t> get_u64_per_layer(std::string_view key, uint64_t n) const;

 private:
  friend class Parser;
  const Entry& require(std::string_view key) const;
  const Entry& require_array(std::string_view key) const;

  std::string path_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace penstock::gguf
