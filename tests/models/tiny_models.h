// Tiny models of every architecture, written to GGUF files from a closed form
// (spec/qwen4exp.md §10.2, spec/moe-architectures.md §11): no fixture file is needed, and the
// expected values of the tests are numbers that independent programs computed from the same form.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gguf/types.h"

namespace penstock::testing {

using MetadataValue = std::variant<uint32_t, float, std::string, std::vector<int32_t>,
                                   std::vector<uint64_t>, std::vector<std::string>>;

struct TinyOptions {
  gguf::TypeId matrices = gguf::TypeId::F32;  // or Q8_0: every matrix with rows of 32 k elements
  bool draft = false;                         // qwen4exp, qwen35moe: with the MTP block
  bool only_draft = false;                    // nothing but the MTP block (a side file)
  bool legacy_input = false;                  // qwen3next: ssm_in
  bool merged_gate_up = false;
  bool tied = false;
  std::optional<int> n_expert = {};
  // Keys without the architecture's prefix; with a leading dot: whole keys.
  std::map<std::string, MetadataValue> set = {};
  std::set<std::string> remove = {};                         // keys and tensors
  std::vector<std::string> zero = {};                        // ends of names: all elements zero
  std::map<std::string, std::vector<uint64_t>> shapes = {};  // instead of a tensor's right one
  std::map<std::string, std::vector<uint64_t>> extra = {};   // more tensors
};

// Writes <architecture>.gguf (or the given name) into `folder` and returns its path.
std::string write_tiny(const std::string& folder, const std::string& architecture,
                       const TinyOptions& options = {}, const std::string& name = "");

// Element i of a tensor by the closed form.
float tiny_value(std::string_view tensor, uint64_t i, uint64_t ne0);

// The prompt of all goldens: n tokens.
std::vector<int32_t> tiny_tokens(int n);

// A folder under the system's temporary directory, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace penstock::testing
