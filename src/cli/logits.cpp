// penstock logits: token ids in, raw logits out. The door for anyone's parity check.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/runtime_flags.h"
#include "engine/sampler.h"
#include "engine/session.h"

namespace penstock::cli {
namespace {

struct Flags {
  RuntimeFlags runtime;
  std::string ids;
  std::string out;
  bool all = false;
  int top = 0;
};

nlohmann::ordered_json top_json(int64_t position, std::span<const float> logits, int n) {
  nlohmann::ordered_json top = nlohmann::ordered_json::array();
  for (const engine::TokenProbability& token : engine::top_logprobs(logits, n)) {
    top.push_back({{"id", token.id},
                   {"logit", logits[static_cast<size_t>(token.id)]},
                   {"logprob", token.logprob}});
  }
  return {{"position", position}, {"top", std::move(top)}};
}

int run_logits(const Flags& flags) {
  const std::vector<int32_t> ids = text::read_token_ids(flags.ids);
  if (ids.empty()) fail(ErrorKind::Usage, "{} holds no token ids", flags.ids);
  const auto runtime = open_runtime(flags.runtime);
  engine::Session session(*runtime);

  std::unique_ptr<AtomicFile> out;
  if (!flags.out.empty() && flags.out != "-") out = std::make_unique<AtomicFile>(flags.out);
  const auto write = [&](std::span<const float> logits) {
    if (out) {
      out->write(logits.data(), logits.size_bytes());
    } else if (flags.out == "-") {
      std::fwrite(logits.data(), sizeof(float), logits.size(), stdout);
    }
  };
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const auto n_vocab = static_cast<size_t>(runtime->info().n_vocab);
  if (flags.all) {
    session.prefill_all(ids, [&](int64_t first, std::span<const float> logits) {
      write(logits);
      for (size_t row = 0; flags.top > 0 && row * n_vocab < logits.size(); ++row) {
        rows.push_back(top_json(first + static_cast<int64_t>(row),
                                logits.subspan(row * n_vocab, n_vocab), flags.top));
      }
    });
  } else {
    session.prefill(ids);
    write(session.logits());
    if (flags.top > 0)
      rows.push_back(top_json(session.position() - 1, session.logits(), flags.top));
  }
  check_unchanged(*runtime);
  if (out) out->commit();
  if (flags.top > 0) fmt::print("{}\n", rows.dump(1));
  return 0;
}

}  // namespace

void add_logits(CLI::App& app, Action* action) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "logits",
      "Evaluates token ids and writes the raw logits: little-endian f32, positions x vocabulary.");
  command->footer(
      "Example: compare with another implementation, f32 activations, every position\n"
      "  printf '11 48 85 122' | penstock logits MODEL.gguf --ids - --all --out OUT.f32 "
      "--precision exact");
  flags->runtime.add_to(*command);
  command->add_option("model_file", "the same as --model")->each([flags](const std::string& path) {
    flags->runtime.set_model(path);
  });
  command
      ->add_option("--ids", flags->ids, "file with token ids separated by white space; - for stdin")
      ->required();
  command->add_option("--out", flags->out, "file for the logits; - for stdout");
  command->add_flag("--all", flags->all, "every position's logits, not only the last one's");
  command->add_option("--top", flags->top, "prints the K most likely tokens of each row as JSON")
      ->check(CLI::PositiveNumber);
  command->callback([flags, action] { *action = [flags] { return run_logits(*flags); }; });
}

}  // namespace penstock::cli
