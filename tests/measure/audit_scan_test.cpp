// Numbers as documents write them: which are figures, where they stand, what is no prose.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "audit_support.h"
#include "base/error.h"
#include "base/file.h"

namespace penstock::measure {
namespace {

std::vector<std::string> figures(const std::string& text) {
  std::vector<std::string> out;
  for (const DocumentFigure& figure : markdown_figures(text)) out.push_back(figure.text);
  return out;
}

using Texts = std::vector<std::string>;

TEST(Quantities, WrittenNumbersKeepTheirDigits) {
  EXPECT_EQ(parse_written("13.80")->digits, 2);
  EXPECT_EQ(parse_written("1,628")->value, 1628);
  EXPECT_EQ(parse_written("\u221259")->value, -59);
  EXPECT_EQ(parse_written("1.5e3")->value, 1500);
  EXPECT_EQ(parse_written("1.5e3")->digits, -2);
  for (const char* text : {"", "x", "1.", "1,62", "1,6288", ",628", "1.2.3", "nan", "inf", "1e999",
                           "0x10", "--1", "1 2"}) {
    EXPECT_FALSE(parse_written(text)) << text;
  }
  EXPECT_TRUE(parse_written("514")->matches(514.3));
  EXPECT_FALSE(parse_written("515")->matches(514.3));
  EXPECT_TRUE(parse_written("13.5")->matches(13.55));  // half a unit is within
  EXPECT_FALSE(parse_written("13.50")->matches(13.53));
}

TEST(Quantities, UnitsConvertOnlyWithinWhatTheyMeasure) {
  const auto factor = [](const char* from, const char* to) {
    return conversion(parse_unit(from), parse_unit(to)).value_or(-1);
  };
  EXPECT_DOUBLE_EQ(factor("s", "ms"), 1000);
  EXPECT_DOUBLE_EQ(factor("MiB", "GB"), 1048576.0 / 1e9);
  EXPECT_DOUBLE_EQ(factor("ms/token", "ms"), 1);
  EXPECT_EQ(factor("MB", "MB per decode token"), -1);
  EXPECT_EQ(factor("MB", "s"), -1);
  EXPECT_EQ(factor("GB", "GB/s"), -1);
  EXPECT_DOUBLE_EQ(factor("GFLOP/s", "MFLOP/s"), 1000);
  EXPECT_EQ(factor("reads/s", "weights/s"), -1);
}

TEST(MarkdownFigures, UnitsOfPerformanceAndMemory) {
  EXPECT_EQ(figures("Decode at 13.80 tok/s, 72.5 ms/token, reading 107.8 MB per token."),
            (Texts{"13.80 tok/s", "72.5 ms/token", "107.8 MB per token"}));
  EXPECT_EQ(figures("A peak of 5.2 GiB\u00a0and 3\u202fMiB; 40-ms waits; 7.8x; 2.1\u00d7; 91 %; "
                    "12\u00b5s, 3.5 GFLOP/s, 8 weights/s, 5 per cent"),
            (Texts{"5.2 GiB", "3 MiB", "40 ms", "7.8 x", "2.1 \u00d7", "91 %", "12 \u00b5s",
                   "3.5 GFLOP/s", "8 weights/s", "5 per cent"}));
  EXPECT_EQ(figures("wrapped: 13.80\ntok/s"), Texts{"13.80 tok/s"});
  EXPECT_EQ(figures("another paragraph: 13.80\n\ns is a letter"), Texts{});
  // No figures: names, versions, shapes, counts, dates.
  EXPECT_EQ(figures("Q8_0, x86-64, 1.2.3 s, v2, 64x64, 4 x 4, 30B, 2026-11-30, n = 3, 8 layers, "
                    "b11434, 12 Mbit, issue #5 s, 10 minnows, docs/010 s"),
            Texts{});
}

TEST(MarkdownFigures, RangesAndListsShareTheirUnit) {
  EXPECT_EQ(figures("12.96-13.88 tok/s"), (Texts{"12.96 tok/s", "13.88 tok/s"}));
  EXPECT_EQ(figures("12.96 to 13.88 tok/s"), (Texts{"12.96 tok/s", "13.88 tok/s"}));
  EXPECT_EQ(figures("24.2, 22.5 and 18.8 GB/s"), (Texts{"24.2 GB/s", "22.5 GB/s", "18.8 GB/s"}));
  EXPECT_EQ(figures("1.4 -> 3.81 tok/s"), (Texts{"1.4 tok/s", "3.81 tok/s"}));
  EXPECT_EQ(figures("0.31 s (0.22 to 0.33)"), (Texts{"0.31 s", "0.22 s", "0.33 s"}));
  EXPECT_EQ(figures("13.8 (12.9 to 13.9) tok/s"),
            (Texts{"13.8 tok/s", "12.9 tok/s", "13.9 tok/s"}));
  EXPECT_EQ(figures("**56** %"), Texts{"56 %"});
  EXPECT_EQ(figures("-59 % and \u221212 %"), (Texts{"-59 %", "\u221212 %"}));
}

TEST(MarkdownFigures, TablesGiveUnitsInHeadingsAndFirstCells) {
  EXPECT_EQ(figures("| arm | decode, tok/s | size (MiB) | runs |\n|---|---|---:|---|\n"
                    "| all | 36.3 (35.6 to 39.6) | 12 | 3 |\n"),
            (Texts{"36.3 tok/s", "35.6 tok/s", "39.6 tok/s", "12 MiB"}));
  EXPECT_EQ(
      figures("| | a | b |\n|---|---|---|\n| decode, tok/s | 1.5 | 2.5 |\n| slots | 7 | 8 |\n"),
      (Texts{"1.5 tok/s", "2.5 tok/s"}));
  EXPECT_EQ(figures("| hits, % | 93 slots | 186 |\n|---|---|---|\n| 2 layers | 41.7 | 60.1 |\n"),
            (Texts{"41.7 %", "60.1 %"}));
  EXPECT_EQ(figures("| arm | KLD [95 %] |\n|---|---|\n| a | 0.035 [0.03, 0.04], n = 5 |\n"),
            Texts{"95 %"});
  EXPECT_EQ(
      figures("| the second pass | ready, s | note |\n|---|---|---|\n| a second try | 3 | 4 |\n"),
      Texts{"3 s"});
  EXPECT_EQ(figures("| | s |\n|---|---|\n| \\| 1 | `2` 3 |\n\n4 | 5\n"), Texts{"3 s"});
  const auto found = markdown_figures("x\n\n| \u00e9 | ms |\n|--|--|\n| \u00e9\u00e9 | 7 |\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].line, 5u);
  EXPECT_EQ(found[0].column, 8u);  // characters, not bytes
}

TEST(MarkdownFigures, CodeCommentsAndLinksAreNoProse) {
  EXPECT_EQ(figures("`--memory 8 GB` takes 7 GB, ``a ` 5 GB`` too"), Texts{"7 GB"});
  EXPECT_EQ(figures("```\n5 GB\n```\n6 GB\n~~~text\n7 GB\n```\n~~~\n"), Texts{"6 GB"});
  EXPECT_EQ(figures("```results\n`5 GB`\n```\n"), Texts{"5 GB"});
  EXPECT_EQ(figures("text\n\n    5 GB of code\n\n6 GB\n"), Texts{"6 GB"});
  EXPECT_EQ(figures("- item\n\n    5 GB in the item\n\n          6 GB of code in it\n"),
            Texts{"5 GB"});
  EXPECT_EQ(figures("a <!-- 5 GB\n 6 GB --> 7 GB <img alt=\"8 GB\"> 9 GB"),
            (Texts{"7 GB", "9 GB"}));
  EXPECT_EQ(figures("[5 GB](see/6 GB) <http://x/7 GB> http://y/8GB\n[r]: http://z \"9 GB\"\n"),
            Texts{"5 GB"});
  EXPECT_EQ(figures("an open ` tick, 5 GB\n\nand `6 GB` and 7 GB"), (Texts{"5 GB", "7 GB"}));
  EXPECT_EQ(figures("never closed <!-- 5 GB"), Texts{});
}

// Every prefix, and bytes at random, must neither crash nor take long, and all places must be in
// the text.
TEST(MarkdownFigures, HostileTexts) {
  std::vector<std::string> texts;
  const std::string base =
      "| a | tok/s |\n|---|---|\n| `x` | 5 |\n\n```results\n7 GB\n```\n- 1,234.5e-3 \u00b5s <!-- "
      "[a](b) \xff\xfe ``` \\` <a 5 x";
  for (size_t n = 0; n <= base.size(); ++n) texts.push_back(base.substr(0, n));
  std::mt19937 random(7);
  const std::string alphabet = "`|<>![]()-0123456789.,%xsMGB/ \n\t\\\xff\xc2\xb5~*e+:";
  for (int i = 0; i < 300; ++i) {
    std::string text(200, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    texts.push_back(text);
  }
  for (const char* unit : {"`", "` `` ", "<!--", "<a ", "](", "|", "| 1 |\n|-|\n", "1,", "1 to ",
                           "(1", "5 x ", "- ", "\n    ", "``a` "}) {
    std::string text;
    while (text.size() < 200000) text += unit;
    texts.push_back(text);
  }
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text : texts) {
    size_t last = 0;
    for (const DocumentFigure& figure : markdown_figures(text)) {
      EXPECT_LE(last, figure.begin);
      EXPECT_LT(figure.begin, figure.end);
      EXPECT_LE(figure.end, text.size());
      last = figure.begin;
    }
    EXPECT_EQ(markdown_prose(text).size(), text.size());
  }
  // What is quadratic in 200 kB takes minutes; a slow machine needs seconds.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(QuoteFinder, WhiteSpaceIsOneAndWordsAreWhole) {
  const QuoteFinder finder("It reads\n  13.80 tok/s, then 3.80 tok/s and 98 %.");
  EXPECT_EQ(finder.find("reads 13.80 tok/s").size(), 1u);
  EXPECT_EQ(finder.find("3.80 tok/s").size(), 1u);
  EXPECT_EQ(finder.find("8 %").size(), 0u);
  EXPECT_EQ(finder.find("80 tok").size(), 0u);
  EXPECT_EQ(finder.find("  \n").size(), 0u);
  const auto found = finder.find("13.80 tok/s");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], (std::pair<size_t, size_t>{11, 22}));
}

class AuditDocuments : public AuditTest {};

TEST_F(AuditDocuments, EveryNumberIsClaimedOrASetting) {
  const std::string document =
      "# Speed\n\nDecode at\n13.53 tok/s with `--memory 8 GB`; the disk gives 1.5 GB/s.\n\n"
      "| | decode, tok/s |\n|---|---|\n| a | 13.53 |\n| b | 7.7 |\n";
  const std::string claim =
      "[[claim]]\nid = \"c\"\ntext = \"Decode at 13.53 tok/s\"\n"
      "figure = \"decode_tok_s\"\nrecords = " +
      three(peer()) + "\n";
  const Audit audit = audit_of(claim, document);
  EXPECT_EQ(found(audit, "c"), Set{});
  ASSERT_EQ(audit.unclaimed.size(), 3u);
  EXPECT_EQ(audit.unclaimed[0].figure.text, "1.5 GB/s");
  EXPECT_EQ(audit.unclaimed[0].figure.line, 4u);
  EXPECT_EQ(audit.unclaimed[1].figure.line, 8u);
  EXPECT_FALSE(audit.ok());
  const Audit whole = audit_of(
      claim +
          "[[setting]]\nquote = [\"the disk gives 1.5 GB/s\", \"| b | 7.7 |\"]\nreason = \"r\"\n" +
          "[[claim]]\nid = \"t\"\ntext = \"| a | 13.53 |\"\nvalue = \"13.53\"\nunit = \"tok/s\"\n" +
          "figure = \"decode_tok_s\"\nrecords = " + three(peer()) + "\n",
      document);
  EXPECT_TRUE(whole.ok()) << audit_table(whole);
  EXPECT_EQ(whole.covered_by_settings, 2u);
}

TEST_F(AuditDocuments, AClaimCoversItsOwnNumberOnly) {
  const Audit audit = audit_of(
      "[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s and 99.9 tok/s\"\nvalue = \"13.53\"\n"
      "unit = \"tok/s\"\nfigure = \"decode_tok_s\"\nrecords = " +
          three(peer()) + "\n",
      "We decode at 13.53 tok/s and 99.9 tok/s.\n");
  EXPECT_EQ(found(audit, "c"), Set{});
  ASSERT_EQ(audit.unclaimed.size(), 1u);
  EXPECT_EQ(audit.unclaimed[0].figure.text, "99.9 tok/s");
}

TEST_F(AuditDocuments, TextsThatDocumentsNoLongerHave) {
  const std::string claims =
      "[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\n"
      "figure = \"decode_tok_s\"\nrecords = " +
      three(peer()) + "\n[[setting]]\nquote = \"8 GB\"\nreason = \"a size to choose\"\n";
  const Audit audit = audit_of(claims, "Nothing is said here.\n");
  EXPECT_EQ(audit.others.size(), 2u);
  EXPECT_FALSE(audit.ok());
  // Of documents given by hand it is not asked that they have all.
  std::ofstream(root() + "/other.md") << "13.53 tok/s\n";
  const Audit some = measure::audit(
      {.claims = root() + "/claims.toml", .documents = {root() + "/other.md"}, .records = {}});
  EXPECT_TRUE(some.ok()) << audit_table(some);
}

TEST_F(AuditDocuments, OtherArchivedFilesCountByTheirBytes) {
  const std::string text = R"({"arms": [{"decode": [13.1, 13.5, 13.9]}, {"decode": [6, 7, 8]}]})";
  std::ofstream(records() + "/old.json") << text;
  const auto claims = [&](const std::string& sha, const std::string& more) {
    return "[archived]\nold = {sha256 = \"" + sha +
           "\", accept = [\"UNIDENTIFIED BUILD\"], reason = \"older than records\"}\n" +
           "[[claim]]\nid = \"c\"\ntext = \"x\"\nrecords = \"old\"\neach = \"/arms/0/decode\"\n" +
           "statistic = \"median\"\nvalues = [\n{text = \"13.5 tok/s\"},\n" +
           "{text = \"13.1 to 13.9 tok/s\", statistic = \"range\"},\n" + more + "]\n";
  };
  const std::string sha = hex(sha256(text));
  const std::string ratio =
      "{text = \"1.93x\", against = {records = \"old\", each = \"/arms/1/decode\"}},\n";
  EXPECT_TRUE(audit_of(claims(sha, ratio)).ok()) << audit_table(audit_of(claims(sha, ratio)));
  const Audit wrong = audit_of(claims(sha,
                                      "{text = \"14.5 tok/s\"},\n{text = \"13 to 14 tok/s\", "
                                      "statistic = \"range\"},\n{text = \"1.93x\"},\n"
                                      "{text = \"7 tok/s\", each = \"\", "
                                      "formula = \"{/arms/1/decode/1}\"},\n"
                                      "{text = \"7 tok/s\", each = \"/nowhere\"},\n"));
  EXPECT_EQ(found(wrong, "c.3"), Set{"MISMATCH R1"});
  EXPECT_EQ(found(wrong, "c.4"), Set{});  // rounded to whole numbers it is
  EXPECT_EQ(found(wrong, "c.5"), Set{"NO SOURCE R9"});
  EXPECT_EQ(found(wrong, "c.7"), Set{"NO SOURCE R2"});
  // One byte more is another file.
  EXPECT_EQ(found(audit_of(claims(digits("other", 64), "")), "c.1"), Set{"NO SOURCE R2"});
}

TEST_F(AuditDocuments, PartsOfAFileByTheirMembers) {
  const std::string text = R"({"rows": [{"arm": "a", "n": 1, "ms": 5, "ends": [1, 9]},
    {"arm": "a", "n": 2, "ms": 7, "ends": [2, 8]}, {"arm": "b", "n": 1, "ms": 11}, 5]})";
  std::ofstream(records() + "/old.json") << text;
  const auto judged = [&](const std::string& each, const std::string& value) {
    const Audit audit =
        audit_of("[archived]\nold = {sha256 = \"" + hex(sha256(text)) +
                 "\", accept = [\"UNIDENTIFIED BUILD\"], reason = \"old\"}\n[[claim]]\nid = \"c\"\n"
                 "text = \"" +
                 value + " KB\"\nstatistic = \"median\"\nrecords = \"old\"\neach = \"" + each +
                 "\"\nformula = \"{}\"\n");
    return found(audit, "c");
  };
  EXPECT_EQ(judged("/rows[arm=b]/ms", "11"), Set{"NO SOURCE R2"});  // no list
  EXPECT_EQ(judged("/rows[arm=a]/ends", "5"), Set{});               // of 1, 9, 2 and 8
  EXPECT_EQ(judged("/rows[arm=a][n=2]/ends", "5"), Set{});
  EXPECT_EQ(judged("/rows[arm=a][n=2]/ends", "6"), Set{"MISMATCH R1"});
  EXPECT_EQ(judged("/rows[arm=c]/ends", "5"), Set{"NO SOURCE R2"});
  EXPECT_EQ(judged("/rows[arm", "5"), Set{"NO SOURCE R2"});
  EXPECT_EQ(judged("/rows[]", "5"), Set{"NO SOURCE R2"});
  EXPECT_EQ(judged("/[a=b][c=d]/e", "5"), Set{"NO SOURCE R2"});
}

