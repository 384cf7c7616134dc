// Experts from packs: the same bytes as in place, damage found, packs chosen by identity.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/error.h"
#include "experts/expert_source.h"
#include "experts/faulty_backend.h"
#include "experts/pack.h"
#include "experts/pack_fixture.h"
#include "experts/stream.h"

namespace penstock::experts::test {
namespace {

namespace fs = std::filesystem;

struct Running {
  ExpertSource source;
  std::unique_ptr<Stream> stream;
};

Running start(const PackBench& bench, uint64_t n_slots, StreamOptions options) {
  Running run;
  run.source = open_expert_source(bench.model, bench.geometry, options);
  ArenaShape shape = arena_shape(run.source.geometry, run.source.files->alignment());
  share_slots(shape, n_slots, options.depth, static_cast<uint64_t>(options.transit_slots()));
  run.stream = make_stream(run.source.geometry, run.source.files, shape, options);
  return run;
}

bool is_matrix(const std::byte* data, const Geometry& geometry, const MatrixGeometry& m, int e) {
  const std::string expected = source_matrix(geometry, m, e);
  return std::memcmp(data, expected.data(), expected.size()) == 0;
}

// Random decode steps and prompts; every delivered matrix is compared with the GGUF.
void work(const PackBench& bench, Stream& stream, int steps) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  for (int step = 0; step < steps; ++step) {
    const Phase phase = step % 5 == 2 ? Phase::Prompt : Phase::Decode;
    const int rows = phase == Phase::Prompt ? 6 : 1;
    for (size_t l = 0; l < bench.geometry.layers.size(); ++l) {
      const LayerGeometry& layer = bench.geometry.layers[l];
      std::vector<float> logits(static_cast<size_t>(rows * layer.n_expert));
      for (float& z : logits) z = normal(random);
      const Routing routing =
          stream.begin(static_cast<int>(l), logits.data(), rows, {layer.n_used, true, 1.0f}, phase);
      const std::set<int> wanted(routing.ids.begin(), routing.ids.end());
      std::set<int> got;
      for (auto batch = stream.next(); !batch.empty(); batch = stream.next()) {
        for (const ReadyExpert& ready : batch) {
          got.insert(ready.expert);
          ASSERT_TRUE(is_matrix(ready.data.gate, bench.geometry, layer.gate, ready.expert));
          ASSERT_TRUE(is_matrix(ready.data.up, bench.geometry, layer.up, ready.expert));
          ASSERT_TRUE(is_matrix(ready.data.down, bench.geometry, layer.down, ready.expert));
        }
      }
      stream.end();
      ASSERT_EQ(got, wanted);
    }
    if (phase == Phase::Decode) stream.end_step(rows);
  }
}

class PackModes : public testing::TestWithParam<IoMode> {};

TEST_P(PackModes, DeliverTheModelsBytesByOneReadEach) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  for (const bool faulty : {false, true}) {
    for (const uint64_t slots : {12u, 20u, 1000u}) {
      StreamOptions options;
      options.io = GetParam();
      options.depth = 1;
      options.verify_every = 1;
      if (faulty) {
        options.decorate = with_faults(
            {.seed = 3, .hold = 0.6, .reorder = true, .short_reads = 0.3, .transient = 0.2});
      }
      Running run = start(bench, slots, options);
      ASSERT_TRUE(run.source.pack.has_value());
      work(bench, *run.stream, 30);
      const Counters& c = run.stream->counters();
      EXPECT_EQ(c.demand.reads + c.prompt.reads, c.experts_read);
      EXPECT_EQ(c.records_verified, c.experts_read);
      EXPECT_EQ(c.demand.reads, c.first.miss_issued + c.steady.miss_issued);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Io, PackModes,
                         testing::Values(IoMode::Auto, IoMode::Uring, IoMode::Pread,
                                         IoMode::Buffered),
                         [](const auto& mode) { return std::string(io_mode_name(mode.param)); });

TEST(PackStream, ASlotIsARecord) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const Pack pack = Pack::open(bench.out);
  for (const IoMode mode : {IoMode::Auto, IoMode::Buffered}) {
    const Running run = start(bench, 12, {.io = mode, .depth = 1});
    const ArenaShape& shape = run.stream->shape();
    for (size_t l = 0; l < 3; ++l) {
      EXPECT_EQ(shape.classes[shape.class_of[l]].slot_bytes, pack.layers()[l].stride);
    }
  }
  // Bytes asked for are records times strides, whatever the mode.
  Running run = start(bench, 1000, {});
  work(bench, *run.stream, 40);
  uint64_t all = 0;
  for (const PackLayer& layer : pack.layers()) all += layer.n_expert * layer.stride;
  EXPECT_EQ(run.stream->counters().demand.bytes + run.stream->counters().prompt.bytes, all);
}

void flip(const std::string& path, uint64_t at) {
  std::string bytes = file_bytes(path);
  bytes[at] = static_cast<char>(bytes[at] ^ 8);
  write_bytes(path, bytes);
}

TEST(PackStream, VerifiedReadsFindDamageBeforeItIsComputedWith) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  const PackLayer layer = Pack::open(bench.out).layers()[0];
  const uint64_t record = layer.base_off + 3 * layer.stride;
  flip(bench.out, record + 100);
  const auto use = [&](StreamOptions options, const std::vector<int>& ids) {
    options.depth = 2;
    Running run = start(bench, 1000, options);
    const std::vector<float> logits = logits_for(8, ids);
    run.stream->begin(0, logits.data(), 1, {2, true, 1.0f}, Phase::Decode);
    while (!run.stream->next().empty()) continue;
    run.stream->end();
    return run.stream->counters().records_verified;
  };
  const std::string text = message_of(ErrorKind::Format, [&] { use({.verify_every = 1}, {3, 4}); });
  expect_words(text, {"expert 3 of layer 0", "offset " + std::to_string(record), bench.out,
                      "checksum", "pack verify"});
  EXPECT_EQ(use({.verify_every = 1}, {4, 5}), 2u);
  EXPECT_EQ(use({.verify_every = 2}, {4, 5}), 1u);
  EXPECT_EQ(use({.verify_every = 0}, {3, 5}), 0u);  // nobody looked
}

