#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <random>
#include <thread>

#include "base/error.h"
#include "fixtures.h"
#include "gguf/model.h"
#include "gguf/writer.h"
#include "text/tokenizer_gguf.h"
#include "text/utf8_stream.h"

namespace penstock::text {
namespace {

using Ids = std::vector<int32_t>;

const Tokenizer& tokenizer() {
  static const Tokenizer instance(vocabulary("qwen35"));
  return instance;
}

int32_t special(std::string_view name) {
  return tokenizer().token_id(name).value();
}

TEST(Tokenizer, MatchesTheRecordedLibrary) {
  const Json cases = fixture("encode_cases.json");
  ASSERT_GT(cases.size(), 2000U);
  size_t differing = 0;
  for (const Json& c : cases) {
    const auto text = c[0].get<std::string>();
    const Ids parsed = c[1].get<Ids>();
    const Ids plain = c.size() > 2 ? c[2].get<Ids>() : parsed;
    differing += c.size() > 2 ? 1 : 0;
    EXPECT_EQ(tokenizer().encode(text, true), parsed) << text;
    EXPECT_EQ(tokenizer().encode(text, false), plain) << text;
  }
  EXPECT_GT(differing, 100U);  // the cases do tell the two modes apart
}

TEST(Tokenizer, MatchesTheRecordedLibraryForOtherPreTypes) {
  const Json data = fixture("pre_type_cases.json");
  const auto strings = data.at("strings").get<std::vector<std::string>>();
  std::map<Ids, int> answers;
  for (const auto& [pre, expected] : data.at("ids").items()) {
    const Tokenizer other(vocabulary(pre));
    Ids all;
    for (size_t i = 0; i < strings.size(); ++i) {
      const Ids ids = other.encode(strings[i], true);
      EXPECT_EQ(ids, expected[i].get<Ids>()) << pre << ": " << strings[i];
      all.insert(all.end(), ids.begin(), ids.end());
    }
    ++answers[all];
  }
  EXPECT_EQ(answers.size(), data.at("ids").size());  // no two of them agree on all strings
}

TEST(Tokenizer, AnyBytesComeBack) {
  TokenizerData data = vocabulary("qwen35");
  data.nfc = false;  // normalisation changes text by design
  const Tokenizer exact(data);
  std::mt19937 rng(1);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t n = rng() % 60; n > 0; --n) {
      text += static_cast<char>(rng() % 4 == 0 ? rng() % 256 : 'a' + rng() % 3);
    }
    EXPECT_EQ(exact.decode(exact.encode(text, false), true), text);
  }
  // With it on, bytes that are not UTF-8 still come back.
  EXPECT_EQ(tokenizer().decode(tokenizer().encode("x\xFF\xC3(\xE2\x82", false)),
            "x\xFF\xC3(\xE2\x82");
}

TEST(Tokenizer, NfcCanBeSwitchedOff) {
  TokenizerData data = vocabulary("qwen35");
  const std::string decomposed = "e\xCC\x81";
  EXPECT_EQ(Tokenizer(data).decode(Tokenizer(data).encode(decomposed, false)), "\xC3\xA9");
  data.nfc = false;
  EXPECT_EQ(Tokenizer(data).decode(Tokenizer(data).encode(decomposed, false)), decomposed);
}

TEST(Tokenizer, ControlTokensOnlyWhenAsked) {
  const std::string text = "<|im_start|>user\nHi<|im_end|>";
  const Ids parsed = tokenizer().encode(text, true);
  EXPECT_EQ(parsed.front(), special("<|im_start|>"));
  EXPECT_EQ(parsed.back(), special("<|im_end|>"));
  for (const int32_t id : tokenizer().encode(text, false)) {
    EXPECT_NE(tokenizer().token_type(id), TokenType::Control);
  }
  EXPECT_EQ(tokenizer().decode(tokenizer().encode(text, false)), text);
  EXPECT_EQ(tokenizer().decode(parsed), "user\nHi");
  EXPECT_EQ(tokenizer().decode(parsed, true), text);
}

TEST(Tokenizer, UserDefinedTokensAlways) {
  EXPECT_EQ(tokenizer().encode("<think>", false), Ids{special("<think>")});
  EXPECT_EQ(tokenizer().decode(Ids{special("<think>")}), "<think>");
}

TEST(Tokenizer, PiecesGiveTheIdsOfTheJoinedText) {
  // A boundary inside a word, inside a run of line ends, and next to control tokens.
  const std::vector<Piece> pieces = {{"<|im_start|>us", false},
                                     {"er\n", true},
                                     {"\n\nhel", false},
                                     {"lo 12", true},
                                     {"34<|im_end|>\n", false}};
  std::string joined;
  for (const Piece& piece : pieces) joined += piece.text;
  EXPECT_EQ(tokenizer().encode_pieces(pieces), tokenizer().encode(joined, true));
}

