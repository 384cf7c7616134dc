// Pruning as an edit of a rewrite plan, and of the files that go with a model (spec/streaming.md
// §H.3, docs/surgery.md): everything with an expert axis is cut by one keep-map.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "experts/profile.h"
#include "surgery/expert_stats.h"
#include "surgery/imatrix.h"
#include "surgery/keep_map.h"
#include "surgery/moe_layout.h"
#include "surgery/rewrite_plan.h"

namespace penstock::surgery {

// Cuts the tensors of `layers` (moe_layers() of the plan's source; check_keep_map() has passed) and
// records in the metadata what was done:
//   <arch>.expert_count             the one count; when blocks differ, one per block, so that a
//                                   program that knows one count for all refuses the file
//   penstock.expert_counts          u32 per block, draft blocks included, when they differ
//   penstock.keep_map_id            of this map
//   penstock.prune.source_model_id, .source_name, .method, .rule
//   penstock.prune.original_counts  u32 per block: before any pruning
//   penstock.prune.kept.N           u32 ids in the original model of block N's experts, by new id
//   penstock.prune.steps            strings, JSON: every pruning so far
//   general.size_label              recomputed where it is one of the usual forms
void apply_keep_map(const KeepMap& map, std::span<const MoeLayer> layers, const std::string& tool,
                    RewritePlan* plan);

// "125B-A6B" with `removed` parameters fewer: "65B-A6B"; "128x8B": the count replaced. Empty when
// the label is of no known form. `before` are exact parameter counts that the label may stand for
// (with and without tables or draft blocks): the one that it rounds to serves instead of the label.
std::string pruned_size_label(const std::string& label, std::span<const uint64_t> before,
                              uint64_t removed, uint64_t n_expert);

// The importance of a model for its pruned form. Throws Error(Format) when a bank's entry has
// another number of experts than the map.
Imatrix slice_imatrix(const Imatrix& imatrix, const KeepMap& map);

// A profile of the model for its pruned form, whose identity is `pruned_id`. Throws Error(Format)
// when its layers are not the map's; those behind the map's last (draft blocks) stay as they are.
experts::Profile slice_profile(const experts::Profile& profile, const std::string& path,
                               const KeepMap& map, const Sha256& pruned_id);

// Statistics of the model that `pruned` (whose moe_layers() are given) once was, cut to the experts
// that it still has by what its prunings recorded: what these did while the others were there.
// nullopt when the model was never pruned or the statistics are of other layers or counts.
std::optional<ExpertStats> slice_stats(const ExpertStats& stats, const gguf::Model& pruned,
                                       std::span<const MoeLayer> layers);

}  // namespace penstock::surgery
