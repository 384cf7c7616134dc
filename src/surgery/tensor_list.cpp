#include "surgery/tensor_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>

#include "base/error.h"

namespace penstock::surgery {
namespace {

bool is_word(char c) noexcept {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-' ||
         c == '*';
}

std::vector<std::string_view> words(std::string_view line) {
  std::vector<std::string_view> out;
  for (size_t i = 0; i < line.size();) {
    if (!is_word(line[i])) {
      ++i;
      continue;
    }
    size_t j = i;
    while (j < line.size() && is_word(line[j])) ++j;
    out.push_back(line.substr(i, j - i));
    i = j;
  }
  return out;
}

bool is_tensor_name(std::string_view word) noexcept {
  return word.find('.') != std::string_view::npos &&
         (word.starts_with("blk.") || word.starts_with("token_embd.") ||
          word.starts_with("output") || word.starts_with("per_layer_token_embd."));
}

bool parse_number(std::string_view word, uint64_t* out) noexcept {
  const char* const end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, *out);
  return error == std::errc() && at == end;
}

// "[2560, 640, 512]" or "2560 x 640 x 512", after the name.
std::vector<uint64_t> dims_of(std::string_view text) {
  std::vector<uint64_t> dims;
  const size_t open = text.find_first_of("[(");
  if (open != std::string_view::npos) {
    const size_t close = text.find_first_of("])", open);
    for (const std::string_view word : words(text.substr(open, close - open))) {
      uint64_t n = 0;
      if (parse_number(word, &n)) dims.push_back(n);
    }
    if (!dims.empty()) return dims;
  }
  bool joined = false;  // the last word was an "x" between numbers
  for (const std::string_view word : words(text)) {
    uint64_t n = 0;
    if (parse_number(word, &n)) {
      if (!joined) dims.clear();
      dims.push_back(n);
      joined = false;
    } else if ((word == "x" || word == "X") && !dims.empty()) {
      joined = true;
    } else if (dims.size() > 1) {
      break;
    }
  }
  return dims;
}

}  // namespace

bool parse_type(std::string_view text, gguf::TypeId* out) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr std::string_view kPrefix = "GGML_TYPE_";
  if (upper.starts_with(kPrefix)) upper.erase(0, kPrefix.size());
  for (const gguf::TypeInfo& type : gguf::kTypes) {
    if (upper == type.name) {
      *out = type.id;
      return true;
    }
  }
  return false;
}

const gguf::TypeId* listed_type(const std::vector<ListedTensor>& list, const std::string& name) {
  const gguf::TypeId* type = nullptr;
  for (const ListedTensor& tensor : list) {
    if (tensor.name == name) return &tensor.type;
    if (tensor.name.find('*') != std::string::npos &&
        fnmatch(tensor.name.c_str(), name.c_str(), 0) == 0) {
      type = &tensor.type;
    }
  }
  return type;
}

std::vector<ListedTensor> parse_tensor_list(std::string_view text, const std::string& source) {
  std::vector<ListedTensor> tensors;
  std::map<std::string, gguf::TypeId, std::less<>> seen;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    ++line_number;
    const auto parts = words(line);
    const auto name = std::find_if(parts.begin(), parts.end(), is_tensor_name);
    if (name == parts.end()) continue;
    ListedTensor tensor;
    tensor.name = std::string(*name);
    const auto type = std::find_if(parts.begin(), parts.end(), [&](std::string_view word) {
      return parse_type(word, &tensor.type);
    });
    if (type == parts.end()) continue;
    const size_t after = static_cast<size_t>(name->data() + name->size() - line.data());
    tensor.dims = dims_of(line.substr(after));
    const bool pattern = tensor.name.find('*') != std::string::npos;
    const auto [it, inserted] = seen.emplace(tensor.name, tensor.type);
    if (!inserted && !pattern) {
      if (it->second == tensor.type) continue;
      fail(ErrorKind::Format, "{}, line {}: tensor {} is listed as {} and as {}", source,
           line_number, tensor.name, gguf::type_name(it->second), gguf::type_name(tensor.type));
    }
    tensors.push_back(std::move(tensor));
  }
  if (tensors.empty()) {
    fail(ErrorKind::Format, "{}: no line holds a tensor name and a type", source);
  }
  return tensors;
}

}  // namespace penstock::surgery
