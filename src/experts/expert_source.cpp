#include "experts/expert_source.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "experts/pack.h"
#include "experts/pack_identity.h"
#include "experts/stream.h"

namespace penstock::experts {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxCandidates = 100;

// Packs in the model's folder, one of its name first.
std::vector<std::string> candidates(const gguf::Model& model) {
  const fs::path file = model.path();
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".xpk" && paths.size() < kMaxCandidates) {
      paths.push_back(file.has_parent_path() ? it->path().string()
                                             : it->path().filename().string());
    }
  }
  const std::string first = default_pack_path(model);
  std::sort(paths.begin(), paths.end(), [&](const std::string& a, const std::string& b) {
    return (a == first) != (b == first) ? a == first : a < b;
  });
  return paths;
}

std::optional<Pack> find_pack(const gguf::Model& model) {
  std::optional<ModelIdentity> identity;
  for (const std::string& path : candidates(model)) {
    const bool namesake = path == default_pack_path(model);
    std::string why;
    try {
      Pack pack = Pack::open(path);
      if (!identity) identity = identify(model);
      why = pack_mismatch(pack.header(), *identity);
      if (why.empty()) return pack;
      why = fmt::format("{}: {}", path, why);
    } catch (const Error& error) {
      why = error.what();
    }
    if (namesake) {
      log::warn("this pack is not used: {}", why);
    } else {
      log::debug("not this model's pack: {}", why);
    }
  }
  return std::nullopt;
}

// What the pack says of a layer against what the model is.
void check_layer(const Pack& pack, const PackLayer& have, const LayerGeometry& want) {
  const auto type = [](gguf::TypeId id) { return static_cast<uint32_t>(id); };
  if (have.n_expert != static_cast<uint32_t>(want.n_expert) || have.n_embd != want.gate.n_in ||
      have.n_ff != want.gate.n_out || have.type_gate != type(want.gate.type) ||
      have.type_up != type(want.up.type) || have.type_down != type(want.down.type)) {
    fail(ErrorKind::Format,
         "{}: layer {} holds {} experts of [{}, {}] in {}, {} and {}, but the model has {} of "
         "[{}, {}] in {}, {} and {}; make a pack of this model with `penstock pack`",
         pack.path(), have.layer, have.n_expert, have.n_embd, have.n_ff,
         gguf::type_name(static_cast<gguf::TypeId>(have.type_gate)),
         gguf::type_name(static_cast<gguf::TypeId>(have.type_up)),
         gguf::type_name(static_cast<gguf::TypeId>(have.type_down)), want.n_expert, want.gate.n_in,
         want.gate.n_out, gguf::type_name(want.gate.type), gguf::type_name(want.up.type),
         gguf::type_name(want.down.type));
  }
}

// The layer's matrices lie in the model's own files, not in those of a separate draft head.
bool in_model(const gguf::Model& model, const Geometry& direct, const LayerGeometry& layer) {
  const std::string& path = direct.shards.at(layer.gate.shard);
  return std::any_of(model.shards().begin(), model.shards().end(),
                     [&](const gguf::Shard& shard) { return shard.path == path; });
}

void require_present(const gguf::Model& model, const LayerGeometry& layer) {
  for (const char* kind : {"gate", "up", "down", "gate_up"}) {
    const gguf::Tensor* tensor =
        model.find(fmt::format("blk.{}.ffn_{}_exps.weight", layer.layer, kind));
    if (tensor == nullptr || tensor->present) continue;
    const gguf::Shard& shard = model.shards()[tensor->shard];
    fail(ErrorKind::Format,
         "{}: tensor {} reaches to byte {}, but the file ends at byte {}: it was cut off (fetch it "
         "again), or it is a dense-only file whose experts are in a pack (give it with --pack "
         "FILE)",
         shard.path, tensor->name, tensor->offset + tensor->bytes, shard.file_bytes);
  }
}

// Drops the files in which nothing is read.
void keep_used_shards(Geometry& geometry) {
  std::vector<bool> used(geometry.shards.size(), false);
  const auto each = [&](auto&& visit) {
    for (LayerGeometry& layer : geometry.layers) {
      for (MatrixGeometry* matrix : {&layer.gate, &layer.up, &layer.down}) visit(matrix->shard);
    }
  };
  each([&](uint32_t& shard) { used.at(shard) = true; });
  std::vector<uint32_t> renamed(used.size(), 0);
  std::vector<std::string> kept;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    renamed[i] = static_cast<uint32_t>(kept.size());
    kept.push_back(geometry.shards[i]);
  }
  geometry.shards = std::move(kept);
  each([&](uint32_t& shard) { shard = renamed[shard]; });
}

