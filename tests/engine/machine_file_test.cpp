#include "engine/machine_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/tiny_models.h"

namespace penstock::engine {
namespace {

using State = MachineFile::State;

const ComputeKey kHere = {"Fast CPU", 4, "avx2", "fast"};
const DiskKey kDisk = {"Fast CPU", 2049, 20, "auto", 8};

class MachineFileTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "machine.json") const {
    return folder_.path() + "/" + name;
  }
  std::string write(const std::string& text) const {
    std::ofstream(path(), std::ios::binary) << text;
    return path();
  }
  std::string written() const {
    MachineFile file = MachineFile::read(path());
    file.put(kDisk, DiskFigures{1.5e9, 1e-4, 2.0, 1234, 99, "io_uring", 1700000000});
    file.put(kHere, KernelFigures{"Q4_K", 2e10, 1700000001});
    file.put(kHere, ModelFigures{"ab12", "A Model", 0.05, 0.03, 0.01, 32, 0.002, 512, 1700000002});
    file.write();
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  testing::TemporaryFolder folder_;
};

TEST_F(MachineFileTest, WhatWasPutComesBack) {
  EXPECT_EQ(MachineFile::read(path()).state(), State::Absent);
  EXPECT_TRUE(MachineFile::read(path()).problem().empty());
  written();
  const MachineFile file = MachineFile::read(path());
  EXPECT_EQ(file.state(), State::Read);
  const DiskFigures* disk = file.find(kDisk);
  ASSERT_NE(disk, nullptr);
  EXPECT_EQ(disk->bytes_per_s, 1.5e9);
  EXPECT_EQ(disk->latency_s, 1e-4);
  EXPECT_EQ(disk->reads, 1234u);
  EXPECT_EQ(disk->span_bytes, 99u);
  EXPECT_EQ(disk->reader, "io_uring");
  EXPECT_EQ(disk->measured, 1700000000);
  const KernelFigures* kernel = file.find_kernel(kHere, "Q4_K");
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->bytes_per_s, 2e10);
  const ModelFigures* model = file.find_model(kHere, "ab12");
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->name, "A Model");
  EXPECT_EQ(model->token_s, 0.05);
  EXPECT_EQ(model->experts_s, 0.03);
  EXPECT_EQ(model->shared_s, 0.01);
  EXPECT_EQ(model->tokens, 32);
  EXPECT_EQ(model->prompt_token_s, 0.002);
  EXPECT_EQ(model->prompt_tokens, 512);
}

TEST_F(MachineFileTest, FiguresOfOtherSettingsAreNotTaken) {
  written();
  const MachineFile file = MachineFile::read(path());
  for (ComputeKey key : {ComputeKey{"Slow CPU", 4, "avx2", "fast"},
                         {"Fast CPU", 2, "avx2", "fast"},
                         {"Fast CPU", 4, "scalar", "fast"},
                         {"Fast CPU", 4, "avx2", "exact"}}) {
    EXPECT_EQ(file.find_kernel(key, "Q4_K"), nullptr);
    EXPECT_EQ(file.find_model(key, "ab12"), nullptr);
  }
  EXPECT_EQ(file.find_kernel(kHere, "Q8_0"), nullptr);
  EXPECT_EQ(file.find_model(kHere, "ab13"), nullptr);
  for (const DiskKey& key : {DiskKey{"Slow CPU", 2049, 20, "auto", 8},
                             {"Fast CPU", 2050, 20, "auto", 8},
                             {"Fast CPU", 2049, 21, "auto", 8},
                             {"Fast CPU", 2049, 20, "buffered", 8},
                             {"Fast CPU", 2049, 20, "auto", 4}}) {
    EXPECT_EQ(file.find(key), nullptr);
  }
  EXPECT_EQ(stride_class(1 << 20), 20);
  EXPECT_EQ(stride_class((1 << 21) - 1), 20);
  EXPECT_EQ(stride_class(0), 0);
}

TEST_F(MachineFileTest, TheSameKeyIsReplaced) {
  written();
  MachineFile file = MachineFile::read(path());
  file.put(kHere, KernelFigures{"Q4_K", 3e10, 1800000000});
  file.put(kHere, KernelFigures{"Q8_0", 4e10, 1800000000});
  for (int i = 0; i < 1100; ++i) {  // more than are kept: the oldest go
    file.put(kHere, ModelFigures{"model" + std::to_string(i), "", 1, 0, 0, 1, 0, 0, 1000 + i});
  }
  file.write();
  const MachineFile again = MachineFile::read(path());
  ASSERT_EQ(again.state(), State::Read) << again.problem();
  EXPECT_EQ(again.find_kernel(kHere, "Q4_K")->bytes_per_s, 3e10);
  EXPECT_EQ(again.find_kernel(kHere, "Q8_0")->bytes_per_s, 4e10);
  EXPECT_EQ(again.find_model(kHere, "model0"), nullptr);
  EXPECT_NE(again.find_model(kHere, "model1099"), nullptr);
  EXPECT_NE(again.find_model(kHere, "ab12"), nullptr);
}

