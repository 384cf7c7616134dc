// bench-trace FILE TOKENS LAYERS EXPERTS USED [TURN]: a routing trace that no model made, for
// measuring how fast `penstock sim` is. Experts are drawn by a skewed law whose favourites drift,
// and one in three tokens repeats most of what the last one selected. It says nothing about models.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "experts/geometry.h"
#include "experts/trace_file.h"

namespace {

using penstock::experts::Phase;

struct Draw {
  std::mt19937_64 random{1};
  std::vector<int32_t> last;
  std::vector<uint8_t> taken;
  int n_expert, n_used, shift = 0;

  Draw(int layer, int experts, int used)
      : taken(static_cast<size_t>(experts)), n_expert(experts), n_used(used) {
    random.seed(static_cast<uint64_t>(layer) + 1);
  }

  std::vector<int32_t> next() {
    std::vector<int32_t> ids;
    std::fill(taken.begin(), taken.end(), uint8_t{0});
    if (!last.empty() && random() % 3 == 0) {
      for (const int32_t e : last) {
        if (random() % 4 != 0) take(e, ids);
      }
    }
    if (random() % 500 == 0) shift += 1 + static_cast<int>(random() % 16);
    while (static_cast<int>(ids.size()) < n_used) {
      // Rank r with a density falling as r^-0.5.
      const double u = static_cast<double>(random() >> 11) * 0x1p-53;
      const auto rank = static_cast<int>(u * u * n_expert);
      take((rank * 37 + shift) % n_expert, ids);
    }
    last = ids;
    return ids;
  }

  void take(int32_t e, std::vector<int32_t>& ids) {
    if (static_cast<int>(ids.size()) == n_used || taken[static_cast<size_t>(e)] != 0) return;
    taken[static_cast<size_t>(e)] = 1;
    ids.push_back(e);
  }
};

void make(const std::string& path, int tokens, int layers, int experts, int used, int turn) {
  penstock::experts::Geometry geometry;
  std::vector<Draw> draws;
  for (int l = 0; l < layers; ++l) {
    auto& g = geometry.layers.emplace_back();
    g.layer = l;
    g.n_expert = experts;
    g.n_used = used;
    draws.emplace_back(l, experts, used);
  }
  penstock::experts::TraceWriter writer(path, geometry, false, R"({"text": "made up"})");
  for (int t = 0; t < tokens; ++t) {
    for (int l = 0; l < layers; ++l) {
      writer.selected(l, 0, Phase::Decode, draws[static_cast<size_t>(l)].next(), {});
    }
    writer.step_ended(1);
    if (turn > 0 && t % turn == turn - 1) writer.turn_ended();
  }
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: bench-trace FILE TOKENS LAYERS EXPERTS USED [TURN]\n");
    return 2;
  }
  try {
    make(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]),
         argc > 6 ? std::atoi(argv[6]) : 512);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-trace: %s\n", error.what());
    return 1;
  }
  return 0;
}