TEST(Tokenizer, UserTextMakesNoControlToken) {
  const auto controls = [](const std::vector<Piece>& pieces) {
    Ids out;
    for (const int32_t id : tokenizer().encode_pieces(pieces)) {
      if (tokenizer().token_type(id) == TokenType::Control) out.push_back(id);
    }
    return out;
  };
  EXPECT_EQ(controls({{"<|im_end|>", true}}), Ids{});
  EXPECT_EQ(controls({{"<|im_", true}, {"end|>", false}}), Ids{});
  EXPECT_EQ(controls({{"<|im_", false}, {"end|>", true}}), Ids{});
  EXPECT_EQ(controls({{"<|im_", true}, {"", false}, {"end|>", true}}), Ids{});
  EXPECT_EQ(controls({{"x<|im_end|><|im_start|", true}, {"<|im_end|>", false}}),
            Ids{special("<|im_end|>")});
  EXPECT_EQ(controls({{"<|im_end|>", false}, {"<|im_end|>", true}, {"<|im_end|>", false}}),
            (Ids{special("<|im_end|>"), special("<|im_end|>")}));
}

// Tokens that overlap or contain each other, so that user text could reach into the template's.
TEST(Tokenizer, UserTextHidesNoControlToken) {
  TokenizerData data = vocabulary("qwen35");
  const auto add = [&](const char* text, int32_t type) {
    data.tokens.emplace_back(text);
    data.token_type.push_back(type);
    return static_cast<int32_t>(data.tokens.size() - 1);
  };
  const int32_t end = add("[end]", 3);
  add("x[e", 4);        // user-defined, swallows the start of [end]
  add("y[end", 3);      // control, likewise
  add("[end]more", 4);  // goes on from it into what a user may write
  const Tokenizer t(data);
  const auto has_end = [&](const std::vector<Piece>& pieces) {
    const Ids ids = t.encode_pieces(pieces);
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(has_end({{"x", true}, {"[end]", false}}), 1);
  EXPECT_EQ(has_end({{"y", true}, {"[end]", false}}), 1);
  EXPECT_EQ(has_end({{"[end]", false}, {"more", true}}), 1);
  EXPECT_EQ(has_end({{"[end]", true}}), 0);
  // Where all of it is the template's, the longest token counts, as in the reference library.
  EXPECT_EQ(has_end({{"x[end]", false}}), 0);
}

TEST(Tokenizer, StopIdsAreTheUnionOfFileAndNames) {
  TokenizerData data = vocabulary("qwen35");
  EXPECT_TRUE(Tokenizer(data).is_stop(special("<|im_end|>")));
  EXPECT_TRUE(Tokenizer(data).is_stop(special("<|endoftext|>")));
  EXPECT_FALSE(Tokenizer(data).is_stop(special("<|im_start|>")));
  data.eos = 5;
  data.eot = 6;
  data.eom = 7;
  const Tokenizer t(data);
  EXPECT_EQ(t.stop_ids(), (Ids{5, 6, 7, special("<|endoftext|>"), special("<|im_end|>")}));
  // The name alone, on a token that is ordinary text, means nothing.
  TokenizerData plain = vocabulary("qwen35");
  std::fill(plain.token_type.begin(), plain.token_type.end(), 1);
  EXPECT_TRUE(Tokenizer(plain).stop_ids().empty());
}

TEST(Tokenizer, HarmonyEndIsNoStopBesideReturn) {
  TokenizerData data = vocabulary("gpt-4o");
  data.tokens.emplace_back("<|end|>");
  data.token_type.push_back(3);
  const auto end = static_cast<int32_t>(data.tokens.size() - 1);
  EXPECT_TRUE(Tokenizer(data).is_stop(end));
  data.tokens.emplace_back("<|return|>");
  data.token_type.push_back(3);
  EXPECT_FALSE(Tokenizer(data).is_stop(end));
  EXPECT_TRUE(Tokenizer(data).is_stop(end + 1));
}

TEST(Tokenizer, BosIsPutInFrontOnce) {
  TokenizerData data = vocabulary("qwen35");
  data.bos = 3;
  Ids ids = {8, 9};
  Tokenizer(data).prepend_bos(ids);
  EXPECT_EQ(ids, (Ids{8, 9}));
  data.add_bos = true;
  const Tokenizer t(data);
  t.prepend_bos(ids);
  t.prepend_bos(ids);
  EXPECT_EQ(ids, (Ids{3, 8, 9}));
}

TEST(Tokenizer, LongRunsTakeNoTimeToSpeakOf) {
  const std::clock_t start = std::clock();
  for (const std::string unit :
       {"a", " ", "\n", "ab", "<", "'", "\xCC\x81", "\xFF", "1", "<|im_"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const Ids ids = tokenizer().encode(text, true);
    EXPECT_EQ(tokenizer().decode(ids).size(), text.size());
  }
  // Quadratic would be hours of processor time.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 60.0);
}

TEST(Tokenizer, MergesOfLongAndShortPiecesAgree) {
  // The same repeated word, once as one long piece and once cut where no merge crosses.
  const std::string word = "tokenizer";
  std::string text;
  for (int i = 0; i < 30; ++i) text += word;
  TokenizerData data = vocabulary("qwen35");
  const Tokenizer t(data);
  MergeTable merges;
  Ids slow;
  for (const char c : text) slow.push_back(t.token_id(std::string_view(&c, 1)).value());
  // Reference: merge the lowest rank, leftmost, over the whole list.
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, int32_t>> table;
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const size_t space = data.merges[rank].find(' ', 1);
    std::string a, b;
    decode_byte_alphabet(std::string_view(data.merges[rank]).substr(0, space), a);
    decode_byte_alphabet(std::string_view(data.merges[rank]).substr(space + 1), b);
    table[{*t.token_id(a), *t.token_id(b)}] = {rank, *t.token_id(a + b)};
  }
  while (true) {
    size_t best = SIZE_MAX, at = 0;
    int32_t result = 0;
    for (size_t i = 0; i + 1 < slow.size(); ++i) {
      const auto found = table.find({slow[i], slow[i + 1]});
      if (found != table.end() && found->second.first < best) {
        best = found->second.first;
        at = i;
        result = found->second.second;
      }
    }
    if (best == SIZE_MAX) break;
    slow[at] = result;
    slow.erase(slow.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  EXPECT_EQ(t.encode(text, false), slow);
}

TEST(Tokenizer, EncodesFromManyThreads) {
  const Json cases = fixture("encode_cases.json");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t n = 0; n < wrong.size(); ++n) {
    threads.emplace_back([&, n] {
      for (size_t i = n; i < cases.size(); i += 3) {
        wrong[n] +=
            tokenizer().encode(cases[i][0].get<std::string>(), true) != cases[i][1].get<Ids>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, RefusesBrokenVocabularies) {
  const auto message = [](auto change) {
    TokenizerData data = vocabulary("qwen35");
    change(data);
    try {
      Tokenizer t(data);
      t.encode("A", false);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto expect = [&](auto change, const char* part) {
    EXPECT_NE(message(change).find(part), std::string::npos) << message(change);
  };
  expect([](TokenizerData& d) { d.model = "llama"; }, "'llama' is not supported");
  expect([](TokenizerData& d) { d.pre = "x"; }, "known: qwen2");
  expect([](TokenizerData& d) { d.tokens.clear(); }, "is empty");
  expect([](TokenizerData& d) { d.token_type.pop_back(); }, "token_type has");
  expect([](TokenizerData& d) { d.token_type[4] = 9; }, "token_type[4] is 9");
  expect([](TokenizerData& d) { d.merges[3] = "nospace"; }, "merges[3] is 'nospace'");
  expect([](TokenizerData& d) { d.merges[3] = "a qqqqq"; }, "merges[3] 'a qqqqq': the second");
  expect([](TokenizerData& d) { d.eos = 1 << 30; }, "eos_token_id");
  expect([](TokenizerData& d) { d.tokens.back() = std::string(5000, 'x'); }, "5000 bytes long");
  expect([](TokenizerData& d) { d.tokens[0] = "zzzz"; }, "not in the vocabulary");
  expect(
      [](TokenizerData& d) {
        d.merges.clear();
        for (std::string& token : d.tokens) {
          if (token == "A") token = "zzzz";
        }
      },
      "no token for the byte 0x41");
  EXPECT_THROW(tokenizer().token_text(-1), Error);
  EXPECT_THROW(tokenizer().token_text(1 << 28), Error);
}

TEST(Tokenizer, LoadsFromGguf) {
  const TokenizerData data = vocabulary("qwen35");
  const std::string path = testing::TempDir() + "penstock_tokenizer_test.gguf";
  {
    gguf::Writer writer(path);
    writer.set_string("general.architecture", "qwen35moe");
    writer.set_string("tokenizer.ggml.model", "gpt2");
    writer.set_string("tokenizer.ggml.pre", "qwen35");
    writer.set_string_array("tokenizer.ggml.tokens", data.tokens);
    writer.set_i32_array("tokenizer.ggml.token_type", data.token_type);
    writer.set_string_array("tokenizer.ggml.merges", data.merges);
    writer.set_u32("tokenizer.ggml.eos_token_id", 7);
    writer.set_u32("tokenizer.ggml.eot_token_id", 0xFFFFFFFF);
    writer.set_bool("tokenizer.ggml.add_bos_token", false);
    writer.set_string("tokenizer.chat_template", "{{ 1 }}");
    writer.begin();
    writer.finish();
  }
  const gguf::Model model = gguf::Model::open(path);
  const TokenizerData loaded = load_tokenizer(model.metadata());
  EXPECT_EQ(loaded.tokens, data.tokens);
  EXPECT_EQ(loaded.merges, data.merges);
  EXPECT_EQ(loaded.token_type, data.token_type);
  EXPECT_EQ(loaded.eos, 7);
  EXPECT_EQ(loaded.eot, std::nullopt);
  EXPECT_EQ(loaded.add_bos, false);
  EXPECT_EQ(loaded.chat_template, "{{ 1 }}");
  const std::string text = "Grüße, <|im_end|> 世界";
  EXPECT_EQ(Tokenizer(loaded).encode(text, true), tokenizer().encode(text, true));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace penstock::text
