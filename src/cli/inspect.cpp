// penstock inspect: what is in a GGUF file, and would it run here.
#include "surgery/inspect.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/machine.h"
#include "cli/commands.h"
#include "cli/runtime_flags.h"
#include "models/model.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;
using surgery::Inspection;

struct Flags {
  std::string file;
  bool tensors = false;
  bool json = false;
  bool scan = false;
};

Json value_json(const gguf::Metadata& metadata, const gguf::Entry& entry) {
  using gguf::ValueType;
  const bool real = entry.element == ValueType::F32 || entry.element == ValueType::F64;
  if (!entry.is_array()) {
    if (entry.type == ValueType::String) return std::string(metadata.get_string(entry.key));
    if (entry.type == ValueType::Bool) return metadata.get_bool(entry.key);
    if (entry.type == ValueType::U64) return metadata.get_u64(entry.key);
    if (real) return metadata.get_f64(entry.key);
    return metadata.get_i64(entry.key);
  }
  if (entry.element == ValueType::String) {
    Json out = Json::array();
    for (const std::string_view text : metadata.get_string_array(entry.key)) {
      out.push_back(std::string(text));
    }
    return out;
  }
  if (entry.element == ValueType::Bool) return metadata.get_bool_array(entry.key);
  if (entry.element == ValueType::U64) return metadata.get_u64_array(entry.key);
  if (real) return metadata.get_f64_array(entry.key);
  return metadata.get_i64_array(entry.key);
}

Json types_json(const std::vector<surgery::TypeTotal>& types) {
  Json out = Json::array();
  for (const surgery::TypeTotal& type : types) {
    out.push_back({{"type", gguf::type_name(type.type)},
                   {"tensors", type.tensors},
                   {"bytes", type.bytes},
                   {"elements", type.elements},
                   {"bits_per_weight", type.bits_per_weight()}});
  }
  return out;
}

Json report_json(const gguf::Model& model, const Inspection& report) {
  Json out;
  out["path"] = model.path();
  out["architecture"] = report.architecture;
  out["header_id"] = hex(model.header_id());
  Json& shards = out["shards"] = Json::array();
  for (const gguf::Shard& shard : model.shards()) {
    shards.push_back({{"path", shard.path},
                      {"bytes", shard.file_bytes},
                      {"alignment", shard.alignment},
                      {"header_bytes", shard.header_bytes},
                      {"data_start", shard.data_start},
                      {"tensors", shard.n_tensors}});
  }
  Json& metadata = out["metadata"] = Json::object();
  for (const gguf::Entry& entry : model.metadata().entries()) {
    metadata[std::string(entry.key)] = value_json(model.metadata(), entry);
  }
  out["parameters"] = report.n_parameters;
  out["tensor_bytes"] = report.tensor_bytes;
  out["types"] = types_json(report.types);
  Json& roles = out["roles"] = Json::array();
  for (const surgery::RoleTotal& role : report.roles) {
    roles.push_back({{"role", surgery::role_name(role.role)},
                     {"tensors", role.tensors},
                     {"bytes", role.bytes},
                     {"types", types_json(role.types)}});
  }
  Json& experts = out["experts"] = Json::array();
  for (const surgery::ExpertClass& c : report.experts) {
    experts.push_back({{"layers", c.layers},
                       {"n_expert", c.n_expert},
                       {"n_used", c.n_used},
                       {"n_embd", c.n_embd},
                       {"n_ff", c.n_ff},
                       {"merged", c.merged},
                       {"gate", gguf::type_name(c.gate)},
                       {"up", gguf::type_name(c.up)},
                       {"down", gguf::type_name(c.down)},
                       {"expert_bytes", c.expert_bytes},
                       {"total_bytes", c.total_bytes}});
  }
  out["expert_bytes"] = report.expert_bytes;
  out["expert_bytes_per_token"] = report.expert_bytes_per_token;
  out["dense_bytes"] = report.dense_bytes;
  out["ngram_bytes"] = report.ngram_bytes;
  out["draft_bytes"] = report.draft_bytes;
  out["runs"] = report.runs();
  out["isa"] = quant::isa_name(quant::current_isa());
  Json& issues = out["issues"] = Json::array();
  for (const surgery::Issue& issue : report.issues) {
    issues.push_back({{"blocks", issue.blocks}, {"text", issue.text}});
  }
  Json& tensors = out["tensors"] = Json::array();
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    const gguf::Tensor& t = model.tensors()[i];
    tensors.push_back({{"name", t.name},
                       {"type", gguf::type_name(t.type)},
                       {"shape", std::vector<uint64_t>(t.ne.begin(), t.ne.begin() + t.n_dims)},
                       {"role", surgery::role_name(report.tensor_roles[i])},
                       {"shard", t.shard},
                       {"offset", t.offset},
                       {"bytes", t.bytes},
                       {"present", t.present}});
  }
  return out;
}

std::string type_list(const std::vector<surgery::TypeTotal>& types) {
  std::string out;
  for (const surgery::TypeTotal& type : types) {
    if (!out.empty()) out += ", ";
    out += gguf::type_name(type.type);
    if (types.size() > 1) out += fmt::format(" x{}", type.tensors);
  }
  return out;
}

