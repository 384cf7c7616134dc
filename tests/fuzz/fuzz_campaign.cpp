// Any bytes as a campaign's definition: refused with an Error, or a schedule of all its arms.
#include "measure/campaign.h"
#include "parts.h"

using namespace penstock;
using namespace penstock::measure;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::tolerate([&] {
    const Campaign campaign =
        read_campaign({reinterpret_cast<const char*>(data), size}, "campaign.toml");
    const auto repeats = static_cast<size_t>(campaign.repeats);
    const size_t runs = repeats * campaign.arms.size() * campaign.prompts.size();
    fuzz::require(campaign_schedule(campaign).size() == runs + std::min<size_t>(repeats, 3));
    campaign_json(campaign).dump();
  });
  return 0;
}
