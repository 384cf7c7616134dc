// The cases T1 to T31 of spec/streaming.md §J.5: each is what somebody published once, made
// generic. Beside what must be found stands what must pass, so that no case passes by refusing all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "audit_support.h"
#include "base/error.h"

namespace penstock::measure {
namespace {

class AuditCases : public AuditTest {};

// Three records of the decode that T1 to T3 are about.
std::string quoted(const std::string& id) {
  return "\"" + id + "\"";
}

TEST_F(AuditCases, T1AHeadlineWithoutItsRun) {
  Json run = peer();
  run["values"]["decode_ms"] = 63 * 72.49;
  const std::string id = add(run);
  const std::string lost(64, 'a');
  const Audit audit = audit_of(
      "[[claim]]\nid = \"rate\"\ntext = \"13.88 tok/s\"\nfigure = \"decode_tok_s\"\nrecords = [" +
      quoted(id) + ", " + quoted(lost) + "]\n[[claim]]\nid = \"time\"\ntext = \"72.04 ms/tok\"\n" +
      "figure = \"decode_ms\"\nrecords = [" + quoted(id) + ", " + quoted(lost) +
      "]\n[[claim]]\nid = \"true\"\ntext = \"13.80 tok/s\"\nfigure = \"decode_tok_s\"\nrecords = "
      "[" +
      quoted(id) + "]\n");
  EXPECT_EQ(found(audit, "rate"), (Set{"MISMATCH R1", "NO SOURCE R2", "UNDER-SAMPLED R8"}));
  EXPECT_EQ(found(audit, "time"), (Set{"MISMATCH R1", "NO SOURCE R2", "UNDER-SAMPLED R8"}));
  EXPECT_EQ(found(audit, "true"), Set{"UNDER-SAMPLED R8"});
  EXPECT_NE(reasons(audit, "rate").find("none of the 1 records"), std::string::npos);
  EXPECT_FALSE(audit.ok());
}

TEST_F(AuditCases, T2PartsThatAddUpAreNoSource) {
  Json run = peer();
  run["values"]["arena_share"] = 0.8433;
  run["values"]["read_ahead_share"] = 0.0691;
  const std::string ids = three(run);
  const Audit audit = audit_of(
      "[[claim]]\nid = \"sum\"\ntext = \"92.85 % = 87.80 + 5.05\"\nvalue = \"92.85\"\nunit = "
      "\"%\"\n"
      "figure = \"hit_pct\"\nrecords = " +
      ids + "\n[[claim]]\nid = \"true\"\ntext = \"91.24 %\"\nfigure = \"hit_pct\"\nrecords = " +
      ids + "\n");
  EXPECT_EQ(found(audit, "sum"), Set{"MISMATCH R1"});
  EXPECT_EQ(found(audit, "true"), Set{});
}

TEST_F(AuditCases, T3ASetThatAgreesWithItselfOnly) {
  Json run = peer();
  run["values"].update({{"misses_per_token", 42.1},
                        {"decode_mb_per_token", 107.8},
                        {"stall_ms_per_token", 16.05},
                        {"compute_ms_per_token", 55.79}});
  const Audit audit = audit_of("[[claim]]\nid = \"c\"\ntext = \"x\"\nrecords = " + three(run) + R"(
values = [
  {text = "34.3 misses/token", figure = "misses_per_token"},
  {text = "84.0 MB/token", figure = "mb_per_token"},
  {text = "13.60 ms wait", figure = "stall_ms"},
  {text = "57.4 ms compute", formula = "{/values/compute_ms_per_token}"},
  {text = "42.1 misses/token", figure = "misses_per_token"},
  {text = "107.8 MB/token", figure = "mb_per_token"},
  {text = "16.05 ms wait", figure = "stall_ms"},
  {text = "55.79 ms compute", formula = "{/values/compute_ms_per_token}"},
]
)");
  for (const char* id : {"c.1", "c.2", "c.3", "c.4"}) {
    EXPECT_EQ(found(audit, id), Set{"MISMATCH R1"}) << id;
  }
  for (const char* id : {"c.5", "c.6", "c.7", "c.8"}) EXPECT_EQ(found(audit, id), Set{}) << id;
}

TEST_F(AuditCases, T4AChangeWithOneArm) {
  Json on = peer();
  on["values"]["misses_per_token"] = 34.3;
  Json off = peer();
  off["values"]["misses_per_token"] = 83.8;
  const std::string with = three(on);
  const std::string claim =
      "[[claim]]\ntext = \"83.8 -> 34.3 misses/token, -59 %\"\nvalue = \"-59\"\nunit = \"%\"\n"
      "statistic = \"median\"\nfigure = \"misses_per_token\"\nrecords = " +
      with + "\n";
  EXPECT_EQ(found(audit_of(claim + "id = \"c\"\n"), "c"), Set{"NO SOURCE R9"});
  // An arm that is named and not archived is no better.
  EXPECT_EQ(found(audit_of(claim + "id = \"c\"\nagainst = {records = [\"" + std::string(64, 'b') +
                           "\"]}\n"),
                  "c"),
            Set{"NO SOURCE R9"});
  EXPECT_EQ(found(audit_of(claim + "id = \"c\"\nagainst = {records = " + three(off) + "}\n"), "c"),
            Set{});
}

TEST_F(AuditCases, T5AndT6RangesAreTheRunsOwn) {
  std::string ids;
  const double rates[] = {12.96, 13.53, 13.80}, hits[] = {90.73, 91.32, 91.24};
  const double bytes[] = {114.5, 99.9, 107.8};
  for (int i = 0; i < 3; ++i) {
    Json run = peer();
    run["values"]["decode_ms"] = 63000 / rates[i];
    run["values"]["arena_share"] = hits[i] / 100;
    run["values"]["read_ahead_share"] = 0;
    run["values"]["decode_mb_per_token"] = bytes[i];
    ids += (i == 0 ? "\"" : ", \"") + add(run) + "\"";
  }
  const Audit audit = audit_of("[[claim]]\nid = \"c\"\ntext = \"x\"\nrecords = [" + ids + R"(]
values = [
  {text = "12.96-13.88 tok/s", figure = "decode_tok_s"},
  {text = "90.73 to 92.85 %", figure = "hit_pct"},
  {text = "84.0 to 114.5 MB/token", figure = "mb_per_token"},
  {text = "12.96-13.80 tok/s", figure = "decode_tok_s"},
  {text = "90.73 to 91.32 %", figure = "hit_pct"},
  {text = "99.9 to 114.5 MB/token", figure = "mb_per_token"},
]
)");
  for (const char* id : {"c.1", "c.2", "c.3"}) EXPECT_EQ(found(audit, id), Set{"MISMATCH R10"});
  for (const char* id : {"c.4", "c.5", "c.6"}) EXPECT_EQ(found(audit, id), Set{});
}

TEST_F(AuditCases, T7AStoredSummaryThatDisagrees) {
  Json run = peer();
  run["summary"] = {{"decode_tok_s", 13.88}, {"prefill_ms", 3191.98}};
  Json honest = peer();
  honest["summary"] = {{"decode_tok_s", 13.53}, {"prefill_ms", 3191.98}};
  Json alone = peer();
  alone["summary"] = {{"splendour", 7}};
  const auto claim = [](const std::string& ids, const std::string& what) {
    return "[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\n" + what + "\nrecords = " + ids + "\n";
  };
  const std::string figure = "figure = \"decode_tok_s\"";
  EXPECT_EQ(found(audit_of(claim(three(run), figure)), "c"), Set{"MISMATCH R15"});
  const std::string sound = three(honest);
  EXPECT_EQ(found(audit_of(claim(sound, figure)), "c"), Set{});
  EXPECT_EQ(found(audit_of(claim(three(alone), figure)), "c"), Set{"NO SOURCE R15"});
  // The summary itself is no source, be it right.
  EXPECT_EQ(found(audit_of(claim(sound, "formula = \"{/summary/decode_tok_s}\"")), "c"),
            Set{"NO SOURCE R15"});
}

TEST_F(AuditCases, T8RunsThatEndedAfterOneToken) {
  Json usable = peer();
  usable["values"]["decode_ms"] = 63 / 3.22 * 1000;
  Json ended = peer();
  ended["values"]["decode_tokens"] = 1;
  ended["values"]["decode_ms"] = 0;
  ended["outcome"]["stop_reason"] = "end of text";
  const std::string good = three(usable);
  const std::string all = good.substr(0, good.size() - 1) + ", " + quoted(add(ended)) + "]";
  const auto claim = [&](const std::string& value, const std::string& ids) {
    return "[[claim]]\nid = \"c\"\ntext = \"decode " + value +
           " tok/s\"\nfigure = \"decode_tok_s\"\nrecords = " + ids + "\n";
  };
  // It gives no rate at all; with some time it would give one of nothing.
  EXPECT_EQ(found(audit_of(claim("3.81", all)), "c"), (Set{"MISMATCH R1", "MISLABELLED R12"}));
  ended["values"]["decode_ms"] = 0.01;
  const std::string timed = good.substr(0, good.size() - 1) + ", " + quoted(add(ended)) + "]";
  EXPECT_EQ(found(audit_of(claim("3.81", timed)), "c"), (Set{"MISMATCH R1", "MISLABELLED R12"}));
  EXPECT_EQ(found(audit_of(claim("3.22", timed)), "c"), Set{"MISLABELLED R12"});
  EXPECT_EQ(found(audit_of(claim("3.22", good)), "c"), Set{});
}

TEST_F(AuditCases, T9ToT11BytesOfAWholeRun) {
  Json large = peer();
  large["inputs"]["prompt"]["tokens"] = large["values"]["prefill_tokens"] = 1264;
  large["values"]["run_storage_mb"] = 105851.73;
  Json small = peer();
  small["inputs"]["prompt"]["tokens"] = small["values"]["prefill_tokens"] = 22;
  small["values"]["run_storage_mb"] = 33428.34;
  const std::string a = three(large), b = three(small);
  const std::string formula = "formula = \"{/values/run_storage_mb} / 65\"\n";
  const Audit audit = audit_of(
      "[[claim]]\nid = \"t9\"\ntext = \"1,628 MB per decode token\"\n" + formula + "records = " +
      a + "\n[[claim]]\nid = \"t10\"\ntext = \"515 MB per decode token\"\n" + formula +
      "records = " + b + "\n[[claim]]\nid = \"t11\"\ntext = \"the whole run reads 3.2x less\"\n" +
      "statistic = \"median\"\nfigure = \"run_storage_mb\"\nrecords = " + a +
      "\nagainst = {records = " + b + "}\n[[claim]]\nid = \"true\"\n" +
      "text = \"105,852 MB were read by the whole run\"\nfigure = \"run_storage_mb\"\nrecords = " +
      a + "\n");
  EXPECT_EQ(found(audit, "t9"), Set{"MISLABELLED J.3"});
  EXPECT_EQ(found(audit, "t10"), (Set{"MISLABELLED J.3", "MISMATCH R1"}));
  EXPECT_EQ(found(audit, "t11"), Set{"UNCOMPARABLE R7"});
  EXPECT_EQ(found(audit, "true"), Set{});
}

TEST_F(AuditCases, T12ARatioWithoutItsPair) {
  std::string ids;
  for (const double mb : {100.0, 810.0, 57.0, 1494.0}) {
    Json run = peer();
    run["values"]["run_storage_mb"] = mb;
    ids += (ids.empty() ? "\"" : ", \"") + add(run) + "\"";
  }
  const Audit audit = audit_of(
      "[[claim]]\nid = \"c\"\ntext = \"7.8x fewer transfers\"\nfigure = \"run_storage_mb\"\n"
      "statistic = \"median\"\nrecords = [" +
      ids + "]\n");
  EXPECT_EQ(found(audit, "c").count("NO SOURCE R9"), 1u);
  EXPECT_NE(reasons(audit, "c").find("0.04 to 26.21, nearest 8.10"), std::string::npos)
      << reasons(audit, "c");
}

TEST_F(AuditCases, T13AndT14PromptsByTheirMeasuredSize) {
  const auto prompt = [&](int tokens, double rate) {
    Json run = peer();
    run["inputs"]["prompt"]["tokens"] = run["values"]["prefill_tokens"] = tokens;
    run["values"]["prefill_ms"] = tokens / rate * 1000;
    return three(run);
  };
  const std::string ub1024 = prompt(1264, 38.11), ub2048 = prompt(1264, 63.27);
  const std::string other = prompt(2048, 363.58);
  const auto claim = [](const std::string& id, const std::string& text, const std::string& ids) {
    return "[[claim]]\nid = \"" + id + "\"\ntext = \"" + text +
           "\"\nfigure = \"prefill_tok_s\"\nstatistic = \"median\"\nrecords = " + ids + "\n";
  };
  const Audit audit = audit_of(
      claim("1k", "1K prefill 38.1 tok/s", ub1024) + claim("2k", "2K prefill 63.3 tok/s", ub2048) +
      claim("true", "1,264-token prefill 38.1 tok/s", ub1024) +
      claim("true2k", "2K prefill 363.58 tok/s", other) +
      claim("said", "prefill 38.1 tok/s", ub1024) + "prompt_tokens = 1024\n" +
      claim("t14", "prefill 5.7x as fast", other) + "against = {records = " + ub2048 + "}\n" +
      claim("named", "prefill 5.7x as fast", other) + "against = {records = " + ub2048 +
      ", differs = [\"prompt\"]}\n");
  EXPECT_EQ(found(audit, "1k"), Set{"MISLABELLED J.3"});
  EXPECT_EQ(found(audit, "2k"), Set{"MISLABELLED J.3"});
  EXPECT_EQ(found(audit, "said"), Set{"MISLABELLED J.3"});
  EXPECT_EQ(found(audit, "true"), Set{});
  EXPECT_EQ(found(audit, "true2k"), Set{});
  EXPECT_EQ(found(audit, "t14"), Set{"UNCOMPARABLE R7"});
  EXPECT_EQ(found(audit, "named"), Set{});
}

TEST_F(AuditCases, T15AStatisticThatIsNotNamed) {
  std::string ids;
  for (const double ms : {384.31, 340.83, 340.94}) {
    Json run = peer();
    run["values"]["load_ms"] = ms;
    ids += (ids.empty() ? "\"" : ", \"") + add(run) + "\"";
  }
  const std::string claim =
      "[[claim]]\nid = \"c\"\ntext = \"init 341 ms\"\nfigure = \"load_s\"\n"
      "records = [" +
      ids + "]\n";
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"MISLABELLED R8"});
  EXPECT_EQ(found(audit_of(claim + "statistic = \"median\"\n"), "c"), Set{});
  EXPECT_EQ(found(audit_of(claim + "statistic = \"max\"\n"), "c"), Set{"MISMATCH R1"});
}

