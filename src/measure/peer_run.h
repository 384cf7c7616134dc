// One run of another program under a campaign: started, asked, watched, and written down as a peer
// record (docs/records.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "measure/campaign.h"
#include "measure/child.h"

namespace penstock::measure {

struct PeerRequest {
  const CampaignArm* arm = nullptr;
  std::string model_path, model_id;
  std::vector<int32_t> ids;  // the prompt
  std::string ids_path;      // the same in a file, one per line
  std::string ids_sha256;
  std::string text;     // the prompt as text; empty if it was given as ids
  uint64_t tokens = 0;  // to generate
  uint64_t context = 0;
  std::optional<uint64_t> limit;  // bytes of memory
  double timeout_s = 1800;
  experts::WatchdogPolicy policy;
  std::string folder;       // of the record; files/ in it
  nlohmann::json recorder;  // producer_json() of this program
};

struct PeerResult {
  std::string record_path;
  std::string state;  // as in the record's outcome
  std::string reason;
};

// Never throws for what the program does; Error(Io) for what cannot be written, Error(Unsupported)
// for a memory limit that cannot be set.
PeerResult run_peer(const PeerRequest& request, const std::atomic<bool>* interrupted);

// The placeholders of an arm's command filled in.
std::vector<std::string> peer_command(const PeerRequest& request, int port);

}  // namespace penstock::measure
