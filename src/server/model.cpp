#include "server/model.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/error.h"

namespace penstock::server {
namespace {

// The file's name without its ending and without the number of a shard.
std::string stem(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  constexpr size_t kShard = 15;  // -00001-of-00002
  const size_t n = name.size();
  if (n > kShard && name[n - kShard] == '-' && name.compare(n - 9, 4, "-of-") == 0) {
    name.resize(n - kShard);
  }
  return name;
}

}  // namespace

Model::Model(const engine::Runtime& runtime, const ServerOptions& options)
    : created(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      n_ctx(runtime.options().n_ctx),
      n_vocab(runtime.info().n_vocab),
      tokenizer(runtime.has_tokenizer() ? &runtime.tokenizer() : nullptr),
      sampling(runtime.default_sampling()),
      reasoning(options.reasoning),
      reasoning_budget(options.reasoning_budget) {
  const std::string file = stem(runtime.options().model_path);
  names = options.aliases;
  if (names.empty()) names = {file, file + ".gguf"};
  id = names.front();
  if (tokenizer == nullptr) {
    no_chat = "the model file has no tokenizer that can be used";
    return;
  }
  try {
    chat = engine::open_chat_format(runtime, options.chat_format);
  } catch (const Error& error) {
    no_chat = error.what();
    return;
  }
  if (!reasoning.empty()) {
    text::ChatRequest request;
    engine::set_reasoning(&request, *chat, reasoning);
  }
}

bool Model::is_called(const std::string& name) const {
  return name.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace penstock::server