TEST_F(AuditCases, T16CapacitiesThatNoRunHad) {
  Json run = peer();
  run["values"]["slots"] = 2728;
  run["values"]["arena_mb"] = 3800;
  const Audit audit = audit_of("[[claim]]\nid = \"c\"\ntext = \"x\"\nrecords = " + three(run) + R"(
values = [
  {text = "2,728-3,015 slots", value = ["2,728", "3,015"], unit = "slots", formula = "{/values/slots}"},
  {text = "up to 4.2 GB", statistic = "max", formula = "{/values/arena_mb} / 1000"},
  {text = "2,728 slots", value = "2,728", unit = "slots", formula = "{/values/slots}"},
  {text = "up to 3.80 GB", statistic = "max", formula = "{/values/arena_mb} / 1000"},
]
)");
  EXPECT_EQ(found(audit, "c.1"), Set{"MISMATCH R10"});
  EXPECT_EQ(found(audit, "c.2"), Set{"MISMATCH R1"});
  EXPECT_EQ(found(audit, "c.3"), Set{});
  EXPECT_EQ(found(audit, "c.4"), Set{});
}

TEST_F(AuditCases, T17NumbersThatAStringPrinted) {
  Json run = peer();
  run["values"].update({{"dropped", "1.60 GB"},
                        {"anonymous", "0.00 GB anon"},
                        {"stolen", "0 slots stolen"},
                        {"locked_gb", 2.90}});
  const Audit audit = audit_of("[[claim]]\nid = \"c\"\ntext = \"x\"\nrecords = " + three(run) + R"(
values = [
  {text = "dropped 1.60 GB", formula = "{/values/dropped}"},
  {text = "0.00 GB anon", formula = "{/values/anonymous}"},
  {text = "0 slots stolen", value = "0", unit = "slots", formula = "{/values/stolen}"},
  {text = "dropped 1.60 GB", formula = "1.6"},
  {text = "locked 2.90 GB", formula = "{/values/locked_gb}"},
]
)");
  for (const char* id : {"c.1", "c.2", "c.3", "c.4"}) {
    EXPECT_EQ(found(audit, id), Set{"NOT MEASURED R13"}) << id;
  }
  EXPECT_EQ(found(audit, "c.5"), Set{});
}

