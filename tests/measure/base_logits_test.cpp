// Files of base logits as files: versions, damage, tokens that are none.
#include "measure/base_logits.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "engine/tiny_runtime.h"

namespace penstock::measure {
namespace {

constexpr int64_t kVocab = 50, kWindow = 8;
constexpr size_t kPerWindow = 3;  // positions 4 to 6

class BaseFile : public ::testing::Test {
 protected:
  BaseHeader header() const {
    BaseHeader h;
    h.n_vocab = kVocab;
    h.window_tokens = kWindow;
    h.n_windows = 2;
    h.mode = "batch";
    h.model_name = "a model";
    h.tokenizer_id[0] = 7;
    for (int i = 0; i < 2 * kWindow; ++i) h.tokens.push_back(i);
    return h;
  }
  std::vector<std::byte> rows(uint64_t window) const {
    std::vector<float> logits(kPerWindow * kVocab);
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>((i * 37 + window) % 11);
    }
    std::vector<std::byte> out(header().window_bytes());
    for (size_t r = 0; r < kPerWindow; ++r) {
      CompactRow::compress(std::span(logits).subspan(r * kVocab, kVocab),
                           reinterpret_cast<uint16_t*>(out.data() + r * header().row_bytes()));
    }
    return out;
  }
  std::string written(const BaseHeader& h) const {
    BaseWriter writer(path(), h, 2);
    const double nll[kPerWindow] = {1, 2, 3};
    for (uint64_t w = 0; w < 2; ++w) writer.write(w, rows(w), nll);
    EXPECT_EQ(writer.nll(1), (std::vector<double>{1, 2, 3}));
    writer.finish();
    return read_text_file(path());
  }
  std::string path() const { return folder_.path() + "/base"; }
  std::string refusal(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    try {
      BaseReader::open(path());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Format);
      return error.what();
    }
    return "";
  }

  penstock::testing::TemporaryFolder folder_;
};

TEST_F(BaseFile, GivesWhatWasWritten) {
  written(header());
  BaseReader reader = BaseReader::open(path());
  EXPECT_EQ(reader.header().tokenizer_id, header().tokenizer_id);
  EXPECT_FALSE(reader.header().chat_template);
  EXPECT_EQ(reader.header().tokens, header().tokens);
  for (uint64_t w = 0; w < 2; ++w) {
    EXPECT_EQ(std::memcmp(reader.rows(w).data, rows(w).data(), rows(w).size()), 0);
  }
}

TEST_F(BaseFile, DamageOfHeaderOrTokensIsSeen) {
  const std::string sound = written(header());
  EXPECT_EQ(refusal(sound), "");
  const size_t name = sound.find("a model");
  std::string bytes = sound;
  bytes[name] = 'b';
  EXPECT_NE(refusal(bytes).find("checksum"), std::string::npos);
  // The first token becomes 1: still of the vocabulary.
  const size_t tokens = sound.find('}') + 1;
  bytes = sound;
  ASSERT_EQ(bytes[tokens], 0);
  bytes[tokens] = 1;
  EXPECT_NE(refusal(bytes).find("checksum"), std::string::npos);
  // The scores beside the rows are under the window's checksum.
  bytes = sound;
  bytes[bytes.size() - 10] ^= 1;
  EXPECT_EQ(refusal(bytes), "");
  EXPECT_THROW(BaseReader::open(path()).rows(1), Error);
}

TEST_F(BaseFile, TokensOutsideTheVocabularyAreRefused) {
  for (const int32_t id : {static_cast<int32_t>(kVocab), -1}) {
    BaseHeader h = header();
    h.tokens.back() = id;  // looked up, never forwarded
    const std::string why = refusal(written(h));
    EXPECT_NE(why.find("token 15 is " + std::to_string(id)), std::string::npos) << why;
  }
}

// Version 1: no checksum over header and tokens, no scores.
TEST_F(BaseFile, OldFilesAreRead) {
  const BaseHeader h = header();
  const std::string json =
      R"({"form":"u16","n_vocab":50,"window_tokens":8,"n_windows":2,"mode":"batch","model_id":")" +
      hex(h.model_id) + R"(","corpus_id":")" + hex(h.corpus_id) +
      R"(","model_name":"old","quality_key":"k","n_tokens":16})";
  const auto file = [&](const std::vector<int32_t>& tokens) {
    std::string out = "PNSTBASE";
    const auto add = [&](const void* data, size_t bytes) {
      out.append(static_cast<const char*>(data), bytes);
    };
    const uint32_t head[] = {1, static_cast<uint32_t>(json.size())};
    add(head, sizeof head);
    out += json;
    add(tokens.data(), tokens.size() * sizeof(int32_t));
    for (uint64_t w = 0; w < 2; ++w) {
      const std::vector<std::byte> body = rows(w);
      const uint64_t sum = xxh64(body, w);
      add(&w, sizeof w);
      add(body.data(), body.size());
      add(&sum, sizeof sum);
    }
    return out;
  };
  EXPECT_EQ(refusal(file(h.tokens)), "");
  BaseReader reader = BaseReader::open(path());
  EXPECT_EQ(reader.header().model_name, "old");
  EXPECT_EQ(reader.header().tokenizer_id, Sha256{});
  EXPECT_EQ(std::memcmp(reader.rows(1).data, rows(1).data(), rows(1).size()), 0);
  std::vector<int32_t> wrong = h.tokens;
  wrong[15] = 5000;
  EXPECT_NE(refusal(file(wrong)).find("vocabulary"), std::string::npos);
}

}  // namespace
}  // namespace penstock::measure
