#include "models/dense_convert.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "quant/codec.h"
#include "quant/matmul.h"

namespace penstock::models {
namespace {

constexpr std::string_view kGathered = "token_embd.weight";

bool can_hold(gguf::TypeId type) noexcept {
  return quant::can_encode(type) && quant::has_kernel(type);
}

bool same_name(std::string_view a, std::string_view b) noexcept {
  const auto upper = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return upper(x) == upper(y); });
}

std::string known_types() {
  std::string names;
  for (const gguf::TypeInfo& type : gguf::kTypes) {
    if (can_hold(type.id)) names += fmt::format("{}{}", names.empty() ? "" : ", ", type.name);
  }
  return names;
}

}  // namespace

ConvertRule parse_convert_rule(std::string_view text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    fail(ErrorKind::Usage, "--dense-convert {}: not of the form PATTERN=TYPE, such as 'blk.*=Q8_0'",
         text);
  }
  const std::string_view name = text.substr(equals + 1);
  for (const gguf::TypeInfo& type : gguf::kTypes) {
    if (can_hold(type.id) && same_name(type.name, name)) {
      return {std::string(text.substr(0, equals)), type.id};
    }
  }
  fail(ErrorKind::Usage, "--dense-convert {}: {} is not a type that can be written: one of {}",
       text, name, known_types());
}

bool glob_matches(std::string_view pattern, std::string_view name) noexcept {
  size_t p = 0, n = 0;
  size_t star = std::string_view::npos, resume = 0;  // the last *, and where its text may end next
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Conversions::Conversions(const std::vector<ConvertRule>& rules) : matched_(rules.size(), 0) {
  for (const ConvertRule& rule : rules) {
    report_.push_back({.pattern = rule.pattern, .type = rule.type});
  }
}

gguf::TypeId Conversions::type_for(const gguf::Model& file, const gguf::Tensor& tensor) {
  if (tensor.name == kGathered) return tensor.type;
  ConvertedTensors* rule = nullptr;
  for (size_t i = 0; i < report_.size(); ++i) {
    if (!glob_matches(report_[i].pattern, tensor.name)) continue;
    ++matched_[i];
    rule = &report_[i];
  }
  if (rule == nullptr) return tensor.type;
  if (rule->type == tensor.type) {
    ++rule->unchanged;
    return tensor.type;
  }
  const gguf::TypeInfo& type = gguf::type_info(rule->type);
  if (tensor.ne[0] % type.block_elems != 0) {
    fail(ErrorKind::Usage,
         "--dense-convert {}={}: {}: tensor {} has rows of {} elements, which is no multiple of "
         "that type's {}; take a pattern without it, or give it another type in a later "
         "--dense-convert",
         rule->pattern, type.name, file.path(), tensor.name, tensor.ne[0], type.block_elems);
  }
  if (!quant::can_decode(tensor.type)) {
    fail(ErrorKind::Usage, "--dense-convert {}={}: {}: tensor {} is {}, which cannot be decoded",
         rule->pattern, type.name, file.path(), tensor.name, gguf::type_name(tensor.type));
  }
  ++rule->tensors;
  rule->bytes_from += tensor.bytes;
  rule->bytes_to += tensor.rows() * gguf::row_bytes(rule->type, tensor.ne[0]);
  held_[tensor.name] = rule->type;
  identity_ += fmt::format("{}={}\n", tensor.name, type.name);
  return rule->type;
}

gguf::TypeId Conversions::held_type(const gguf::Tensor& tensor) const {
  const auto it = held_.find(tensor.name);
  return it == held_.end() ? tensor.type : it->second;
}

void Conversions::check(const gguf::Model& file) const {
  for (size_t i = 0; i < report_.size(); ++i) {
    if (matched_[i] != 0) continue;
    const std::string& pattern = report_[i].pattern;
    const auto tensors = file.tensors();
    const auto other = std::find_if(tensors.begin(), tensors.end(), [&](const gguf::Tensor& t) {
      return glob_matches(pattern, t.name);
    });
    const char* type = gguf::type_name(report_[i].type);
    if (other == tensors.end()) {
      fail(ErrorKind::Usage,
           "--dense-convert {}={}: no tensor of {} has such a name; penstock inspect lists them",
           pattern, type, file.path());
    }
    fail(ErrorKind::Usage,
         "--dense-convert {}={}: {} cannot be converted, nor anything else of that name: only "
         "matrices that are used as they stand in the file can, which leaves out {}, the routers, "
         "fused tensors that are taken apart, vectors, convolutions and experts",
         pattern, type, other->name, kGathered);
  }
}

void convert_rows(const gguf::Tensor& tensor, gguf::TypeId type, uint64_t first, uint64_t count,
                  const std::byte* from, std::byte* to) {
  const auto n = static_cast<int64_t>(tensor.ne[0]);
  const uint64_t to_bytes = gguf::row_bytes(type, tensor.ne[0]);
  std::vector<float> row(tensor.ne[0]);
  for (uint64_t r = 0; r < count; ++r, from += tensor.row_bytes, to += to_bytes) {
    quant::decode_row(tensor.type, from, row.data(), n);
    if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) {
      fail(ErrorKind::Numeric,
           "tensor {}: row {} holds a value that is not finite, so it cannot be converted to {}",
           tensor.name, first + r, gguf::type_name(type));
    }
    quant::encode_row(type, row.data(), to, n, nullptr);
  }
}

}  // namespace penstock::models