TEST_F(AuditCases, T18ASavingAgainstWhatTheOtherSideDoes) {
  Json theirs = peer(), ours = peer();
  theirs["values"]["locked_gb"] = 4.514 - 1.279;
  ours["values"]["locked_gb"] = 2.90;
  const std::string a = three(theirs), b = three(ours);
  const auto claim = [&](const std::string& text, const std::string& against) {
    return "[[claim]]\nid = \"c\"\ntext = \"" + text +
           "\"\nstatistic = \"median\"\nformula = \"{/values/locked_gb}\"\nrecords = " + a + "\n" +
           against;
  };
  const std::string both = "against = {records = " + b + "}\n";
  EXPECT_EQ(found(audit_of(claim("+1.60 GB freed vs upstream", both)), "c"), Set{"MISMATCH R1"});
  EXPECT_EQ(found(audit_of(claim("+0.34 GB freed vs upstream", "")), "c").count("NO SOURCE R9"),
            1u);
  EXPECT_NE(reasons(audit_of(claim("+1.60 GB freed vs upstream", both)), "c").find("0.33"),
            std::string::npos);
  // 3.235 less 2.90 is 0.335: both 0.33 and 0.34 are within half a unit.
  EXPECT_EQ(found(audit_of(claim("+0.34 GB freed vs upstream", both)), "c"), Set{});
}

