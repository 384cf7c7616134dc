// llama.cpp as a peer: a small server of logits and timings on standard input and output.
//
//   llama_peer MODEL.gguf [--threads N] [--batch N] [--ctx N] [--kv f32|f16] [--fa off|on|auto] [--no-repack] [--all-logits] [--verbose]
//
// One model, one context. Commands, one a line; each is answered by one line, `ok ...` or `error ...`:
//   logits IDS_FILE OUT_FILE CHUNK   feeds the ids from an empty cache in chunks, writes f32 [n, n_vocab]
//   prompt N SEED                    empties the cache, times N pseudo-random ids; only the last logits
//   decode N                         times N greedy tokens after whatever is in the cache
//   quit
//
// Built against the very llama.cpp that is measured (see README.md): its headers change between releases.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama.h"

namespace {

struct Options {
  std::string model;
  int threads = 2;
  uint32_t batch = 512;
  uint32_t ctx = 4096;
  ggml_type kv = GGML_TYPE_F32;
  llama_flash_attn_type flash = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  bool repack = true;
  bool all_logits = false;
  bool verbose = false;
};

bool g_verbose = false;

void log_line(ggml_log_level level, const char* text, void*) {
  if (g_verbose || level >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
}

llama_flash_attn_type flash_type(const std::string& word) {
  if (word == "on") return LLAMA_FLASH_ATTN_TYPE_ENABLED;
  if (word == "auto") return LLAMA_FLASH_ATTN_TYPE_AUTO;
  return LLAMA_FLASH_ATTN_TYPE_DISABLED;
}

Options parse(int argc, char** argv) {
  Options o;
  if (argc < 2) throw std::runtime_error("usage: llama_peer MODEL.gguf [options]");
  o.model = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string a = argv[i];
    auto value = [&]() -> std::string {
      if (i + 1 >= argc) throw std::runtime_error(a + " needs a value");
      return argv[++i];
    };
    if (a == "--threads") o.threads = std::stoi(value());
    else if (a == "--batch") o.batch = static_cast<uint32_t>(std::stoul(value()));
    else if (a == "--ctx") o.ctx = static_cast<uint32_t>(std::stoul(value()));
    else if (a == "--kv") o.kv = value() == "f16" ? GGML_TYPE_F16 : GGML_TYPE_F32;
    else if (a == "--fa") o.flash = flash_type(value());
    else if (a == "--no-repack") o.repack = false;
    else if (a == "--all-logits") o.all_logits = true;
    else if (a == "--verbose") o.verbose = true;
    else throw std::runtime_error("unknown option " + a);
  }
  return o;
}

class Peer {
 public:
  explicit Peer(const Options& o) : options_(o) {
    llama_backend_init();
    llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = o.repack;
    model_ = llama_model_load_from_file(o.model.c_str(), mp);
    if (model_ == nullptr) throw std::runtime_error("cannot load " + o.model);
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = o.ctx;
    cp.n_batch = o.batch;
    cp.n_ubatch = o.batch;
    if (o.all_logits) {
      cp.n_outputs_max = o.batch;
      cp.n_outputs_max_per_seq = o.batch;
    }
    cp.n_threads = o.threads;
    cp.n_threads_batch = o.threads;
    cp.type_k = o.kv;
    cp.type_v = o.kv;
    cp.flash_attn_type = o.flash;
    ctx_ = llama_init_from_model(model_, cp);
    if (ctx_ == nullptr) throw std::runtime_error("cannot make a context");
    n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    batch_ = llama_batch_init(static_cast<int32_t>(o.batch), 0, 1);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    llama_batch_free(batch_);
    llama_free(ctx_);
    llama_model_free(model_);
  }

  int n_vocab() const { return n_vocab_; }

  void logits(const std::vector<llama_token>& ids, const std::string& out_path, size_t chunk) {
    reset();
    std::ofstream out(out_path, std::ios::binary);
    for (size_t at = 0; at < ids.size(); at += chunk) {
      const size_t n = std::min(chunk, ids.size() - at);
      feed(ids.data() + at, n, true);
      for (size_t i = 0; i < n; ++i) {
        const float* row = llama_get_logits_ith(ctx_, static_cast<int32_t>(i));
        if (row == nullptr) throw std::runtime_error("no logits");
        out.write(reinterpret_cast<const char*>(row), static_cast<std::streamsize>(sizeof(float)) * n_vocab_);
      }
    }
    if (!out) throw std::runtime_error("cannot write " + out_path);
  }

  double prompt(size_t n, uint64_t seed) {
    std::vector<llama_token> ids(n);
    for (auto& id : ids) {
      seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
      id = static_cast<llama_token>((seed >> 33) % static_cast<uint64_t>(n_vocab_));
    }
    reset();
    const auto start = std::chrono::steady_clock::now();
    for (size_t at = 0; at < n; at += options_.batch) feed(ids.data() + at, std::min<size_t>(options_.batch, n - at), false);
    next_ = argmax();
    return since(start);
  }

  double decode(size_t n) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < n; ++i) {
      feed(&next_, 1, false);
      next_ = argmax();
    }
    return since(start);
  }

 private:
  static double since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void reset() {
    llama_memory_clear(llama_get_memory(ctx_), true);
    position_ = 0;
  }
  void feed(const llama_token* ids, size_t n, bool all) {
    batch_.n_tokens = static_cast<int32_t>(n);
    for (size_t i = 0; i < n; ++i) {
      batch_.token[i] = ids[i];
      batch_.pos[i] = position_++;
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = 0;
      batch_.logits[i] = (all || i + 1 == n) ? 1 : 0;
    }
    const int status = llama_decode(ctx_, batch_);
    if (status != 0) throw std::runtime_error("llama_decode returned " + std::to_string(status));
    llama_synchronize(ctx_);
  }
  llama_token argmax() const {
    const float* row = llama_get_logits_ith(ctx_, -1);
    llama_token best = 0;
    for (int i = 1; i < n_vocab_; ++i)
      if (row[i] > row[best]) best = i;
    return best;
  }

  Options options_;
  llama_model* model_ = nullptr;
  llama_context* ctx_ = nullptr;
  llama_batch batch_{};
  int n_vocab_ = 0;
  llama_pos position_ = 0;
  llama_token next_ = 0;
};

std::vector<llama_token> read_ids(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::vector<llama_token> ids;
  for (llama_token id; in >> id;) {
    ids.push_back(id);
    while (in.peek() == ',') in.get();
  }
  return ids;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  g_verbose = options.verbose;
  llama_log_set(log_line, nullptr);
  Peer peer(options);
  std::printf("ok ready n_vocab %d %s\n", peer.n_vocab(), llama_print_system_info());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    try {
      if (command == "quit") break;
      if (command == "logits") {
        std::string ids_path, out_path;
        size_t chunk = 0;
        words >> ids_path >> out_path >> chunk;
        const auto ids = read_ids(ids_path);
        peer.logits(ids, out_path, chunk);
        std::printf("ok %zu %d\n", ids.size(), peer.n_vocab());
      } else if (command == "prompt") {
        size_t n = 0;
        uint64_t seed = 1;
        words >> n >> seed;
        std::printf("ok %.9f\n", peer.prompt(n, seed));
      } else if (command == "decode") {
        size_t n = 0;
        words >> n;
        std::printf("ok %.9f\n", peer.decode(n));
      } else {
        std::printf("error unknown command %s\n", command.c_str());
      }
    } catch (const std::exception& e) {
      std::printf("error %s\n", e.what());
    }
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception& e) {
  std::printf("error %s\n", e.what());
  return 1;
}