TEST_F(AuditDocuments, OutputThatIsParsedAgain) {
  Json run = peer();
  const std::string said =
      "prompt eval time =    3191.98 ms /  1024 tokens\n       eval time =    4656.22 ms /    63 "
      "runs\n";
  run["parser"] = "llama.cpp";
  run["output"] = {{"stdout", archived("")}, {"stderr", archived(said)}};
  const auto claim = [](const std::string& ids) {
    return "[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\nfigure = \"decode_tok_s\"\nrecords = " +
           ids + "\n";
  };
  EXPECT_EQ(found(audit_of(claim(three(run))), "c"), Set{});
  run["output"]["stderr"] = archived("prompt eval time = 3191.98 ms / 1024 tokens\n");
  EXPECT_EQ(found(audit_of(claim(three(run))), "c"), Set{"NO SOURCE R17"});
  run["output"]["stderr"] = archived(said);
  run["values"]["decode_ms"] = 4656.0;
  EXPECT_EQ(found(audit_of(claim(three(run))), "c"), Set{"NO SOURCE R17"});
  // A record that was changed after it was written.
  std::ofstream(records() + "/" + std::string(64, 'c') + ".json") << canonical_text(peer());
  EXPECT_EQ(found(audit_of(claim("[\"" + std::string(64, 'c') + ".json\"]")), "c"),
            (Set{"NO SOURCE R2", "UNDER-SAMPLED R8"}));
}

