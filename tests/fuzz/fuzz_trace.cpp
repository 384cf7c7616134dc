// A routing trace, as it is and sealed (header, a zero byte, records; with lengths,
// checksums and the number of records made right), through what replays it. It may be refused with
// an Error of its format and nothing else; what is accepted adds up in every setting.
#include <cstring>

#include "base/hash.h"
#include "base/log.h"
#include "experts/trace_file.h"
#include "measure/sim_plot.h"
#include "measure/sim_report.h"
#include "parts.h"

using namespace penstock;
using namespace penstock::measure;

namespace {

constexpr size_t kMostExperts = 1024;  // a fuzzer's arenas are small

class Counter final : public experts::TraceVisitor {
 public:
  void decode(int, int, std::span<const uint16_t>, std::span<const float>) override { ++n; }
  void predicted(int, int, int, std::span<const float>) override { ++n; }
  void prompt(int, uint32_t, std::span<const uint32_t>) override { ++n; }
  void step_ended(int) override { ++n; }
  void turn_ended() override { ++n; }
  void token(int32_t) override { ++n; }
  uint64_t n = 0;
};

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string seal(std::string_view header, std::string_view records, uint64_t n) {
  std::string out = "XPRTTRCE";
  put(out, uint32_t{2});
  put(out, static_cast<uint32_t>(header.size()));
  out += header;
  if (!records.empty()) {
    put(out, static_cast<uint32_t>(records.size()));
    put(out, uint32_t{0});
    put(out, xxh64(std::as_bytes(std::span(records))));
    out += records;
  }
  put(out, uint32_t{0});
  put(out, uint32_t{0});
  put(out, n);
  return out;
}

std::vector<SimSetting> settings_of(const TraceModel& model) {
  std::vector<SimSetting> out;
  const std::vector<uint64_t> sizes = sweep_slots(model, 2);
  for (size_t i = 0; i <= sizes.size(); ++i) {
    const uint64_t slots = i == sizes.size() ? 0 : sizes[i];
    if (slots == 0 && model.shape.slots() == 0) continue;
    for (const SimPolicy policy :
         {SimPolicy::Lru, SimPolicy::Lfu, SimPolicy::Profile, SimPolicy::Cycle,
          SimPolicy::ClairvoyantAdmits, SimPolicy::Clairvoyant}) {
      SimSetting s{
          .policy = policy, .slots = slots, .hot_share = i == 1 ? 0.25 : 0, .warm = i == 1};
      out.push_back(s);
      if (!model.logits || is_clairvoyant(policy)) continue;
      s.moce.mode = experts::Moce::Bonus;
      out.push_back(s);
      s.moce.mode = experts::Moce::Off;
      s.ahead = {.on = true, .distance = 2};
      out.push_back(s);
    }
  }
  return out;
}

void replay(const std::string& path) {
  const TraceModel model = read_trace_model(path);
  if (model.shape.n_experts() > kMostExperts) return;
  SimRequest request;
  request.shares = shares_of_trace(model);
  request.settings = settings_of(model);
  if (!model.read_bytes.empty()) request.cost = SimCost{{0.1, 0.02, 0.01}, {1e9, 1e-4}, "made up"};
  SimReport report;
  report.traces = {model};
  report.cost = request.cost;
  report.results = simulate(model, request);
  for (const SimResult& result : report.results) {
    const SimCounts& counts = result.counts;
    fuzz::require(counts.uses().total() == counts.uses_expected);
    fuzz::require(counts.prompt_arena_used <= counts.prompt_experts_touched);
    if (result.bound_misses) fuzz::require(*result.bound_misses <= counts.misses());
  }
  sim_table(report);
  sim_json(report).dump();
  fuzz::tolerate([&] { sim_plot(report); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  log::set_level(log::Level::Quiet);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string path = folder.write("a.xrt", text);
  // Broken invariants of ours are findings here: a trace that makes no sense is to be called one.
  const auto refused = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      fuzz::require(error.kind() != ErrorKind::Internal);
    }
  };
  refused([&] { replay(path); });
  const size_t end = text.find('\0');
  if (end == std::string_view::npos) return 0;
  const auto header = text.substr(0, end), records = text.substr(end + 1);
  Counter counter;
  folder.write("a.xrt", seal(header, records, 0));
  fuzz::tolerate([&] { experts::read_trace(path, counter); });
  folder.write("a.xrt", seal(header, records, counter.n));
  refused([&] { replay(path); });
  return 0;
}