PackUse use_pack(const Pack& pack, const gguf::Model& model, const StreamOptions& options,
                 Geometry& geometry) {
  const auto shard = static_cast<uint32_t>(geometry.shards.size());
  geometry.shards.push_back(pack.path());
  std::vector<RecordSums> sums;
  if (options.verify_every != 0) sums = pack.read_sums();
  PackUse use;
  for (LayerGeometry& layer : geometry.layers) {
    const PackLayer* entry = pack.find(layer.layer);
    if (entry == nullptr || !in_model(model, geometry, layer)) continue;
    check_layer(pack, *entry, layer);
    LayerGeometry packed = pack.geometry(*entry, shard);
    packed.n_used = layer.n_used;  // the model's metadata decides
    if (!sums.empty()) {
      const auto i = static_cast<size_t>(entry - pack.layers().data());
      packed.sums = std::make_shared<RecordSums>(std::move(sums[i]));
    }
    layer = std::move(packed);
    ++use.n_layers;
  }
  use.path = pack.path();
  use.model_id = pack.header().model_id;
  use.layout = pack.header().layout;
  use.align = pack.header().align;
  use.verify_every = options.verify_every;
  return use;
}

}  // namespace

std::string ExpertSource::describe() const {
  if (!pack) return "the model's own tensors, in place";
  std::string text = fmt::format("pack {}", pack->path);
  if (pack->overridden.empty()) {
    text += ", made from this model";
  } else {
    text += fmt::format("; NOT CHECKED TO BE THIS MODEL'S: {}", pack->overridden);
  }
  if (pack->verify_every != 0) {
    text += fmt::format("; checksums verified: {}", verify_name(pack->verify_every));
  }
  return text;
}

std::string default_pack_path(const gguf::Model& model) {
  constexpr std::string_view kShardSuffix = "-00001-of-00002";
  std::string path = model.path();
  if (path.ends_with(".gguf")) path.resize(path.size() - 5);
  if (model.shards().size() > 1 && path.size() > kShardSuffix.size()) {
    path.resize(path.size() - kShardSuffix.size());
  }
  return path + ".xpk";
}

std::string ExpertSource::changed() const {
  std::string what = files->changed();
  for (const auto& [path, then] : model_files) {
    if (!what.empty()) return what;
    int error = 0;
    const File file = File::try_open(path, O_RDONLY, &error);
    if (!file) continue;
    const FileStamp now = stamp_of(file);
    if (now.same_file(then)) what = stamp_difference(path, then, now);
  }
  return what;
}

ExpertSource open_expert_source(const gguf::Model& model, const Geometry& direct,
                                const StreamOptions& options) {
  ExpertSource source;
  for (const gguf::Shard& shard : model.shards()) {
    source.model_files.emplace_back(shard.path, stamp_of(File::open_read(shard.path)));
  }
  source.geometry = direct;
  std::optional<Pack> pack;
  std::string overridden;
  if (options.pack.file == "auto") {
    if (options.pack.unchecked) {
      fail(ErrorKind::Usage, "--pack-unchecked needs the pack's name: --pack FILE");
    }
    pack = find_pack(model);
  } else if (options.pack.file != "none") {
    pack = Pack::open(options.pack.file);
    overridden = pack_mismatch(pack->header(), identify(model));
    if (!overridden.empty() && !options.pack.unchecked) {
      fail(ErrorKind::Format,
           "{} cannot be used with {}: {}; make a pack of this model with `penstock pack`, or run "
           "without (--pack none)",
           pack->path(), model.path(), overridden);
    }
  }
  if (pack) {
    source.pack = use_pack(*pack, model, options, source.geometry);
    source.pack->overridden = overridden;
  } else if (options.verify_every != 0) {
    fail(ErrorKind::Usage,
         "--verify compares with the checksums of a pack, and there is none of {}: make one with "
         "`penstock pack`",
         model.path());
  }
  for (const LayerGeometry& layer : source.geometry.layers) {
    if (layer.record_bytes == 0) require_present(model, layer);
  }
  keep_used_shards(source.geometry);
  source.files = open_expert_files(source.geometry, options.io);
  return source;
}

}  // namespace penstock::experts