void print_head(const gguf::Model& model, const Inspection& report) {
  fmt::print("{}\n", model.path());
  fmt::print("  {} in {} file{}, {} tensors, {:.3f} B parameters, {:.3f} bits per weight\n",
             format_bytes(model.file_bytes()), model.shards().size(),
             model.shards().size() == 1 ? "" : "s", model.tensors().size(),
             static_cast<double>(report.n_parameters) * 1e-9,
             report.n_parameters == 0 ? 0.0
                                      : 8.0 * static_cast<double>(report.tensor_bytes) /
                                            static_cast<double>(report.n_parameters));
  fmt::print("  header {}\n", hex(model.header_id()));
  if (model.shards().size() > 1) {
    for (const gguf::Shard& shard : model.shards()) {
      fmt::print("  {:>10}  {:>5} tensors  {}\n", format_bytes(shard.file_bytes), shard.n_tensors,
                 shard.path);
    }
  }
  fmt::print("\nMetadata\n");
  size_t width = 0;
  for (const gguf::Entry& entry : model.metadata().entries()) {
    width = std::max(width, std::min<size_t>(entry.key.size(), 48));
  }
  for (const gguf::Entry& entry : model.metadata().entries()) {
    fmt::print("  {:<{}}  {}\n", gguf::printable(entry.key), width,
               surgery::value_text(model.metadata(), entry));
  }
}

void print_types(const Inspection& report) {
  fmt::print("\nTypes\n  {:<9}{:>8}{:>13}{:>8}{:>8}\n", "type", "tensors", "bytes", "share", "bpw");
  for (const surgery::TypeTotal& type : report.types) {
    fmt::print("  {:<9}{:>8}{:>13}{:>7.1f}%{:>8.4g}\n", gguf::type_name(type.type), type.tensors,
               format_bytes(type.bytes),
               100.0 * static_cast<double>(type.bytes) / static_cast<double>(report.tensor_bytes),
               type.bits_per_weight());
  }
  fmt::print("\nBy role\n  {:<26}{:>8}{:>13}  {}\n", "role", "tensors", "bytes", "types");
  for (const surgery::RoleTotal& role : report.roles) {
    fmt::print("  {:<26}{:>8}{:>13}  {}\n", surgery::role_name(role.role), role.tensors,
               format_bytes(role.bytes), type_list(role.types));
  }
}

void print_experts(const Inspection& report) {
  if (report.experts.empty()) return;
  fmt::print("\nRouted experts\n  {:>7}{:>6}  {:<17}{:<9}{:<17}{:<9}{:>11}{:>12}  {}\n", "experts",
             "used", "gate, up", "type", "down", "type", "bytes each", "in all", "layers");
  for (const surgery::ExpertClass& c : report.experts) {
    const char* gate = gguf::type_name(c.gate);
    fmt::print("  {:>7}{:>6}  {:<17}{:<9}{:<17}{:<9}{:>11}{:>12}  {}\n", c.n_expert, c.n_used,
               fmt::format("[{}, {}]{}", c.n_embd, c.n_ff, c.merged ? " x2" : ""),
               c.gate == c.up ? gate : fmt::format("{}/{}", gate, gguf::type_name(c.up)),
               fmt::format("[{}, {}]", c.n_ff, c.n_embd), gguf::type_name(c.down), c.expert_bytes,
               format_bytes(c.total_bytes), c.layer_text());
  }
}

void print_memory(const Inspection& report) {
  fmt::print("\nWhere the bytes go\n");
  const auto row = [](const char* what, uint64_t bytes, const char* note) {
    if (bytes > 0) fmt::print("  {:<26}{:>13}  {}\n", what, format_bytes(bytes), note);
  };
  row("dense weights", report.dense_bytes, "resident in memory");
  row("routed experts", report.expert_bytes, "streamed from storage");
  row("n-gram table", report.ngram_bytes, "read row by row");
  row("draft block", report.draft_bytes, "loaded only for drafting");
  row("experts used per token", report.expert_bytes_per_token,
      "read per token when none is in memory");
}

int run_inspect(const Flags& flags) {
  gguf::OpenOptions open;
  open.allow_missing_experts = true;  // reported as an issue
  const gguf::Model model =
      gguf::Model::open(flags.file.empty() ? sample_model_path() : flags.file, open);
  surgery::InspectOptions options;
  options.known_architectures = models::known_architectures();
  options.isa = quant::current_isa();
  Inspection report = surgery::inspect(model, options);
  if (flags.scan) {
    for (const gguf::Tensor& tensor : model.tensors()) {
      if (!tensor.present) continue;
      try {
        gguf::check_finite(model, tensor);
      } catch (const Error& error) {
        report.issues.push_back({true, error.what()});
      }
    }
  }
  if (flags.json) {
    fmt::print(
        "{}\n",
        report_json(model, report).dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  print_head(model, report);
  print_types(report);
  print_experts(report);
  print_memory(report);
  if (flags.tensors) {
    fmt::print("\nTensors\n");
    for (const gguf::Tensor& tensor : model.tensors()) {
      fmt::print("  {:<40} {:<8} {:<24}{:>13}\n", gguf::printable(tensor.name),
                 gguf::type_name(tensor.type), gguf::shape_text(tensor), tensor.bytes);
    }
  }
  fmt::print("\n{}\n", report.runs() ? "This model runs here." : "This model does not run here:");
  for (const surgery::Issue& issue : report.issues) {
    fmt::print("  {} {}\n", issue.blocks ? "cannot:" : "slow:  ", issue.text);
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "inspect", "What is in a GGUF file: metadata, real types, experts, and would it run here.");
  command->add_option("-m,--model,model_file", flags->file, "GGUF file, or any shard of a set")
      ->default_str("the sample model");
  command->add_flag("--tensors", flags->tensors, "every tensor: name, type, shape, bytes");
  command->add_flag("--json", flags->json, "everything as one JSON object");
  command->add_flag("--scan", flags->scan, "reads all data and looks for values not finite");
  command->callback([flags, action] { *action = [flags] { return run_inspect(*flags); }; });
}

}  // namespace penstock::cli
