// Small made-up expert files on the build disk, whose every byte is known.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "experts/stream.h"

namespace penstock::experts::test {

// A directory of its own for each test, under the build directory: /tmp may be a tmpfs.
class Directory {
 public:
  Directory() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(PENSTOCK_BINARY_DIR) / "experts_test_files" /
            (std::string(info->test_suite_name()) + "." + info->name() + "." +
             std::to_string(::getpid()));
    for (char& c : name_ = path_.filename().string()) {
      if (c == '/') c = '_';
    }
    path_ = path_.parent_path() / name_;
    std::filesystem::create_directories(path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::string name_;
  std::filesystem::path path_;
};

// What was written, by path: what is read is compared with it.
inline std::map<std::string, std::vector<std::byte>>& written() {
  static std::map<std::string, std::vector<std::byte>> files;
  return files;
}

inline std::byte byte_at(uint64_t layer, uint64_t matrix, uint64_t expert, uint64_t i) {
  uint64_t x = (layer * 3 + matrix) * 1000003 + expert * 10007 + i / 8 * 31 + 17;
  x ^= x >> 13;
  x *= 0x9e3779b97f4a7c15ull;
  return static_cast<std::byte>(x >> (32 + 8 * (i % 4)));
}

struct LayerSpec {
  int n_expert = 16;
  int n_used = 4;
  uint64_t gate_bytes = 3 * 1024 + 96;
  uint64_t down_bytes = 2 * 1024 + 32;
  bool merged = false;
  uint32_t shard = 0;
};

// Matrices of the layers one after the other, each tensor at a 32-byte boundary, in `n_shards`
// files. The last expert's last byte is the last byte of the file.
inline Geometry write_experts(const Directory& directory, const std::vector<LayerSpec>& layers,
                              uint32_t n_shards = 1, const std::string& name = "experts") {
  Geometry geometry;
  std::vector<std::vector<std::byte>> files(n_shards);
  for (uint32_t s = 0; s < n_shards; ++s) {
    geometry.shards.push_back(directory.file(name + std::to_string(s)));
    files[s].resize(160);  // as a header would: not aligned to anything large
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerSpec& spec = layers[l];
    std::vector<std::byte>& file = files[spec.shard];
    LayerGeometry layer;
    layer.layer = static_cast<int>(l) + 1;  // as if block 0 were dense
    layer.n_expert = spec.n_expert;
    layer.n_used = spec.n_used;
    layer.merged = spec.merged;
    const auto append = [&](uint64_t matrix, uint64_t expert, uint64_t bytes) {
      for (uint64_t i = 0; i < bytes; ++i) file.push_back(byte_at(l, matrix, expert, i));
    };
    const auto matrix = [&](uint64_t bytes, uint64_t stride) {
      MatrixGeometry m;
      m.row_bytes = 32;
      m.n_in = 32;
      m.n_out = static_cast<int64_t>(bytes / 32);
      m.bytes = bytes;
      m.shard = spec.shard;
      m.offset = file.size();
      m.stride = stride;
      return m;
    };
    const auto n = static_cast<uint64_t>(spec.n_expert);
    if (spec.merged) {
      layer.gate = matrix(spec.gate_bytes, 2 * spec.gate_bytes);
      layer.up = layer.gate;
      layer.up.offset += spec.gate_bytes;
      for (uint64_t e = 0; e < n; ++e) {
        append(0, e, spec.gate_bytes);
        append(1, e, spec.gate_bytes);
      }
    } else {
      layer.gate = matrix(spec.gate_bytes, spec.gate_bytes);
      for (uint64_t e = 0; e < n; ++e) append(0, e, spec.gate_bytes);
      layer.up = matrix(spec.gate_bytes, spec.gate_bytes);
      for (uint64_t e = 0; e < n; ++e) append(1, e, spec.gate_bytes);
    }
    layer.down = matrix(spec.down_bytes, spec.down_bytes);
    for (uint64_t e = 0; e < n; ++e) append(2, e, spec.down_bytes);
    geometry.layers.push_back(layer);
  }
  for (uint32_t s = 0; s < n_shards; ++s) {
    AtomicFile out(geometry.shards[s]);
    out.write(files[s]);
    out.commit();
    written()[geometry.shards[s]] = std::move(files[s]);
  }
  return geometry;
}

// Does `data` hold the matrix of this expert?
inline bool same_bytes(const Geometry& geometry, const std::byte* data,
                       const MatrixGeometry& matrix, int expert) {
  const std::vector<std::byte>& file = written().at(geometry.shards[matrix.shard]);
  const uint64_t from = matrix.offset + static_cast<uint64_t>(expert) * matrix.stride;
  return std::memcmp(data, file.data() + from, matrix.bytes) == 0;
}

inline bool same_expert(const Geometry& geometry, int index, const ExpertData& data, int expert) {
  const LayerGeometry& layer = geometry.layers[static_cast<size_t>(index)];
  return same_bytes(geometry, data.gate, layer.gate, expert) &&
         same_bytes(geometry, data.up, layer.up, expert) &&
         same_bytes(geometry, data.down, layer.down, expert);
}

// Logits that select exactly `ids`, the first with the largest weight.
inline std::vector<float> logits_for(int n_expert, const std::vector<int>& ids) {
  std::vector<float> logits(static_cast<size_t>(n_expert), -10.0f);
  for (size_t i = 0; i < ids.size(); ++i) {
    logits[static_cast<size_t>(ids[i])] = 5.0f - 0.125f * static_cast<float>(i);
  }
  return logits;
}

}  // namespace penstock::experts::test
