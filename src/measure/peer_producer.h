// Who made a peer record's figures: the program, its version, the files that it consists of.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "measure/campaign.h"

namespace penstock::measure {

// `producer` of a peer record. The program goes by its executable's name (and the file that this is
// given to run, if it is an interpreter), or by its address where it runs elsewhere, so that arms
// of one program are known as such. llama-server is asked for its version (--version, run in
// `work`); others do not agree on an option and are taken at the campaign's word; `version_source`
// says which: "program", "campaign", or null. `libraries`: paths of what it loaded from its own
// folder.
nlohmann::json peer_producer(const CampaignArm& arm, const std::set<std::string>& libraries,
                             const std::string& work);

// The version in what llama-server prints: "version: 1234 (abcdef0)"; "" if there is none.
std::string llama_version_in(const std::string& text);

}  // namespace penstock::measure