TEST(PackStream, APackThatShrinksWhileItIsReadIsAnIoError) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  Running run = start(bench, 1000, {.depth = 2});
  const PackLayer layer = Pack::open(bench.out).layers()[0];
  EXPECT_EQ(run.source.changed(), "");
  fs::resize_file(bench.out, layer.base_off + 5 * layer.stride);
  const std::vector<float> logits = logits_for(8, {2, 6});
  run.stream->begin(0, logits.data(), 1, {2, true, 1.0f}, Phase::Decode);
  const std::string text = message_of(ErrorKind::Io, [&] {
    while (!run.stream->next().empty()) continue;
  });
  expect_words(text, {"expert 6 of layer 0", bench.out, "the file ends there"});
  expect_words(run.source.changed(), {bench.out, "bytes"});
}

TEST(PackStream, FilesThatAreReplacedStayReadableAndWrittenOnesAreNoticed) {
  const Directory directory;
  for (const bool packed : {false, true}) {
    PackBench bench(directory, {.name = packed ? "packed" : "plain"});
    if (packed) bench.pack();
    const std::string file = packed ? bench.out : bench.path;
    Running run = start(bench, 12, {.depth = 1});
    EXPECT_EQ(run.source.pack.has_value(), packed);
    const std::string kept = file + ".kept";
    fs::copy_file(bench.path, kept);
    write_bytes(file, "another file of this name");  // by rename
    if (packed) work(bench, *run.stream, 20);
    EXPECT_EQ(run.source.changed(), "");
    fs::remove(file);
    EXPECT_EQ(run.source.changed(), "");
  }
  PackBench bench(directory, {.name = "written"});
  Running run = start(bench, 12, {.depth = 1});
  const int fd = ::open(bench.path.c_str(), O_WRONLY);
  ASSERT_EQ(::pwrite(fd, "x", 1, 5000), 1);
  ::close(fd);
  expect_words(run.source.changed(), {bench.path, "written"});
}

