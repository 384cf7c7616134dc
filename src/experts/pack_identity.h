// Which model a pack belongs to: by content, never by name (docs/pack.md, "Identity").
#pragma once

#include <string>

#include "base/hash.h"
#include "experts/pack_format.h"
#include "gguf/model.h"

namespace penstock::experts {

struct ModelIdentity {
  bool whole = true;   // every expert is in the file; false: a dense-only file
  Sha256 header_id{};  // gguf::Model::header_id()
  Sha256 model_id{};   // gguf::Model::model_id(); zeros if not whole
  // SHA-256 over the metadata, every tensor's name, type and shape, and the first and last 4 KiB of
  // every tensor that is no expert bank, in an order that does not depend on where they lie: the
  // same for a model and for the dense-only file made from it.
  Sha256 dense_id{};
};

// Reads two pages per tensor.
ModelIdentity identify(const gguf::Model& model);

// Why the pack is not the model's, as a sentence without a full stop; empty if it is.
std::string pack_mismatch(const PackHeader& header, const ModelIdentity& identity);

// SHA-256 over the steps that `penstock requantise` has written into the metadata
// (penstock.requantise.steps, docs/surgery.md); zeros for a model that was not requantised.
Sha256 quant_recipe_id(const gguf::Metadata& metadata);

// SHA-256 over all bytes of all shards, in order.
Sha256 content_id(const gguf::Model& model);

}  // namespace penstock::experts