TEST_F(AuditCases, T19AReclaimThatNobodyLookedAt) {
  Json run = own();
  run["memory"] = {sample("start"), sample("end")};
  const auto claim = [](const std::string& ids) {
    return "[[claim]]\nid = \"c\"\ntext = \"reclaimed after the prompt: footprint 0.001 MB\"\n"
           "requires = [\"footprint\"]\nformula = \"{/memory/1/footprint} / 1e6\"\nrecords = " +
           ids + "\n";
  };
  EXPECT_EQ(found(audit_of(claim(three(run))), "c"), Set{"NOT MEASURED R13"});
  EXPECT_EQ(found(audit_of(claim(three(own()))), "c"), Set{});
}

TEST_F(AuditCases, T20ASideFactInNoOutput) {
  add(peer());
  const Audit audit = audit_of(
      "[[claim]]\nid = \"c\"\ntext = \"96 graph splits per token\"\nvalue = \"96\"\n"
      "unit = \"graph splits\"\n");
  EXPECT_EQ(found(audit, "c"), Set{"NO SOURCE R2"});
}

TEST_F(AuditCases, T21OneRunIsNoSample) {
  const std::string one = "[" + quoted(add(peer())) + "]";
  const auto claim = [](const std::string& ids, const std::string& more = {}) {
    return "[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\nfigure = \"decode_tok_s\"\nrecords = " +
           ids + "\n" + more;
  };
  EXPECT_EQ(found(audit_of(claim(one)), "c"), Set{"UNDER-SAMPLED R8"});
  EXPECT_EQ(found(audit_of(claim(three(peer()))), "c"), Set{});
  const Audit accepted = audit_of(
      claim(one, "accept = [\"UNDER-SAMPLED\"]\nreason = \"the machine is no longer there\"\n"));
  EXPECT_EQ(found(accepted, "c"), Set{});
  EXPECT_TRUE(accepted.ok());
}