// --- which pack ---

ExpertSource choose(const PackBench& bench, PackChoice choice = {}, uint64_t verify = 0) {
  StreamOptions options;
  options.pack = choice;
  options.verify_every = verify;
  return open_expert_source(bench.model, bench.geometry, options);
}

TEST(PackChoiceTest, AutoGoesByIdentityNotByName) {
  const Directory directory;
  PackBench bench(directory);
  EXPECT_FALSE(choose(bench).pack.has_value());
  PackBench other(directory, {.seed = 2, .name = "other"});
  other.pack();
  fs::rename(other.out, bench.out);  // bears the model's name, but is another's
  EXPECT_FALSE(choose(bench).pack.has_value());
  EXPECT_EQ(choose(bench).geometry.shards, std::vector<std::string>{bench.path});
  // Its own under any name.
  PackRequest request = bench.request();
  request.out = directory.file("anything.xpk");
  write_pack(request);
  const ExpertSource source = choose(bench);
  ASSERT_TRUE(source.pack.has_value());
  EXPECT_EQ(source.pack->path, request.out);
  EXPECT_EQ(source.pack->model_id, bench.model.model_id());
  EXPECT_EQ(source.pack->n_layers, 3);
  EXPECT_EQ(source.geometry.shards, std::vector<std::string>{request.out});
  expect_words(source.describe(), {request.out, "made from this model"});
  // And the other finds its own, too.
  EXPECT_EQ(choose(other).pack->path, bench.out);
  EXPECT_FALSE(choose(bench, {.file = "none"}).pack.has_value());
  expect_words(choose(bench, {.file = "none"}).describe(), {"own tensors"});
}

TEST(PackChoiceTest, ADamagedPackIsPassedOverByAutoAndRefusedByName) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  fs::resize_file(bench.out, fs::file_size(bench.out) - 1);
  EXPECT_FALSE(choose(bench).pack.has_value());
  expect_words(message_of(ErrorKind::Format, [&] { choose(bench, {.file = bench.out}); }),
               {bench.out, "cut"});
  expect_words(
      message_of(ErrorKind::Io, [&] { choose(bench, {.file = directory.file("missing.xpk")}); }),
      {"missing.xpk"});
  expect_words(message_of(ErrorKind::Format, [&] { choose(bench, {.file = bench.path}); }),
               {"not an expert pack"});
}

TEST(PackChoiceTest, AnotherModelsPackNeedsTheOverrideAndTheRunSaysSo) {
  const Directory directory;
  PackBench bench(directory);
  PackBench tuned(directory, {.seed = 2, .name = "tuned"});
  tuned.pack();
  const std::string text =
      message_of(ErrorKind::Format, [&] { choose(bench, {.file = tuned.out}); });
  expect_words(text, {tuned.out, bench.path, "same shape", "--pack none"});
  const ExpertSource source = choose(bench, {.file = tuned.out, .unchecked = true});
  expect_words(source.pack->overridden, {"same shape"});
  expect_words(source.describe(), {"NOT CHECKED"});
  expect_words(message_of(ErrorKind::Usage, [&] { choose(bench, {.unchecked = true}); }),
               {"--pack FILE"});

  // Shapes, types and counts must fit all the same.
  for (const BankSpec& bank :
       {BankSpec{.n_expert = 9}, BankSpec{.n_ff = 128}, BankSpec{.down = TypeId::F16}}) {
    std::vector<BankSpec> banks = mixed_banks();
    banks[0] = bank;
    const std::string name = "shape" + std::to_string(bank.n_expert + static_cast<int>(bank.n_ff));
    PackBench shape(directory, {.banks = banks, .name = name + gguf::type_name(bank.down)});
    shape.pack();
    expect_words(message_of(ErrorKind::Format,
                            [&] { choose(bench, {.file = shape.out, .unchecked = true}); }),
                 {shape.out, "layer 0"});
  }
}

