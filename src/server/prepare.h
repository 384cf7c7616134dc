// From what a request asks to what the engine needs.
#pragma once

#include <memory>
#include <string>

#include "server/job.h"
#include "server/model.h"
#include "server/options.h"
#include "server/request.h"

namespace penstock::server {

struct Prepared {
  std::shared_ptr<Job> job;
  bool in_reasoning = false;  // the answer begins inside <think>
};

// Throws ApiError: 404 for another model's name, 400 for what this model cannot do and for prompts
// that do not fit into the context (context_length_exceeded).
Prepared prepare(const GenerationRequest& request, const Model& model,
                 const ServerOptions& options);

}  // namespace penstock::server