TEST_F(AuditDocuments, ClaimsFilesThatMakeNoSense) {
  const auto message = [&](const std::string& claims) -> std::string {
    try {
      audit_of(claims);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Format) << error.what();
      return error.what();
    }
    return "no error";
  };
  const std::string head = "[[claim]]\ntext = \"5 ms\"\n";
  EXPECT_NE(message(head + "figur = \"x\"\n").find("figur"), std::string::npos);
  EXPECT_NE(message(head + "accept = [\"MISMATCH\"]\n").find("never"), std::string::npos);
  EXPECT_NE(message(head + "accept = [\"UNDER-SAMPLED\"]\n").find("reason"), std::string::npos);
  EXPECT_NE(message(head + "accept = [\"FINE\"]\n").find("none of"), std::string::npos);
  EXPECT_NE(message(head + "statistic = \"best\"\n").find("none of"), std::string::npos);
  EXPECT_NE(message(head + "value = nan\n").find("value"), std::string::npos);
  EXPECT_NE(message(head + "value = [2, 1]\n").find("upper end"), std::string::npos);
  EXPECT_NE(message(head + "value = [1, 2, 3]\n").find("two values"), std::string::npos);
  EXPECT_NE(message(head + "formula = \"{/a\"\n").find("formula"), std::string::npos);
  EXPECT_NE(message(head + "exact = true\n").find("exact"), std::string::npos);
  EXPECT_NE(message(head + "id = \"a\"\n" + head + "id = \"a\"\n").find("two claims"),
            std::string::npos);
  EXPECT_NE(message("[[claim]]\ntext = \"no number\"\n").find("value"), std::string::npos);
  EXPECT_NE(message("[[claim]]\nvalue = 1\n").find("text"), std::string::npos);
  EXPECT_NE(message("claim = 5\n").find("[[claim]]"), std::string::npos);
  EXPECT_NE(message("[[setting]]\nquote = \"5 ms\"\n").find("reason"), std::string::npos);
  EXPECT_NE(message("[archived]\na = \"123\"\n").find("SHA-256"), std::string::npos);
  EXPECT_NE(message("x = [" + std::string(5000, '[')).find("line"), std::string::npos);
  EXPECT_NE(message(std::string("[[claim]]\ntext = \"\xff\xfe\"\n")).find("line"),
            std::string::npos);
  EXPECT_EQ(message(head + "figure = \"decode_ms\"\nrecords = \"nowhere\"\n"), "no error");
}