TEST_F(AuditCases, T22AColdStartCalledPrefill) {
  Json run = peer();
  run["values"]["cold_prefill_ms"] = 3191.98;
  run["values"].erase("prefill_ms");
  const std::string ids = three(run);
  const auto claim = [&](const std::string& text, const std::string& more = {}) {
    return "[[claim]]\nid = \"c\"\ntext = \"" + text +
           "\"\nfigure = \"cold_prefill_tok_s\"\nrecords = " + ids + "\n" + more;
  };
  EXPECT_EQ(found(audit_of(claim("prefill 320.80 tok/s")), "c"), Set{"MISLABELLED R6"});
  EXPECT_EQ(found(audit_of(claim("prefill 320.80 tok/s", "phase = \"cold start\"\n")), "c"),
            Set{"MISLABELLED R6"});
  EXPECT_EQ(found(audit_of(claim("prefill from a cold start 320.80 tok/s")), "c"), Set{});
  EXPECT_EQ(found(audit_of(claim("320.80 tok/s", "phase = \"prefill\"\n")), "c"),
            Set{"MISLABELLED R6"});
}

TEST_F(AuditCases, T23RunsWhoseOptionsAreUnknown) {
  Json run = peer();
  run["argv"] = nullptr;
  run["environment"] = nullptr;
  run["values"]["arena_share"] = 0.8566;
  run["values"]["read_ahead_share"] = 0.0566;
  const std::string ids = three(run);
  const std::string accept = "accept = [\"UNIDENTIFIED BUILD\"]\nreason = \"an old run\"\n";
  const Audit audit = audit_of(
      "[[claim]]\nid = \"hits\"\ntext = \"91.32 %\"\nfigure = \"hit_pct\"\nrecords = " + ids +
      "\n" + accept +
      "[[claim]]\nid = \"rate\"\ntext = \"13.53 tok/s\"\nfigure = \"decode_tok_s\"\n" +
      "records = " + ids + "\n" + accept + "[[claim]]\nid = \"plain\"\ntext = \"13.53 tok/s\"\n" +
      "figure = \"decode_tok_s\"\nrecords = " + ids + "\n");
  // A rate can be lived with; hits of an unknown routing cannot.
  EXPECT_EQ(found(audit, "hits"), Set{"UNIDENTIFIED BUILD R5"});
  EXPECT_EQ(found(audit, "rate"), Set{});
  EXPECT_EQ(found(audit, "plain"), Set{"UNIDENTIFIED BUILD R5"});
}

TEST_F(AuditCases, T24ResultsOlderThanTheirBinary) {
  const auto claim = [](const std::string& ids) {
    return "[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\nfigure = \"decode_tok_s\"\nrecords = " +
           ids + "\n";
  };
  Json run = peer();
  run["producer"]["executable_modified"] = 1096.0;
  run["producer"]["sources_modified"] = 1093.0;
  const Audit audit = audit_of(claim(three(run)));
  EXPECT_EQ(found(audit, "c"), Set{"UNIDENTIFIED BUILD R16"});
  EXPECT_NE(reasons(audit, "c").find("96 s newer"), std::string::npos);
  EXPECT_NE(reasons(audit, "c").find("93 s newer"), std::string::npos);
  Json unknown = peer();
  unknown["producer"]["executable_sha256"] = nullptr;
  EXPECT_EQ(found(audit_of(claim(three(unknown))), "c"), Set{"UNIDENTIFIED BUILD R4"});
  Json late = own();
  late["producer"]["executable_modified"] = 1096.0;
  const std::string text =
      "[[claim]]\nid = \"c\"\ntext = \"10.00 tok/s\"\n"
      "figure = \"decode_tok_s\"\nrecords = ";
  EXPECT_EQ(found(audit_of(text + three(late) + "\n"), "c"), Set{"UNIDENTIFIED BUILD R16"});
  EXPECT_EQ(found(audit_of(text + three(own()) + "\n"), "c"), Set{});
}

TEST_F(AuditCases, T25RecordsOfAnotherWriter) {
  Json run = peer();
  run["hardware"] = "a laptop";
  const auto claim = [](const std::string& ids) {
    return "[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\nfigure = \"decode_tok_s\"\nrecords = " +
           ids + "\n";
  };
  EXPECT_EQ(found(audit_of(claim(three(run))), "c"), Set{"NO SOURCE R3"});
  // A file of no schema has no figures, and its name says nothing about its bytes.
  std::ofstream(records() + "/results.json") << R"({"runs": [{"decode": 13.53}]})";
  EXPECT_EQ(found(audit_of(claim("[\"results.json\"]")), "c"),
            (Set{"NO SOURCE R3", "UNIDENTIFIED BUILD R4"}));
}

