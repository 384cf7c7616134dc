#include "gguf/metadata.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace penstock::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

template <typename T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::string type_text(const Entry& entry) {
  if (!entry.is_array()) return value_type_name(entry.type);
  return fmt::format("array of {} {}", entry.count, value_type_name(entry.element));
}

[[noreturn]] void wrong_type(const std::string& path, const Entry& entry, const char* wanted) {
  fail(
      ErrorKind::Format,
      "{}: key {} at offset {} is {}, but {} is needed; the file's writer is at fault, convert the "
      "model again or get it from its publisher",
      path, entry.key, entry.offset, type_text(entry), wanted);
}

// An integer of any width, as sign and magnitude so that u64 and i64 both fit.
struct Integer {
  bool negative = false;
  uint64_t bits = 0;  // two's complement
};

bool read_integer(ValueType type, const std::byte* at, Integer* out) noexcept {
  const auto from_signed = [&](int64_t v) {
    *out = {v < 0, static_cast<uint64_t>(v)};
    return true;
  };
  const auto from_unsigned = [&](uint64_t v) {
    *out = {false, v};
    return true;
  };
  switch (type) {
    case ValueType::U8:
      return from_unsigned(load<uint8_t>(at));
    case ValueType::I8:
      return from_signed(load<int8_t>(at));
    case ValueType::U16:
      return from_unsigned(load<uint16_t>(at));
    case ValueType::I16:
      return from_signed(load<int16_t>(at));
    case ValueType::U32:
      return from_unsigned(load<uint32_t>(at));
    case ValueType::I32:
      return from_signed(load<int32_t>(at));
    case ValueType::U64:
      return from_unsigned(load<uint64_t>(at));
    case ValueType::I64:
      return from_signed(load<int64_t>(at));
    default:
      return false;
  }
}

// One converter per wanted type; false when the stored type or value does not fit.
bool convert(ValueType type, const std::byte* at, uint64_t* out) noexcept {
  Integer v;
  if (!read_integer(type, at, &v) || v.negative) return false;
  *out = v.bits;
  return true;
}

bool convert(ValueType type, const std::byte* at, int64_t* out) noexcept {
  Integer v;
  if (!read_integer(type, at, &v)) return false;
  *out = static_cast<int64_t>(v.bits);
  return v.negative || *out >= 0;
}

bool convert(ValueType type, const std::byte* at, double* out) noexcept {
  Integer v;
  if (type == ValueType::F32) {
    *out = static_cast<double>(load<float>(at));
  } else if (type == ValueType::F64) {
    *out = load<double>(at);
  } else if (read_integer(type, at, &v)) {
    *out = v.negative ? static_cast<double>(static_cast<int64_t>(v.bits))
                      : static_cast<double>(v.bits);
  } else {
    return false;
  }
  return true;
}

bool convert(ValueType type, const std::byte* at, bool* out) noexcept {
  Integer v;
  if (type == ValueType::Bool) {
    *out = load<uint8_t>(at) != 0;
  } else if (read_integer(type, at, &v)) {
    *out = v.bits != 0;
  } else {
    return false;
  }
  return true;
}

template <typename T>
constexpr const char* wanted_text = "";
template <>
constexpr const char* wanted_text<uint64_t> = "a non-negative integer";
template <>
constexpr const char* wanted_text<int64_t> = "an integer below 2^63";
template <>
constexpr const char* wanted_text<double> = "a number";
template <>
constexpr const char* wanted_text<bool> = "a bool";

template <typename T>
T scalar(const std::string& path, const Entry& entry) {
  T value{};
  if (!convert(entry.type, entry.bytes.data(), &value)) {
    wrong_type(path, entry, wanted_text<T>);
  }
  return value;
}

template <typename T>
std::vector<T> elements(const std::string& path, const Entry& entry) {
  const size_t size = value_type_bytes(entry.element);
  std::vector<T> values;
  values.reserve(entry.count);
  for (uint64_t i = 0; i < entry.count; ++i) {
    T value{};
    if (!convert(entry.element, entry.bytes.data() + i * size, &value)) {
      wrong_type(path, entry, wanted_text<T>);
    }
    values.push_back(value);
  }
  return values;
}

