// The architectures this build knows. Adding one: a loader in a file of its own and a row in
// registry.cpp (docs/adding-a-model.md).
#pragma once

#include <memory>

#include "models/model.h"

namespace penstock::models {

using Loader = std::unique_ptr<Model> (*)(const Sources&, const OpenOptions&);

std::unique_ptr<Model> load_qwen4exp(const Sources& sources, const OpenOptions& options);
std::unique_ptr<Model> load_qwen3moe(const Sources& sources, const OpenOptions& options);
std::unique_ptr<Model> load_qwen35moe(const Sources& sources, const OpenOptions& options);
std::unique_ptr<Model> load_qwen3next(const Sources& sources, const OpenOptions& options);

}  // namespace penstock::models
