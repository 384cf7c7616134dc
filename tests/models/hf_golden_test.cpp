// Logits against Hugging Face's classes: random configurations of each architecture whose weights
// follow from the tensors' names. The expected logits are in tests/golden/hf, written by
// tools/oracle/hf_oracle.py; nothing else is read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "experts/io.h"
#include "experts/row_store.h"
#include "gguf/model.h"
#include "gguf/writer.h"
#include "models/memory_stream.h"
#include "models/model.h"
#include "models/tiny_models.h"

namespace penstock {
namespace {

using nlohmann::json;

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/tests/golden/hf")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

json read_fixture(const std::string& name) {
  std::ifstream file(std::string(PENSTOCK_SOURCE_DIR "/tests/golden/hf/") + name + ".json");
  return json::parse(file);
}

// The fixture's model as a GGUF file with closed-form weights.
std::string write_model(const json& fixture, const std::string& folder) {
  const std::string path = folder + "/model.gguf";
  gguf::Writer writer(path);
  for (const auto& [key, entry] : fixture.at("metadata").items()) {
    const auto kind = entry.at(0).get<std::string>();
    const json& value = entry.at(1);
    if (kind == "u32") {
      writer.set_u32(key, value.get<uint32_t>());
    } else if (kind == "f32") {
      writer.set_f32(key, value.get<float>());
    } else if (kind == "string") {
      writer.set_string(key, value.get<std::string>());
    } else if (kind == "i32[]") {
      writer.set_i32_array(key, value.get<std::vector<int32_t>>());
    } else if (kind == "u64[]") {
      writer.set_u64_array(key, value.get<std::vector<uint64_t>>());
    } else {
      ADD_FAILURE() << key << ": unknown kind " << kind;
    }
  }
  const json& tensors = fixture.at("tensors");
  for (const json& tensor : tensors) {
    writer.add_tensor(tensor.at(0).get<std::string>(), gguf::TypeId::F32,
                      tensor.at(1).get<std::vector<uint64_t>>());
  }
  writer.begin();
  std::vector<float> values;
  for (const json& tensor : tensors) {
    const auto name = tensor.at(0).get<std::string>();
    const auto dims = tensor.at(1).get<std::vector<uint64_t>>();
    size_t n = 1;
    for (const uint64_t d : dims) n *= d;
    values.resize(n);
    for (size_t i = 0; i < n; ++i) values[i] = testing::tiny_value(name, i, dims[0]);
    writer.append(std::as_bytes(std::span(values)));
  }
  writer.finish();
  return path;
}

// Logits [tokens][n_vocab]: the first half as one prompt, the rest token by token.
std::vector<float> run(const std::string& path, const std::vector<int32_t>& tokens, int* n_vocab) {
  models::Sources sources;
  sources.trunk = std::make_shared<const gguf::Model>(gguf::Model::open(path));
  const auto model = models::open(sources, {.precision = quant::Precision::Exact});
  ThreadPool pool(2);
  std::unique_ptr<experts::RowStore> rows;
  if (const models::TableGeometry* table = model->table()) {
    const std::array<uint64_t, 1> probe{table->offset};
    rows = std::make_unique<experts::RowStore>(
        experts::StreamFiles::open({table->path}, experts::IoMode::Auto, probe),
        experts::RowTable{.file = 0,
                          .offset = table->offset,
                          .row_bytes = table->row_bytes,
                          .n_rows = table->n_rows});
    model->attach_table(rows.get());
  }
  model->load(pool, models::DenseMode::Copy, {});
  const auto state = model->new_state({.n_ctx = 256, .kv = models::KvType::F32});
  testing::MemoryStream stream(model->experts());
  *n_vocab = model->info().n_vocab;
  const auto width = static_cast<size_t>(*n_vocab);
  std::vector<float> logits(tokens.size() * width);
  const std::span<const int32_t> all(tokens);
  size_t at = 0;
  for (size_t n = tokens.size() / 2; at < tokens.size(); at += n, n = 1) {
    models::Batch batch;
    batch.tokens = all.subspan(at, n);
    batch.phase = at == 0 ? experts::Phase::Prompt : experts::Phase::Decode;
    batch.logits = models::Logits::All;
    model->forward(*state, stream, batch, logits.data() + at * width);
  }
  return logits;
}

class HuggingFace : public ::testing::TestWithParam<std::string> {};

TEST_P(HuggingFace, LogitsAgree) {
  const json fixture = read_fixture(GetParam());
  SCOPED_TRACE(fixture.at("source").get<std::string>() + "; " +
               fixture.at("notes").get<std::string>());
  const testing::TemporaryFolder folder;
  const auto tokens = fixture.at("tokens").get<std::vector<int32_t>>();
  int n_vocab = 0;
  const std::vector<float> logits = run(write_model(fixture, folder.path()), tokens, &n_vocab);
  const auto tolerance = fixture.at("tolerance").get<double>();

  double worst = 0;
  for (const json& expect : fixture.at("expect")) {
    const auto position = expect.at("pos").get<int64_t>();
    const float* row = logits.data() + position * n_vocab;
    const auto first = expect.at("first").get<std::vector<double>>();
    for (size_t i = 0; i < first.size(); ++i) {
      worst = std::max(worst, std::abs(double{row[i]} - first[i]));
      EXPECT_NEAR(row[i], first[i], tolerance) << "position " << position << ", logit " << i;
    }
    const auto best = expect.at("argmax").get<int>();
    EXPECT_EQ(std::max_element(row, row + n_vocab) - row, best) << "position " << position;
    EXPECT_NEAR(row[best], expect.at("max").get<double>(), tolerance) << "position " << position;
  }
  const auto sums = fixture.at("sum_abs").get<std::vector<double>>();
  ASSERT_EQ(sums.size(), tokens.size());
  for (size_t position = 0; position < sums.size(); ++position) {
    double sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(n_vocab); ++i)
      sum += std::abs(double{logits[position * static_cast<size_t>(n_vocab) + i]});
    EXPECT_NEAR(sum, sums[position], tolerance * n_vocab) << "position " << position;
  }
  RecordProperty("largest_difference", std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, HuggingFace, ::testing::ValuesIn(fixture_names()),
                         [](const ::testing::TestParamInfo<std::string>& fixture) {
                           std::string name = fixture.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace penstock