std::string_view text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

const char* value_type_name(ValueType type) noexcept {
  static constexpr const char* names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                          "bool", "string", "array", "u64", "i64", "f64"};
  return names[static_cast<uint32_t>(type)];
}

size_t value_type_bytes(ValueType type) noexcept {
  static constexpr size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[static_cast<uint32_t>(type)];
}

std::string printable(std::string_view text) {
  constexpr size_t kMax = 96;
  std::string out;
  for (const char c : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || byte == '\\') {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kMax) out += "...";
  return out;
}

const Entry* Metadata::find(std::string_view key) const noexcept {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

const Entry& Metadata::require(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) {
    fail(ErrorKind::Format,
         "{}: key {} is missing; the file is incomplete or for another program, convert the model "
         "again or get it from its publisher",
         path_, key);
  }
  return *entry;
}

const Entry& Metadata::require_array(std::string_view key) const {
  const Entry& entry = require(key);
  if (!entry.is_array()) wrong_type(path_, entry, "an array");
  return entry;
}

uint64_t Metadata::get_u64(std::string_view key) const {
  return scalar<uint64_t>(path_, require(key));
}
int64_t Metadata::get_i64(std::string_view key) const {
  return scalar<int64_t>(path_, require(key));
}
double Metadata::get_f64(std::string_view key) const {
  return scalar<double>(path_, require(key));
}
bool Metadata::get_bool(std::string_view key) const {
  return scalar<bool>(path_, require(key));
}
std::string_view Metadata::get_string(std::string_view key) const {
  const Entry& entry = require(key);
  if (entry.type != ValueType::String) wrong_type(path_, entry, "a string");
  return text(entry.bytes);
}

uint64_t Metadata::get_u64(std::string_view key, uint64_t fallback) const {
  return has(key) ? get_u64(key) : fallback;
}
int64_t Metadata::get_i64(std::string_view key, int64_t fallback) const {
  return has(key) ? get_i64(key) : fallback;
}
double Metadata::get_f64(std::string_view key, double fallback) const {
  return has(key) ? get_f64(key) : fallback;
}
bool Metadata::get_bool(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : fallback;
}
std::string_view Metadata::get_string(std::string_view key, std::string_view fallback) const {
  return has(key) ? get_string(key) : fallback;
}

std::vector<uint64_t> Metadata::get_u64_array(std::string_view key) const {
  return elements<uint64_t>(path_, require_array(key));
}
std::vector<int64_t> Metadata::get_i64_array(std::string_view key) const {
  return elements<int64_t>(path_, require_array(key));
}
std::vector<double> Metadata::get_f64_array(std::string_view key) const {
  return elements<double>(path_, require_array(key));
}
std::vector<bool> Metadata::get_bool_array(std::string_view key) const {
  return elements<bool>(path_, require_array(key));
}

std::vector<std::string_view> Metadata::get_string_array(std::string_view key) const {
  const Entry& entry = require_array(key);
  if (entry.element != ValueType::String) wrong_type(path_, entry, "an array of strings");
  std::vector<std::string_view> values;
  values.reserve(entry.count);
  size_t position = 0;  // lengths were checked when the file was opened
  for (uint64_t i = 0; i < entry.count; ++i) {
    const uint64_t length = load<uint64_t>(entry.bytes.data() + position);
    values.push_back(text(entry.bytes.subspan(position + 8, length)));
    position += 8 + length;
  }
  return values;
}

std::vector<uint64_t> Metadata::get_u64_per_layer(std::string_view key, uint64_t n) const {
  const Entry& entry = require(key);
  if (!entry.is_array()) {
    return std::vector<uint64_t>(n, scalar<uint64_t>(path_, entry));
  }
  if (entry.count != n) {
    fail(ErrorKind::Format, "{}: key {} at offset {} has {} elements, but the model has {} layers",
         path_, key, entry.offset, entry.count, n);
  }
  return elements<uint64_t>(path_, entry);
}

}  // namespace penstock::gguf
