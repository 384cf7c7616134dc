// penstock pack: one aligned, checksummed record per expert, for one read where the model's own
// tensors need three; `pack verify` and `pack info` look at such files.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/memory.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/version.h"
#include "experts/expert_source.h"
#include "experts/pack_identity.h"
#include "experts/pack_writer.h"
#include "models/model.h"

namespace penstock::cli {
namespace {

using experts::Pack;
using experts::PackHeader;
using experts::PackLayer;
using Json = nlohmann::ordered_json;

struct Flags {
  std::string model, out, dense_out, io = "auto", align = "16K";
  std::string pack, against;  // of verify and info
  int depth = 8;
  bool force = false, content_id = false, json = false;
};

class Bar {
 public:
  experts::PackProgress callback() {
    return [this](std::string_view phase, uint64_t done, uint64_t total) {
      if (phase != phase_) {
        phase_ = phase;
        bar_ = std::make_unique<Progress>(phase_, total);
      }
      bar_->set(done);
    };
  }
  void finish() { bar_.reset(); }

 private:
  std::string phase_;
  std::unique_ptr<Progress> bar_;
};

experts::StreamOptions stream_options(const Flags& flags) {
  experts::StreamOptions options;
  options.io = experts::parse_io_mode(flags.io);
  options.depth = flags.depth;
  return options;
}

// Padding of all records against what they hold, in per cent, if they were aligned to `align`.
double padding(const Pack& pack, uint64_t align) {
  uint64_t payload = 0;
  uint64_t records = 0;
  for (const PackLayer& l : pack.layers()) {
    payload += l.n_expert * l.record_bytes;
    records += l.n_expert * round_up(l.record_bytes, align);
  }
  return 100.0 * static_cast<double>(records - payload) / static_cast<double>(payload);
}

// Small experts in widely aligned records are mostly padding, which is read with them.
void hint_at_padding(const std::string& path) {
  constexpr double kMuch = 5;
  constexpr uint64_t kLeast = 4096;
  const Pack pack = Pack::open(path);
  const double now = padding(pack, pack.header().align);
  const double least = padding(pack, kLeast);
  if (now < kMuch || least > now / 2) return;
  log::info("{:.1f} % of what is read will be padding; --align 4K --force makes that {:.1f} %", now,
            least);
}

std::string rate(uint64_t bytes, double seconds) {
  return seconds > 0 ? fmt::format("{:.0f} MB/s", static_cast<double>(bytes) * 1e-6 / seconds)
                     : std::string("-");
}

// With the experts of a draft block in the same file, if the block can be used.
std::unique_ptr<models::Model> open_model(const std::shared_ptr<const gguf::Model>& file) {
  const models::Sources sources{.trunk = file, .draft = nullptr, .table = nullptr};
  try {
    return models::open(sources, {.draft = true});
  } catch (const Error& error) {
    auto model = models::open(sources, {});
    log::warn("the experts of the draft block stay in the model: {}", error.what());
    return model;
  }
}

int run_pack(const Flags& flags) {
  if (flags.model.empty())
    fail(ErrorKind::Usage, "name the model to pack: penstock pack MODEL.gguf");
  const uint64_t align = parse_size(flags.align);
  if (align > (uint64_t{1} << 20)) fail(ErrorKind::Usage, "--align {} is above 1M", flags.align);
  const auto file = std::make_shared<const gguf::Model>(gguf::Model::open(flags.model));
  const auto model = open_model(file);

  Bar bar;
  experts::PackRequest request;
  request.source = file.get();
  request.geometry = model->experts();
  request.n_trunk = model->info().n_layer;
  request.out = flags.out.empty() ? experts::default_pack_path(*file) : flags.out;
  request.dense_out = flags.dense_out;
  request.tool = tool_name();
  request.align = static_cast<uint32_t>(align);
  request.content_id = flags.content_id;
  request.replace = flags.force;
  request.stream = stream_options(flags);
  request.progress = bar.callback();
  request.cancel = &interrupt_flag();
  const experts::PackResult result = experts::write_pack(request);
  bar.finish();

  if (result.existed) {
    fmt::print("{} is already the pack of this model\n", request.out);
  } else {
    fmt::print("{}\n{} experts in {}: {} packed in {:.1f} s ({})", request.out, result.n_records,
               format_bytes(result.file_bytes), format_bytes(result.packed_bytes), result.seconds,
               rate(result.packed_bytes, result.seconds));
    if (result.resumed_bytes != 0) {
      fmt::print(", {} were there and are sound", format_bytes(result.resumed_bytes));
    }
    fmt::print("\n");
    log::info("the model was read by {}", result.io);
    hint_at_padding(request.out);
  }
  if (result.dense_existed) {
    fmt::print("{} is already this model without its experts\n", flags.dense_out);
  } else if (!flags.dense_out.empty()) {
    fmt::print("{}\n{} of dense weights; it runs with the pack beside it or with --pack\n",
               flags.dense_out, format_bytes(result.dense_bytes));
  }
  return 0;
}

std::string layer_text(const PackLayer& l) {
  const auto type = [](uint32_t id) { return gguf::type_name(static_cast<gguf::TypeId>(id)); };
  return fmt::format("{:>6}{}{:>9}{:>6}  {:<14}{:<8} {:<8} {:<8}{:>12}{:>12}\n", l.layer,
                     l.role == 0 ? " " : "d", l.n_expert, l.n_used,
                     fmt::format("[{}, {}]", l.n_embd, l.n_ff), type(l.type_gate), type(l.type_up),
                     type(l.type_down), l.record_bytes, l.stride);
}

std::string id_text(const Sha256& id) {
  return id == Sha256{} ? "-" : hex(id);
}

std::string flag_text(const PackHeader& h) {
  std::string text;
  for (const auto& [flag, name] : {std::pair{experts::kPackComplete, "complete"},
                                   {experts::kPackUniform, "uniform stride"},
                                   {experts::kPackDraft, "with draft head"},
                                   {experts::kPackPruned, "pruned"},
                                   {experts::kPackRequantised, "requantised"}}) {
    if (h.has(flag)) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  }
  return text;
}

Json info_json(const Pack& pack) {
  const PackHeader& h = pack.header();
  Json out = {{"path", pack.path()},
              {"version", fmt::format("{}.{}", h.major, h.minor)},
              {"align", h.align},
              {"flags", h.flags},
              {"checksum", experts::checksum_name(static_cast<experts::Checksum>(h.checksum))},
              {"layout", h.layout},
              {"file_bytes", h.file_bytes},
              {"records", h.n_records},
              {"source_header_id", hex(h.source_header_id)},
              {"source_content_id", hex(h.source_content_id)},
              {"model_id", hex(h.model_id)},
              {"dense_id", hex(h.dense_id)},
              {"keep_map_id", hex(h.keep_map_id)},
              {"quant_recipe_id", hex(h.quant_recipe_id)}};
  Json& layers = out["layers"] = Json::array();
  for (const PackLayer& l : pack.layers()) {
    layers.push_back({{"layer", l.layer},
                      {"role", l.role == 0 ? "trunk" : "draft"},
                      {"n_expert", l.n_expert},
                      {"n_used", l.n_used},
                      {"n_embd", l.n_embd},
                      {"n_ff", l.n_ff},
                      {"gate", gguf::type_name(static_cast<gguf::TypeId>(l.type_gate))},
                      {"up", gguf::type_name(static_cast<gguf::TypeId>(l.type_up))},
                      {"down", gguf::type_name(static_cast<gguf::TypeId>(l.type_down))},
                      {"record_bytes", l.record_bytes},
                      {"stride", l.stride},
                      {"base_off", l.base_off}});
  }
  out["metadata"] = Json::parse(pack.read_metadata(), nullptr, false);
  return out;
}

int run_info(const Flags& flags) {
  const Pack pack = Pack::open(flags.pack);
  if (flags.json) {
    fmt::print("{}\n",
               info_json(pack).dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  const PackHeader& h = pack.header();
  fmt::print("{}\n  pack version {}.{}, {}, {} experts of {} layers, {}\n", pack.path(), h.major,
             h.minor, format_bytes(h.file_bytes), h.n_records, h.n_layers, flag_text(h));
  fmt::print("  aligned to {}, padding {:.2f} %, layout {} ({}), checksums {}\n", h.align,
             padding(pack, h.align), h.layout, "rows as in GGUF",
             experts::checksum_name(static_cast<experts::Checksum>(h.checksum)));
  fmt::print("  model      {}\n  header     {}\n  dense      {}\n  content    {}\n",
             id_text(h.model_id), id_text(h.source_header_id), id_text(h.dense_id),
             id_text(h.source_content_id));
  fmt::print("\n{:>6} {:>9}{:>6}  {:<14}{:<8} {:<8} {:<8}{:>12}{:>12}\n", "layer", "experts",
             "used", "gate, up", "gate", "up", "down", "bytes", "stride");
  for (const PackLayer& l : pack.layers()) fmt::print("{}", layer_text(l));
  fmt::print("\n{}", pack.read_metadata());
  return 0;
}

int run_verify(const Flags& flags) {
  const Pack pack = Pack::open(flags.pack);
  if (!flags.against.empty()) {
    const gguf::Model model = gguf::Model::open(flags.against, {.allow_missing_experts = true});
    const std::string why = experts::pack_mismatch(pack.header(), experts::identify(model));
    if (!why.empty()) {
      fail(ErrorKind::Format, "{} is not the pack of {}: {}", flags.pack, flags.against, why);
    }
    const Sha256& content = pack.header().source_content_id;
    if (content != Sha256{} && content != experts::content_id(model)) {
      fail(ErrorKind::Format, "{} is not the pack of {}: the contents of the model's files differ",
           flags.pack, flags.against);
    }
    fmt::print("{} was made from {}\n", flags.pack, flags.against);
  }
  Bar bar;
  const experts::PackCheck check =
      experts::verify_pack(pack, stream_options(flags), bar.callback());
  bar.finish();
  for (const experts::BadRecord& bad : check.bad) {
    fmt::print("damaged: expert {} of layer {} at offset {}: {}\n", bad.expert, bad.layer,
               bad.offset, bad.what);
  }
  log::info("read by {}", check.io);
  if (check.n_bad != 0) {
    fail(ErrorKind::Format,
         "{}: {} of {} records are damaged; make the pack again with `penstock pack`", flags.pack,
         check.n_bad, check.n_records);
  }
  fmt::print("{}: {} records, {} in {:.1f} s ({}), all sound\n", flags.pack, check.n_records,
             format_bytes(check.bytes), check.seconds, rate(check.bytes, check.seconds));
  return 0;
}

void add_io(CLI::App& app, Flags& flags) {
  app.add_option("--io", flags.io, "how files are read: auto, uring, pread, buffered")
      ->check(CLI::IsMember({"auto", "uring", "pread", "buffered"}))
      ->capture_default_str();
  app.add_option("--io-depth", flags.depth, "experts being read at once, all held in memory")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
}

}  // namespace

void add_pack(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "pack",
      "Writes the experts of a model into a pack: one aligned, checksummed record each, read at "
      "once. `run` finds it by the model's identity. Killed, the same command goes on.");
  command->require_subcommand(0, 1);
  command->add_option("model", flags->model, "GGUF file, or any shard of a set");
  command->add_option("-o,--out", flags->out, "the pack to write")
      ->default_str("MODEL.xpk beside the model");
  command->add_option("--dense-out", flags->dense_out,
                      "also write the model without its experts: runs with the pack alone");
  command->add_option("--align", flags->align, "records begin at multiples of this")
      ->capture_default_str();
  command->add_flag("--content-id", flags->content_id,
                    "also hash the whole model (reads it twice); `pack verify -m` compares");
  command->add_flag("--force", flags->force, "replace files that are something else");
  add_io(*command, *flags);
  command->footer(
      "Examples:\n"
      "  penstock pack MODEL.gguf\n"
      "  penstock pack MODEL-00001-of-00004.gguf -o /fast/MODEL.xpk --dense-out MODEL-dense.gguf\n"
      "  penstock pack verify MODEL.xpk -m MODEL.gguf\n"
      "  penstock pack info MODEL.xpk\n"
      "\n"
      "The format: docs/pack.md");
  command->callback([flags, action, command] {
    if (command->get_subcommands().empty()) *action = [flags] { return run_pack(*flags); };
  });

  CLI::App* verify = command->add_subcommand("verify", "Reads every record and checks it.");
  verify->add_option("pack", flags->pack, "the pack")->required();
  verify->add_option("-m,--model", flags->against, "also check that it is this model's pack");
  add_io(*verify, *flags);
  verify->callback([flags, action] { *action = [flags] { return run_verify(*flags); }; });

  CLI::App* info = command->add_subcommand("info", "What a pack holds and which model it is of.");
  info->add_option("pack", flags->pack, "the pack")->required();
  info->add_flag("--json", flags->json, "as JSON");
  info->callback([flags, action] { *action = [flags] { return run_info(*flags); }; });
}

}  // namespace penstock::cli
