// penstock tokenize: text to token ids and back, with the model's own vocabulary.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/runtime_flags.h"
#include "gguf/model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_gguf.h"

namespace penstock::cli {
namespace {

struct Flags {
  std::string model, text, file, ids;
  bool decode = false, no_special = false, json = false, pieces = false;
};

int run_tokenize(const Flags& flags) {
  const gguf::Model model =
      gguf::Model::open(flags.model.empty() ? sample_model_path() : flags.model);
  const text::Tokenizer tokenizer(text::load_tokenizer(model.metadata()));
  if (!flags.ids.empty()) {
    const std::string text = tokenizer.decode(text::read_token_ids(flags.ids), !flags.no_special);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  if (!flags.text.empty() && !flags.file.empty()) {
    fail(ErrorKind::Usage, "give the text with -p or a file with -f, not both");
  }
  const std::string text =
      !flags.text.empty() ? flags.text : read_text_file(flags.file.empty() ? "-" : flags.file);
  const std::vector<int32_t> ids = tokenizer.encode(text, !flags.no_special);
  if (flags.json) {
    nlohmann::ordered_json out;
    out["n"] = ids.size();
    out["ids"] = ids;
    fmt::print("{}\n", out.dump());
  } else if (flags.pieces) {
    for (const int32_t id : ids) {
      fmt::print("{:>8}  {}\n", id,
                 nlohmann::json(std::string(tokenizer.token_text(id)))
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
  } else {
    for (size_t i = 0; i < ids.size(); ++i) fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
    fmt::print("\n");
  }
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "tokenize", "Text to token ids, or ids to text, with a model's vocabulary.");
  command->add_option("-m,--model,model_file", flags->model, "GGUF file")
      ->default_str("the sample model");
  command->add_option("-p,--prompt", flags->text, "the text (default: standard input)");
  command->add_option("-f,--file", flags->file, "file with the text");
  command->add_option("--ids", flags->ids, "file with token ids to turn into text; - for stdin");
  command->add_flag("--no-special", flags->no_special,
                    "control tokens spelled in the text stay text; with --ids they are left out");
  command->add_flag("--pieces", flags->pieces, "one token a line, with its text");
  command->add_flag("--json", flags->json, "a JSON object with n and ids");
  command->callback([flags, action] { *action = [flags] { return run_tokenize(*flags); }; });
}

}  // namespace penstock::cli
