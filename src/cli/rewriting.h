// What `prune` and `requantise` share: the flags of types, output and work, carrying a plan out,
// and the report.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "surgery/rewrite.h"
#include "surgery/type_rules.h"

namespace penstock::cli {

struct RewriteFlags {
  std::string model, out, max_shard = "0", json;
  int threads = 0;
  bool force = false;
  // Types.
  std::string experts, dense, embedding, head, table, imatrix;
  std::vector<std::string> keep_types;
  bool require_imatrix = false, positive_scales = false;

  void add_output(CLI::App& app);
  void add_types(CLI::App& app);
  surgery::TypeRules rules() const;  // throws Error(Usage)
  // Where text goes: standard output, unless that is the JSON's.
  std::FILE* text() const noexcept;
};

// The importance matrix as given, with the file's hash; nullopt: none.
struct GivenImatrix {
  surgery::Imatrix imatrix;
  std::string name;  // the file's, without folders
  Sha256 file_id{};
};
std::optional<GivenImatrix> read_importance(const RewriteFlags& flags);

// What becomes of which tensors, and what that takes.
void print_changes(std::FILE* to, const surgery::RewritePlan& plan,
                   const std::vector<surgery::Fallback>& fallbacks);

// Applies the flags' types to the plan and records them in its metadata; warns of a source that is
// quantised already and of tensors without importance. Nothing happens when no type is asked for.
void plan_types(const RewriteFlags& flags, const Sha256& source_id,
                const std::optional<GivenImatrix>& imatrix, surgery::RewritePlan* plan);

// Carries the plan out, with progress, and prints what was made: errors by class, every tensor's
// with --verbose, all of them in --json. `plan` must be as plan_types() left it.
surgery::RewriteResult carry_out(const RewriteFlags& flags,
                                 const std::optional<GivenImatrix>& imatrix,
                                 const surgery::RewritePlan& plan);

}  // namespace penstock::cli