TEST_F(AuditCases, T26ALogOfAnotherCoverage) {
  Json run = peer();
  run["output"] = {{"stdout", archived("E=512 b=0: 200 windows, 0 mismatches\n"
                                       "E=256 b=0.85: 100 windows, 0 mismatches\n"
                                       "E=2560 b=0: 100 windows, 7 mismatches\n")},
                   {"stderr", nullptr}};
  const std::string id = add(run);
  const auto claim = [&](const std::string& pattern, const std::string& more = {}) {
    return "[[claim]]\nid = \"c\"\ntext = \"0 mismatches\"\nvalue = \"0\"\nunit = \"mismatches\"\n"
           "requires = [\"coverage\"]\n" +
           (pattern.empty()
                ? ""
                : "log = {record = \"" + id + "\", pattern = \"" + pattern + "\"" + more + "}\n");
  };
  EXPECT_EQ(found(audit_of(claim("")), "c"), (Set{"NO SOURCE R2", "NO SOURCE R14"}));
  EXPECT_EQ(found(audit_of(claim("E=128 *, # mismatches")), "c"), Set{"NO SOURCE R14"});
  EXPECT_EQ(found(audit_of(claim("E=256 b=0: *, # mismatches")), "c"), Set{"NO SOURCE R14"});
  EXPECT_EQ(found(audit_of(claim("E=256 *, # mismatches")), "c"), Set{});
  EXPECT_EQ(found(audit_of(claim("E=2560 *, # mismatches")), "c"), Set{"MISMATCH R1"});
  EXPECT_EQ(found(audit_of(claim("E=256 *, # mismatches", ", count = 2")), "c"),
            Set{"NO SOURCE R14"});
  std::ofstream(records() + "/files/" +
                archive("E=512 b=0: 200 windows, 0 mismatches\n"
                        "E=256 b=0.85: 100 windows, 0 mismatches\n"
                        "E=2560 b=0: 100 windows, 7 mismatches\n"))
      << "E=256 b=0: 0 mismatches\n";
  EXPECT_EQ(found(audit_of(claim("E=256 *, # mismatches")), "c").count("NO SOURCE R2"), 1u);
}

TEST_F(AuditCases, T27ASpeedWithoutTheQualityOfWhatWasTimed) {
  Json run = own();
  run["lossy"] = {"moce"};
  run["counters"][0]["counters"]["cache_aware_routing"] = {
      {"total", {{"replaced", 20}, {"slots", 100}}}};
  const std::string ids = three(run);
  const std::string claim =
      "[[claim]]\nid = \"c\"\ntext = \"10.00 tok/s\"\nfigure = \"decode_tok_s\"\nrecords = " + ids +
      "\n";
  const auto measured = [&](const std::string& key, const Json& list) {
    std::ofstream(records() + "/quality.json")
        << Json{{"schema", "penstock-quality-1"}, {"quality_key", key}, {"measurements", list}};
  };
  Json kld = {{"kind", "kld"},
              {"model_id", digits("m", 64)},
              {"base_model_id", digits("m", 64)},
              {"mean_kld", 0.01},
              {"same_top", 0.995},
              {"ln_ppl_ratio_interval", {0.0, 0.01}},
              {"routing", {{"replaced_share", 0.21}}}};
  const Json tasks = {{"kind", "tasks"}, {"accuracy", 0.9}};
  const Json judged = {kld, tasks};
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"QUALITY MISSING R11"});
  measured(digits("another file", 64), judged);
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"QUALITY MISSING R11"});
  measured(digits("quality", 64), Json::array());
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"QUALITY MISSING R11"});
  measured(digits("quality", 64), judged);
  EXPECT_EQ(found(audit_of(claim), "c"), Set{});
  // One tier is not two, and a perplexity is none.
  measured(digits("quality", 64), Json::array({kld}));
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"QUALITY MISSING R11"});
  measured(digits("quality", 64), Json::array({{{"kind", "perplexity"}, {"ppl", 4.0}}}));
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"QUALITY MISSING R11"});
  // Beyond the limits, and of a run that replaced much less.
  Json bad = kld;
  bad["mean_kld"] = 0.564;
  measured(digits("quality", 64), {bad, tasks});
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"QUALITY MISSING R11"});
  EXPECT_EQ(found(audit_of("[quality_limits]\nmean_kld = 0.6\n" + claim), "c"), Set{});
  EXPECT_THROW(audit_of("[quality_limits]\nkld = 0.6\n" + claim), Error);
  Json other = kld;
  other["routing"]["replaced_share"] = 0.05;
  measured(digits("quality", 64), {other, tasks});
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"QUALITY MISSING R11"});
  // Records of `eval` say it as well as the store does.
  measured(digits("quality", 64), Json::array({tasks}));
  Json evaluated = own();
  evaluated["evaluation"] = kld;
  add(evaluated);
  EXPECT_EQ(found(audit_of(claim), "c"), Set{});
  // What another program ran has no key of ours.
  EXPECT_EQ(found(audit_of("[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\n"
                           "figure = \"decode_tok_s\"\nrequires = [\"quality\"]\nrecords = " +
                           three(peer()) + "\n"),
                  "c"),
            Set{"QUALITY MISSING R11"});
}

