// Every published release in models/releases: a narrow model with its tensor types runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "e2e/program.h"
#include "surgery/tensor_list.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> release_lists() {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(PENSTOCK_SOURCE_DIR "/models/releases")) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Release : public Program, public ::testing::WithParamInterface<std::string> {};

TEST_P(Release, IsMadeAndRuns) {
  const std::string list = PENSTOCK_SOURCE_DIR "/models/releases/" + GetParam() + ".txt";
  const std::string model = path("model.gguf");
  const Outcome made = run({"synth", "qwen3.8-flash-next", "--layers", "4", "--scale", "0.1",
                            "--experts", "16", "--ple-rows", "1000", "--like", list, "-o", model});
  ASSERT_EQ(made.code, 0) << made.err;

  // The file has the types that the list names.
  const auto listed = surgery::parse_tensor_list(read_all(list), list);
  const Outcome inspected = run({"inspect", model, "--tensors"});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  const auto tensors = surgery::parse_tensor_list(inspected.out, "inspect");
  size_t experts = 0;
  for (const surgery::ListedTensor& tensor : tensors) {
    const gguf::TypeId* type = surgery::listed_type(listed, tensor.name);
    if (type != nullptr) {
      EXPECT_EQ(tensor.type, *type) << tensor.name;
    }
    if (tensor.name.ends_with("_exps.weight")) {
      EXPECT_NE(type, nullptr) << tensor.name;
      ++experts;
    }
  }
  EXPECT_EQ(experts, 12u);
  for (const surgery::ListedTensor& tensor : listed) {
    const bool used = std::any_of(tensors.begin(), tensors.end(), [&](const auto& t) {
      return surgery::listed_type({tensor}, t.name) != nullptr;
    });
    EXPECT_TRUE(used) << tensor.name << " names no tensor of the model";
  }

  // It runs: not finite logits would be an error.
  const std::string ids = write("ids", "5 17 300 42 9 9 1000 77");
  const Outcome ran = run({"logits", model, "--ids", ids, "--top", "3"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(nlohmann::json::accept(ran.out)) << ran.out;
  std::remove(model.c_str());
}

std::string as_identifier(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Published, Release, ::testing::ValuesIn(release_lists()), as_identifier);

}  // namespace
}  // namespace penstock::testing