// Whatever lies among the records: findings, no crash.
TEST_F(AuditDocuments, HostileRecords) {
  const std::string sound = canonical_text(peer());
  std::mt19937 random(11);
  for (int i = 0; i < 60; ++i) {
    std::string text = sound;
    for (int k = 0; k < 3; ++k) text[random() % text.size()] = "0{}[]\",:x\xff"[random() % 10];
    std::ofstream(records() + "/" + digits("f" + std::to_string(i), 64) + ".json") << text;
  }
  std::ofstream(records() + "/deep.json") << std::string(100000, '[');
  std::ofstream(records() + "/empty.json") << "";
  std::ofstream(records() + "/list.json") << "[1, 2]";
  std::ofstream(records() + "/types.json")
      << R"({"schema": "penstock-campaign", "runs": [5, {"record": 7}, {"state": "finished"}]})";
  std::ofstream(records() + "/quality.json")
      << R"({"quality_key": 5, "measurements": [1], "rows": {"a": 1}})";
  std::string claims;
  for (int i = 0; i < 60; ++i) {
    claims +=
        "[[claim]]\ntext = \"13.53 tok/s\"\nfigure = \"decode_tok_s\"\n"
        "requires = [\"quality\", \"footprint\"]\nrecords = [\"" +
        digits("f" + std::to_string(i), 64) + ".json\"]\n";
  }
  for (const char* name : {"deep.json", "empty.json", "list.json", "types.json"}) {
    claims += std::string("[[claim]]\ntext = \"5 ms\"\nformula = \"{/a} + {/0}\"\nrecords = \"") +
              name + "\"\n";
  }
  const Audit audit = audit_of(claims);
  EXPECT_EQ(audit.claims.size(), 64u);
  for (const ClaimResult& result : audit.claims) EXPECT_FALSE(result.ok());
  EXPECT_FALSE(audit_table(audit).empty());
  EXPECT_FALSE(audit_markdown(audit).empty());
  EXPECT_FALSE(
      audit_json(audit).dump(1, ' ', false, nlohmann::json::error_handler_t::replace).empty());
}

