// Builds GGUF files byte by byte, valid or not, independently of the product's writer.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gguf/model.h"

namespace penstock::gguf::test {

template <typename T>
void put(std::string* out, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out->append(raw, sizeof value);
}

inline std::string text(std::string_view s) {
  std::string out;
  put<uint64_t>(&out, s.size());
  return out + std::string(s);
}

template <typename T>
std::string pod(T value) {
  std::string out;
  put(&out, value);
  return out;
}

struct RawTensor {
  std::string name;
  std::vector<uint64_t> dims;
  uint32_t type = 0;
  uint64_t offset = 0;
};

struct RawGguf {
  uint32_t version = 3;
  uint64_t alignment = 32;  // where build() puts the data; the key is the test's business
  std::vector<std::pair<std::string, std::string>> pairs;  // key, type id and payload
  std::vector<RawTensor> tensors;
  std::string data;
  int64_t claim_tensors = -1;  // counts in the header, if not the true ones
  int64_t claim_pairs = -1;

  void pair(const std::string& key, uint32_t type, const std::string& payload) {
    pairs.emplace_back(key, pod(type) + payload);
  }
  void string(const std::string& key, const std::string& value) { pair(key, 8, text(value)); }
  void u16(const std::string& key, uint16_t value) { pair(key, 2, pod(value)); }
  void u32(const std::string& key, uint32_t value) { pair(key, 4, pod(value)); }
  void i32(const std::string& key, int32_t value) { pair(key, 5, pod(value)); }
  void array(const std::string& key, uint32_t element, uint64_t count,
             const std::string& elements) {
    pair(key, 9, pod(element) + pod(count) + elements);
  }

  std::string build() const {
    std::string out = "GGUF";
    put(&out, version);
    put(&out, claim_tensors >= 0 ? static_cast<uint64_t>(claim_tensors) : tensors.size());
    put(&out, claim_pairs >= 0 ? static_cast<uint64_t>(claim_pairs) : pairs.size());
    for (const auto& [key, value] : pairs) out += text(key) + value;
    for (const RawTensor& tensor : tensors) {
      out += text(tensor.name);
      put(&out, static_cast<uint32_t>(tensor.dims.size()));
      for (const uint64_t size : tensor.dims) put(&out, size);
      put(&out, tensor.type);
      put(&out, tensor.offset);
    }
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }
};

// The worked example of the format's description: 288 bytes, one key, a Q2_0 and a Q8_0 tensor.
inline RawGguf worked_example() {
  RawGguf file;
  file.string("general.architecture", "test");
  file.tensors = {{"a", {64}, 42, 0}, {"b", {32, 2}, 8, 32}};
  for (int i = 0; i < 128; ++i) file.data += static_cast<char>(i);
  std::fill(file.data.begin() + 18, file.data.begin() + 32, '\0');
  std::fill(file.data.begin() + 100, file.data.end(), '\0');
  return file;
}

inline Model open_bytes(const std::string& bytes, const OpenOptions& options = {}) {
  return Model::from_memory(std::as_bytes(std::span(bytes)), "test.gguf", options);
}

// Runs the call and returns the Error's text; fails the test if there is none or of another kind.
template <typename F>
std::string error_of(ErrorKind kind, F&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

inline std::string open_error(const std::string& bytes, ErrorKind kind = ErrorKind::Format) {
  return error_of(kind, [&] { open_bytes(bytes); });
}

#define EXPECT_CONTAINS(haystack, needle)                    \
  do {                                                       \
    const std::string hay_ = (haystack);                     \
    EXPECT_NE(hay_.find(needle), std::string::npos) << hay_; \
  } while (false)

// A folder of this test alone, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock-gguf-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp";
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(file(name), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file(name);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace penstock::gguf::test