// An evaluation is repeated to the bit, so one is enough; what it was timed at is not.
TEST_F(AuditCases, OneEvaluationIsEnough) {
  Json run = own();
  run["evaluation"] = {{"kind", "perplexity"},
                       {"ppl", 4.25},
                       {"seconds", 9.5},
                       {"streaming", {{"bytes_per_token", 3e6}}}};
  const std::string records = "records = [\"" + add(run) + "\"]\n";
  const auto claim = [&](const char* value, const char* unit, const char* member) {
    return fmt::format(
        "[[claim]]\nid = \"c\"\ntext = \"{0} {1}\"\nvalue = \"{0}\"\nunit = \"{1}\"\n"
        "formula = \"{{/evaluation/{2}}}\"\n",
        value, unit, member);
  };
  EXPECT_EQ(found(audit_of(claim("4.25", "perplexity", "ppl") + records), "c"), Set{});
  EXPECT_EQ(found(audit_of(claim("4.26", "perplexity", "ppl") + records), "c"), Set{"MISMATCH R1"});
  EXPECT_EQ(found(audit_of(claim("9.5", "s", "seconds") + records), "c"), Set{"UNDER-SAMPLED R8"});
  EXPECT_EQ(found(audit_of(claim("3000000", "B", "streaming/bytes_per_token") + records), "c"),
            Set{"UNDER-SAMPLED R8"});
}

TEST_F(AuditCases, T28RunsOfACampaignThatAreLeftOut) {
  const std::string kept[] = {add(peer()), add(peer()), add(peer())};
  Json slow = peer();
  slow["values"]["decode_ms"] = 63 / 0.28 * 1000;
  const std::string slow_id = add(slow);
  Json campaign = {{"schema", kCampaignSchema},
                   {"version", 1},
                   {"run_id", digits("campaign", 32)},
                   {"name", "peers"},
                   {"started", 1.0},
                   {"ended", 2.0},
                   {"producer", Json::object()},
                   {"argv", Json::array()},
                   {"inputs", Json::object()},
                   {"definition", Json::object()},
                   {"definition_sha256", digits("d", 64)},
                   {"machine", Json::object()},
                   {"conditions", Json::object()},
                   {"control", nullptr},
                   {"arms", {{{"name", "plain"}, {"program", "command"}}}},
                   {"prompts", Json::array()},
                   {"runs", Json::array()},
                   {"outcome", {{"state", "finished"}}}};
  const auto run = [&](const std::string& arm, const Json& record) {
    campaign["runs"].push_back({{"order", campaign["runs"].size()},
                                {"arm", arm},
                                {"prompt", "p"},
                                {"repeat", 0},
                                {"control", false},
                                {"cold", true},
                                {"state", "finished"},
                                {"record", record},
                                {"reason", nullptr}});
  };
  for (const std::string& id : kept) run("plain", id);
  run("cache", slow_id);
  const std::string path = write_record(records(), campaign);
  const std::string claim =
      "[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\n"
      "figure = \"decode_tok_s\"\nrecords = [\"peers#plain\"]\n";
  EXPECT_TRUE(audit_of(claim).ok());
  // Nothing of a campaign whose control moved is quoted, compared or not.
  std::filesystem::rename(path, root() + "/steady.json");
  Json moved = campaign;
  moved["control"] = {
      {"arm", "plain"}, {"first", 10.0}, {"last", 8.0}, {"moved", -0.2}, {"void", true}};
  const std::string moved_path = write_record(records(), moved);
  EXPECT_EQ(found(audit_of(claim), "c"), Set{"UNCOMPARABLE R7"});
  std::filesystem::remove(moved_path);
  std::filesystem::rename(root() + "/steady.json", path);
  // The slow run is taken away.
  std::filesystem::rename(records() + "/" + slow_id + ".json", root() + "/slow.json");
  const Audit missing = audit_of(claim);
  EXPECT_EQ(found(missing, "c"), Set{});
  ASSERT_EQ(missing.others.size(), 1u);
  EXPECT_EQ(missing.others[0].finding.verdict, Verdict::NoSource);
  EXPECT_NE(missing.others[0].finding.reason.find("cache"), std::string::npos);
  EXPECT_FALSE(missing.ok());
  // The best three of four runs of one arm are a choice.
  std::filesystem::rename(root() + "/slow.json", records() + "/" + slow_id + ".json");
  std::filesystem::remove(path);
  campaign["runs"][3]["arm"] = "plain";
  write_record(records(), campaign);
  EXPECT_EQ(found(audit_of("[[claim]]\nid = \"c\"\ntext = \"13.53 tok/s\"\n"
                           "figure = \"decode_tok_s\"\nrecords = [\"" +
                           kept[0] + "\", \"" + kept[1] + "\", \"" + kept[2] + "\"]\n"),
                  "c"),
            Set{"UNDER-SAMPLED R8"});
}

TEST_F(AuditCases, ALimitInTheSentenceDoesNotMakeAPlanAMeasurement) {
  Json run = own();
  run["plan"]["terms"]["arena"] = 4200000000;
  const Audit audit = audit_of("[[claim]]\nid = \"c\"\ntext = \"x\"\nrecords = " + three(run) + R"(
values = [
  {text = "used 4.2 GB under a limit of 8 GiB", value = "4.2", unit = "GB", formula = "{/plan/terms/arena} / 1e9"},
  {text = "the plan gives it 4.2 GB of 8 GiB", value = "4.2", unit = "GB", formula = "{/plan/terms/arena} / 1e9"},
  {text = "4.2 GB planned", value = "4.2", unit = "GB", formula = "{/plan/terms/arena} / 1e9"},
]
)");
  EXPECT_EQ(found(audit, "c.1"), Set{"NOT MEASURED R13"});
  EXPECT_EQ(found(audit, "c.2"), Set{});
  EXPECT_EQ(found(audit, "c.3"), Set{});
}

