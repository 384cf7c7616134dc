// Internal to gguf/: turns the bytes of one file into validated metadata and tensor descriptors,
// and puts shards together. Used by Model::open and Model::from_memory.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "gguf/model.h"

namespace penstock::gguf {

// Parses one file's header into the three results; `shard.path` names it in messages.
struct ParsedFile {
  Shard shard;
  std::vector<Entry> entries;
  std::vector<Tensor> tensors;  // offsets absolute in the file, `shard` still 0
};
ParsedFile parse_file(std::span<const std::byte> bytes, const std::string& path,
                      const OpenOptions& options);

class Parser {
 public:
  static Model open(const std::string& path, const OpenOptions& options);
  static Model from_memory(std::span<const std::byte> bytes, const std::string& path,
                           const OpenOptions& options);

 private:
  explicit Parser(const OpenOptions& options) : options_(options) {}
  void add_file(const std::string& path);
  void add_bytes(std::span<const std::byte> bytes, const std::string& path);
  void add(ParsedFile file, std::span<const std::byte> view);
  void open_set();
  void check_set() const;
  Model finish();

  OpenOptions options_;
  Model model_;
};

// "<prefix>-00002-of-00003.gguf": prefix, 2, 3.
struct ShardName {
  std::string prefix;
  uint64_t number = 0;
  uint64_t total = 0;
};
bool parse_shard_name(const std::string& path, ShardName* out);
std::string shard_path(const std::string& prefix, uint64_t number, uint64_t total);

}  // namespace penstock::gguf