TEST_F(MachineFileTest, ACutFileIsReportedIgnoredAndReplaced) {
  const std::string whole = written();
  for (size_t n = 40; n + 2 < whole.size(); n += 37) {
    write(whole.substr(0, n));
    const MachineFile file = MachineFile::read(path());
    EXPECT_EQ(file.state(), State::Damaged) << n;
    EXPECT_NE(file.problem().find(path()), std::string::npos);
    EXPECT_EQ(file.find(kDisk), nullptr);
  }
  MachineFile::read(path()).write();
  EXPECT_EQ(MachineFile::read(path()).state(), State::Read);
}

TEST_F(MachineFileTest, ForeignFilesAreLeftAlone) {
  const std::string deep(100000, '[');
  for (const std::string& text : std::vector<std::string>{
           "", "hello", "{}", "[]", "null", "{\"format\": \"something else\", \"version\": 1}",
           "{\"format\": \"penstock-machine\", \"version\": 2}",
           "{\"format\": \"penstock-machine\"}", deep, "\xff\xfe\x00", "{\"format\": 5}"}) {
    write(text);
    const MachineFile file = MachineFile::read(path());
    EXPECT_EQ(file.state(), State::Foreign) << text.substr(0, 60);
    EXPECT_NE(file.problem().find(path()), std::string::npos);
    try {
      file.write();
      ADD_FAILURE() << "overwritten: " << text.substr(0, 60);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Usage);
      EXPECT_NE(std::string(error.what()).find("--machine-file"), std::string::npos);
    }
    std::ifstream in(path(), std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), text);
  }
}

TEST_F(MachineFileTest, HostileValuesAreDamage) {
  using Json = nlohmann::json;
  const Json good = Json::parse(written());
  const auto expect_damaged = [&](const Json& root) {
    // As the program writes it, the format comes first.
    std::string text = root.dump();
    write("{\"format\":\"penstock-machine\"," + text.substr(1));
    const MachineFile file = MachineFile::read(path());
    EXPECT_EQ(file.state(), State::Damaged) << text;
    EXPECT_EQ(file.find(kDisk), nullptr);
    EXPECT_EQ(file.find_model(kHere, "ab12"), nullptr);
  };
  for (const char* list : {"disks", "kernels", "models"}) {
    for (const auto& [name, value] : good[list][0].items()) {
      Json bad = good;
      bad[list][0].erase(name);
      expect_damaged(bad);
      for (const Json& wrong : {Json(), Json::array(), Json::object(), Json(true), Json(-1),
                                Json(-0.5), Json(1e300), Json(std::string(5000, 'x'))}) {
        bad = good;
        bad[list][0][name] = wrong;
        expect_damaged(bad);
      }
    }
    Json bad = good;
    bad[list] = 5;
    expect_damaged(bad);
    bad[list] = Json::array({7});
    expect_damaged(bad);
    bad[list] = Json(std::vector<Json>(5000, good[list][0]));
    expect_damaged(bad);
  }
  std::string nested = "{\"format\": \"penstock-machine\", \"version\": 1, \"disks\": ";
  nested += std::string(200000, '[');
  write(nested);
  EXPECT_EQ(MachineFile::read(path()).state(), State::Damaged);
  write("{\"format\": \"penstock-machine\", \"version\": 1, \"x\": 1e999}");
  EXPECT_EQ(MachineFile::read(path()).state(), State::Damaged);
}

TEST_F(MachineFileTest, WhatIsNoFileIsReported) {
  std::filesystem::create_directory(path("folder"));
  EXPECT_EQ(MachineFile::read(path("folder")).state(), State::Foreign);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const MachineFile pipe = MachineFile::read(path("pipe"));  // does not wait for a writer
  EXPECT_EQ(pipe.state(), State::Foreign);
  EXPECT_NE(pipe.problem().find("no regular file"), std::string::npos);
  std::ofstream(path("large")).close();
  std::filesystem::resize_file(path("large"), uint64_t{5} << 20);
  EXPECT_EQ(MachineFile::read(path("large")).state(), State::Foreign);
}

TEST_F(MachineFileTest, ItsFolderIsMade) {
  MachineFile file = MachineFile::read(path("a/b/machine.json"));
  file.put(kHere, KernelFigures{"Q4_K", 2e10, 1});
  file.write();
  EXPECT_EQ(MachineFile::read(path("a/b/machine.json")).state(), State::Read);
  std::ofstream(path("file")).close();
  EXPECT_THROW(MachineFile::read(path("file/machine.json")).write(), Error);
}

TEST(MachinePlace, FollowsTheBaseDirectories) {
  const char* home = std::getenv("HOME");
  const std::string kept = home == nullptr ? "" : home;
  setenv("XDG_CACHE_HOME", "/var/somewhere", 1);
  EXPECT_EQ(default_machine_file(), "/var/somewhere/penstock/machine.json");
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(default_machine_file(), "/home/someone/.cache/penstock/machine.json");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(default_machine_file(), "");
  if (home != nullptr) setenv("HOME", kept.c_str(), 1);
}

TEST(MachineTime, IsWrittenOut) {
  EXPECT_EQ(time_text(0), "1970-01-01 00:00 UTC");
  EXPECT_GT(unix_now(), 1700000000);
}

}  // namespace
}  // namespace penstock::engine