TEST_F(AuditCases, T29ThePolicyInForce) {
  Json run = peer();
  run["settings"]["watchdog"] = {{"swap_limit", 128 << 20}, {"min_available", 3.0 * (1 << 30)}};
  run["watchdog"] = {{"policy", {{"swap_limit", 64 << 20}, {"min_available", 2.2 * (1 << 30)}}}};
  const Audit audit = audit_of("[[claim]]\nid = \"c\"\ntext = \"x\"\nrecords = " + three(run) + R"(
values = [
  {text = "at most 128 MiB", formula = "{/settings/watchdog/swap_limit} / 1048576"},
  {text = "at most 128 MiB", formula = "{/watchdog/policy/swap_limit} / 1048576"},
  {text = "3.0 GiB free", formula = "{/watchdog/policy/min_available} / 1073741824"},
  {text = "at most 64 MiB", formula = "{/watchdog/policy/swap_limit} / 1048576"},
  {text = "2.2 GiB free", formula = "{/watchdog/policy/min_available} / 1073741824"},
]
)");
  EXPECT_EQ(found(audit, "c.1"), Set{"NOT MEASURED R13"});
  EXPECT_EQ(found(audit, "c.2"), Set{"MISMATCH R1"});
  EXPECT_EQ(found(audit, "c.3"), Set{"MISMATCH R1"});
  EXPECT_EQ(found(audit, "c.4"), Set{});
  EXPECT_EQ(found(audit, "c.5"), Set{});
}

TEST_F(AuditCases, T30WarmFromTheSameText) {
  Json run = own();
  run["inputs"]["profile"] = {{"path", "p"}, {"sha256", digits("p", 64)}, {"overlap", 0.4}};
  const std::string ids = three(run);
  const auto claim = [&](const std::string& text, const std::string& more) {
    return "[[claim]]\nid = \"c\"\ntext = \"" + text +
           "\"\nfigure = \"hit_pct\"\nrecords = " + ids + "\n" + more;
  };
  EXPECT_EQ(found(audit_of(claim("hits 90.00 %", "")), "c"), Set{"MISLABELLED R6"});
  EXPECT_EQ(found(audit_of(claim("hits 90.00 %", "in_sample = false\n")), "c"),
            Set{"MISLABELLED R6"});
  EXPECT_EQ(found(audit_of(claim("hits 90.00 %", "in_sample = true\n")), "c"),
            Set{"MISLABELLED R6"});
  EXPECT_EQ(found(audit_of(claim("hits 90.00 % (in-sample)", "in_sample = true\n")), "c"), Set{});
}

TEST_F(AuditCases, T31WhatIsTruePasses) {
  Json first = peer(), second = peer();
  first["values"] = {{"prefill_tokens", 1024}, {"cold_prefill_ms", 3191.98},
                     {"decode_tokens", 63},    {"decode_ms", 4656.22},
                     {"arena_share", 0.8566},  {"read_ahead_share", 0.0566},
                     {"fill_gb_per_s", 6.94},  {"locked_gb", 2.90}};
  second["values"] = {{"prefill_tokens", 2048}, {"cold_prefill_ms", 5632.86},
                      {"decode_tokens", 63},    {"decode_ms", 4861.89},
                      {"arena_share", 0.8343},  {"read_ahead_share", 0.0730}};
  second["inputs"]["prompt"]["tokens"] = 2048;
  const std::string a = quoted(add(first)), b = quoted(add(second));
  const std::string claims = "[[claim]]\nid = \"a\"\ntext = \"x\"\nrecords = [" + a + R"(]
values = [
  {text = "1K prefill from a cold start 320.80 tok/s", figure = "cold_prefill_tok_s"},
  {text = "13.53 tok/s decode", figure = "decode_tok_s"},
  {text = "hits 91.32 %", figure = "hit_pct"},
  {text = "fill 6.94 GB/s", formula = "{/values/fill_gb_per_s}"},
  {text = "locked 2.90 GB", formula = "{/values/locked_gb}"},
  {text = "0.0 MiB swapped out", figure = "swapped_mib"},
]
[[claim]]
id = "b"
text = "x"
records = [)" + b + R"(]
values = [
  {text = "2K prefill from a cold start 363.58 tok/s", figure = "cold_prefill_tok_s"},
  {text = "12.96 tok/s decode", figure = "decode_tok_s"},
  {text = "hits 90.73 %", figure = "hit_pct"},
]
)";
  const Audit audit = audit_of(claims);
  ASSERT_EQ(audit.claims.size(), 9u);
  for (const ClaimResult& result : audit.claims) {
    EXPECT_EQ(found(audit, result.claim.id), Set{"UNDER-SAMPLED R8"}) << result.claim.text;
    EXPECT_EQ(result.recomputed.size(), 1u);
    ASSERT_FALSE(result.origins.empty());
    EXPECT_FALSE(result.origins[0].pointers.empty());
  }
}

}  // namespace
}  // namespace penstock::measure