TEST(PackChoiceTest, ChecksumsNeedAPack) {
  const Directory directory;
  PackBench bench(directory);
  expect_words(message_of(ErrorKind::Usage, [&] { choose(bench, {}, 1); }), {"penstock pack"});
  bench.pack();
  const ExpertSource source = choose(bench, {}, 7);
  EXPECT_EQ(source.pack->verify_every, 7u);
  EXPECT_EQ(source.geometry.layers[1].sums->sums.size(), 12u);
  flip(bench.out, Pack::open(bench.out).header().sums_off + 3);
  expect_words(message_of(ErrorKind::Format, [&] { choose(bench, {}, 1); }), {"checksums"});
}

TEST(PackChoiceTest, ADenseOnlyModelNeedsItsPack) {
  const Directory directory;
  PackBench bench(directory);
  PackRequest request = bench.request();
  request.dense_out = directory.file("dense.gguf");
  write_pack(request);
  const gguf::Model dense = gguf::Model::open(request.dense_out, {.allow_missing_experts = true});
  const Geometry geometry = geometry_of(dense, bench.spec.banks);
  EXPECT_EQ(open_expert_source(dense, geometry, {}).pack->path, bench.out);
  StreamOptions none;
  none.pack.file = "none";
  expect_words(message_of(ErrorKind::Format, [&] { open_expert_source(dense, geometry, none); }),
               {request.dense_out, "blk.0.ffn_gate_exps.weight", "--pack FILE"});
  fs::remove(bench.out);
  message_of(ErrorKind::Format, [&] { open_expert_source(dense, geometry, {}); });
}

TEST(PackChoiceTest, LayersOfASeparateDraftHeadStayWhereTheyAre) {
  const Directory directory;
  PackBench bench(directory);
  bench.pack();
  PackBench head(directory, {.banks = {{.n_expert = 4}}, .name = "head"});
  Geometry both = bench.geometry;
  both.shards.push_back(head.path);
  LayerGeometry layer = head.geometry.layers[0];
  layer.layer = 0;  // a number that the pack has, too
  for (MatrixGeometry* m : {&layer.gate, &layer.up, &layer.down}) m->shard = 1;
  both.layers.push_back(layer);
  const ExpertSource source = open_expert_source(bench.model, both, {});
  EXPECT_EQ(source.pack->n_layers, 3);
  EXPECT_EQ(source.geometry.shards, (std::vector<std::string>{head.path, bench.out}));
  EXPECT_EQ(source.geometry.layers[3].record_bytes, 0u);
  EXPECT_EQ(source.geometry.layers[3].gate.shard, 0u);
  EXPECT_EQ(source.geometry.layers[0].gate.shard, 1u);
}

TEST(PackChoiceTest, TheNameLookedAtFirst) {
  const Directory directory;
  const PackBench one(directory);
  EXPECT_EQ(default_pack_path(one.model), directory.file("model.xpk"));
  const PackBench many(directory, {.max_shard_bytes = 100'000, .name = "many"});
  EXPECT_EQ(default_pack_path(many.model), directory.file("many.xpk"));
}

TEST(VerifyFlag, IsReadBack) {
  EXPECT_EQ(parse_verify("none"), 0u);
  EXPECT_EQ(parse_verify("all"), 1u);
  EXPECT_EQ(parse_verify("sample:250"), 250u);
  for (const uint64_t every : {0u, 1u, 17u}) EXPECT_EQ(parse_verify(verify_name(every)), every);
  for (const char* bad : {"", "some", "sample:", "sample:0", "sample:-1", "sample:5x"}) {
    EXPECT_THROW(parse_verify(bad), Error) << bad;
  }
}

}  // namespace
}  // namespace penstock::experts::test