TEST_F(AuditDocuments, EveryOutputSaysTheSame) {
  const Audit audit = audit_of(
      "[[claim]]\nid = \"a|b\"\ntext = \"13.99 tok/s\"\nfigure = \"decode_tok_s\"\nrecords = " +
          three(peer()) + "\n",
      "13.99 tok/s and 5 | GB <script> 7 GB\n");
  const auto json = audit_json(audit);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["claims"][0]["findings"][0]["rule"], "R1");
  EXPECT_EQ(json["claims"][0]["origins"].size(), 3u);
  EXPECT_EQ(json["claims"][0]["origins"][0]["pointers"][0], "/values/decode_tokens");
  EXPECT_EQ(json["unclaimed"][0]["text"], "7 GB");
  EXPECT_NE(audit_table(audit).find("MISMATCH R1: claimed 13.99 tok/s, the records give 13.53"),
            std::string::npos)
      << audit_table(audit);
  EXPECT_NE(audit_markdown(audit).find("| a\\|b | 13.99 tok/s | 13.5303 | MISMATCH |"),
            std::string::npos)
      << audit_markdown(audit);
  const Audit nothing = audit_of("");
  EXPECT_TRUE(nothing.ok());
  EXPECT_NE(audit_table(nothing).find("nothing to check"), std::string::npos);
}

}  // namespace
}  // namespace penstock::measure
