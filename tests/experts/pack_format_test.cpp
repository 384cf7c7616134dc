// The pack's format: every byte where docs/pack.md says, read by offsets of its own; and what is
// refused.
#include "experts/pack_format.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "experts/pack.h"
#include "experts/pack_fixture.h"
#include "experts/pack_identity.h"

namespace penstock::experts::test {
namespace {

template <typename T>
T number(const std::string& bytes, uint64_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <typename T>
void put(std::string& bytes, uint64_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

uint64_t sum_of(const std::string& bytes, uint64_t at, uint64_t n) {
  return xxh64(std::as_bytes(std::span(bytes.data() + at, n)));
}

// Makes the checksums of table and header right again, as who forges a file would.
void seal(std::string& bytes) {
  const uint64_t table = number<uint64_t>(bytes, 40);
  const uint64_t table_bytes = uint64_t{number<uint32_t>(bytes, 24)} * number<uint32_t>(bytes, 28);
  if (table <= bytes.size() && table_bytes <= bytes.size() - table) {
    put(bytes, 232, sum_of(bytes, table, table_bytes));
  }
  put<uint64_t>(bytes, 224, 0);
  put(bytes, 224, sum_of(bytes, 0, 4096));
}

std::string id_at(const std::string& bytes, uint64_t at) {
  return bytes.substr(at, 32);
}

std::string raw(const Sha256& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

TEST(PackFormat, EveryByteIsWhereItShouldBe) {
  const Directory directory;
  PackBench bench(directory);
  PackRequest request = bench.request();
  request.n_trunk = 2;  // the last layer is a draft head's
  request.content_id = true;
  const PackResult result = write_pack(request);
  const std::string bytes = file_bytes(bench.out);
  ASSERT_EQ(bytes.size(), result.file_bytes);

  EXPECT_EQ(bytes.substr(0, 8), "XPRTPACK");
  EXPECT_EQ(number<uint16_t>(bytes, 8), 1);
  EXPECT_EQ(number<uint16_t>(bytes, 10), 1);
  EXPECT_EQ(number<uint32_t>(bytes, 12), 4096u);
  EXPECT_EQ(number<uint32_t>(bytes, 16), 1u + 16u);  // complete, draft head; strides differ
  EXPECT_EQ(number<uint32_t>(bytes, 20), 1u);
  EXPECT_EQ(number<uint32_t>(bytes, 24), 3u);
  EXPECT_EQ(number<uint32_t>(bytes, 28), 128u);
  EXPECT_EQ(number<uint64_t>(bytes, 32), bytes.size());
  const auto table = number<uint64_t>(bytes, 40);
  const auto sums = number<uint64_t>(bytes, 48);
  const auto meta = number<uint64_t>(bytes, 64);
  const auto data = number<uint64_t>(bytes, 80);
  EXPECT_EQ(table, 4096u);
  EXPECT_EQ(data, 8192u);
  EXPECT_EQ(number<uint64_t>(bytes, 88), 25u);
  EXPECT_EQ(number<uint64_t>(bytes, 56), 25u * 8);
  EXPECT_EQ(meta, sums + 25 * 8);
  EXPECT_EQ(meta + number<uint64_t>(bytes, 72), bytes.size());
  EXPECT_EQ(id_at(bytes, 96), raw(bench.model.header_id()));
  Sha256Stream whole;
  const std::string source = file_bytes(bench.path);
  whole.update(source.data(), source.size());
  EXPECT_EQ(id_at(bytes, 128), raw(whole.finish()));
  EXPECT_EQ(id_at(bytes, 160), std::string(64, '\0').substr(32));
  EXPECT_EQ(id_at(bytes, 192), std::string(32, '\0'));
  std::string header = bytes.substr(0, 4096);
  put<uint64_t>(header, 224, 0);
  EXPECT_EQ(number<uint64_t>(bytes, 224), sum_of(header, 0, 4096));
  EXPECT_EQ(number<uint64_t>(bytes, 232), sum_of(bytes, table, 3 * 128));
  EXPECT_EQ(number<uint64_t>(bytes, 240), sum_of(bytes, sums, 25 * 8));
  EXPECT_EQ(number<uint64_t>(bytes, 248), sum_of(bytes, meta, bytes.size() - meta));
  EXPECT_EQ(id_at(bytes, 256), raw(bench.model.model_id()));
  EXPECT_EQ(number<uint32_t>(bytes, 288), 0u);
  EXPECT_NE(id_at(bytes, 296), std::string(32, '\0'));
  EXPECT_EQ(bytes.substr(328, 4096 - 328), std::string(4096 - 328, '\0'));
  EXPECT_EQ(bytes.substr(4096 + 384, 8192 - 4096 - 384), std::string(8192 - 4096 - 384, '\0'));
  expect_words(bytes.substr(meta), {"\"penstock test\"", "\"model.gguf\"", "\"align\": 4096"});

  uint64_t place = data;
  uint64_t record = 0;
  for (size_t l = 0; l < 3; ++l) {
    const uint64_t entry = table + l * 128;
    const BankSpec& bank = bench.spec.banks[l];
    const LayerGeometry& g = bench.geometry.layers[l];
    EXPECT_EQ(number<uint32_t>(bytes, entry), l);
    EXPECT_EQ(number<uint32_t>(bytes, entry + 4), l == 2 ? 1u : 0u);
    EXPECT_EQ(number<uint32_t>(bytes, entry + 8), static_cast<uint32_t>(bank.n_expert));
    EXPECT_EQ(number<uint32_t>(bytes, entry + 12), static_cast<uint32_t>(bank.n_used));
    EXPECT_EQ(number<uint32_t>(bytes, entry + 16), bank.n_embd);
    EXPECT_EQ(number<uint32_t>(bytes, entry + 20), bank.n_ff);
    EXPECT_EQ(number<uint32_t>(bytes, entry + 24), static_cast<uint32_t>(bank.gate));
    EXPECT_EQ(number<uint32_t>(bytes, entry + 28), static_cast<uint32_t>(bank.up));
    EXPECT_EQ(number<uint32_t>(bytes, entry + 32), static_cast<uint32_t>(bank.down));
    EXPECT_EQ(number<uint64_t>(bytes, entry + 40), g.gate.bytes);
    EXPECT_EQ(number<uint64_t>(bytes, entry + 48), g.up.bytes);
    EXPECT_EQ(number<uint64_t>(bytes, entry + 56), g.down.bytes);
    const uint64_t up = (g.gate.bytes + 63) / 64 * 64;
    const uint64_t down = (up + g.up.bytes + 63) / 64 * 64;
    const uint64_t stride = (down + g.down.bytes + 4095) / 4096 * 4096;
    EXPECT_EQ(number<uint64_t>(bytes, entry + 64), up);
    EXPECT_EQ(number<uint64_t>(bytes, entry + 72), down);
    EXPECT_EQ(number<uint64_t>(bytes, entry + 80), down + g.down.bytes);
    EXPECT_EQ(number<uint64_t>(bytes, entry + 88), stride);
    EXPECT_EQ(number<uint64_t>(bytes, entry + 96), place);
    EXPECT_EQ(bytes.substr(entry + 104, 24), std::string(24, '\0'));
    for (int e = 0; e < bank.n_expert; ++e) {
      std::string expected(stride, '\0');
      expected.replace(0, g.gate.bytes, source_matrix(bench.geometry, g.gate, e));
      expected.replace(up, g.up.bytes, source_matrix(bench.geometry, g.up, e));
      expected.replace(down, g.down.bytes, source_matrix(bench.geometry, g.down, e));
      ASSERT_EQ(bytes.substr(place, stride), expected) << "layer " << l << " expert " << e;
      EXPECT_EQ(number<uint64_t>(bytes, sums + 8 * record++), sum_of(expected, 0, stride));
      place += stride;
    }
  }
  EXPECT_EQ(place, sums);
}

TEST(PackFormat, OneStrideIsDeclared) {
  const Directory directory;
  PackBench bench(directory, {.banks = {{}, {}}});
  PackRequest request = bench.request();
  request.align = kDefaultPackAlign;
  write_pack(request);
  const Pack pack = Pack::open(bench.out);
  EXPECT_TRUE(pack.header().has(kPackUniform));
  EXPECT_EQ(pack.header().data_off % 16384, 0u);
  EXPECT_EQ(pack.layers()[1].base_off % 16384, 0u);
}

class Refusals : public testing::Test {
 protected:
  Refusals() : bench_(directory_), good_((bench_.pack(), file_bytes(bench_.out))) {}

  std::string refused(ErrorKind kind, const std::function<void(std::string&)>& change,
                      bool sealed = true) {
    std::string bytes = good_;
    change(bytes);
    if (sealed && bytes.size() >= 4096) seal(bytes);
    write_bytes(bench_.out, bytes);
    return message_of(kind, [&] { Pack::open(bench_.out); });
  }

  Directory directory_;
  PackBench bench_;
  std::string good_;
};

TEST_F(Refusals, CutFiles) {
  for (const size_t size : {size_t{0}, size_t{7}, size_t{4095}}) {
    const auto text = refused(
        ErrorKind::Format, [&](std::string& b) { b.resize(size); }, false);
    expect_words(text, {bench_.out, std::to_string(size) + " bytes"});
  }
  for (const size_t size : {size_t{4096}, size_t{5000}, good_.size() - 1}) {
    const auto text = refused(
        ErrorKind::Format, [&](std::string& b) { b.resize(size); }, false);
    expect_words(text, {std::to_string(size), std::to_string(good_.size()), "penstock pack"});
  }
  refused(
      ErrorKind::Format, [](std::string& b) { b += "x"; }, false);
}

TEST_F(Refusals, WhatIsNoPackOrOfAnotherVersion) {
  expect_words(refused(ErrorKind::Format, [](std::string& b) { b[0] = 'Y'; }), {"XPRTPACK"});
  for (const uint16_t major : {0, 2, 65535}) {
    const auto text =
        refused(ErrorKind::Unsupported, [&](std::string& b) { put<uint16_t>(b, 8, major); });
    expect_words(text, {"version " + std::to_string(major) + ".1"});
  }
  expect_words(refused(ErrorKind::Unsupported, [](std::string& b) { put<uint32_t>(b, 288, 3); }),
               {"layout 3"});
  expect_words(refused(ErrorKind::Unsupported, [](std::string& b) { put<uint32_t>(b, 20, 9); }),
               {"kind 9"});
  expect_words(refused(ErrorKind::Format, [](std::string& b) { b[16] = 0; }), {"not finished"});
}

TEST_F(Refusals, EveryFlippedBitOfHeaderAndTable) {
  for (size_t at = 8; at < 4096 + 3 * 128; at += 5) {
    if (at >= 8 && at < 10) continue;  // the version: another message
    std::string bytes = good_;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    write_bytes(bench_.out, bytes);
    EXPECT_THROW(Pack::open(bench_.out), Error) << at;
  }
}

TEST_F(Refusals, ForgedNumbers) {
  const auto header = [&](uint64_t at, uint64_t value, size_t size) {
    refused(ErrorKind::Format, [&](std::string& b) { std::memcpy(b.data() + at, &value, size); });
  };
  for (const uint64_t align : {0, 1, 512, 4097, 1 << 21}) header(12, align, 4);
  for (const uint64_t n : {0u, 4u, 2u, 1u << 20, ~0u}) header(24, n, 4);
  for (const uint64_t n : {0u, 64u, 124u, 8192u, ~0u}) header(28, n, 4);
  // Offsets and sizes: absurd, overflowing, overlapping.
  for (const uint64_t at : {40, 48, 56, 64, 72, 80, 88}) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63,
                                 uint64_t{good_.size()}, uint64_t{1} << 40}) {
      if (at == 72 && value < 2) continue;  // shorter metadata: found when they are read
      header(at, value, 8);
    }
  }
  const auto table = [&](uint64_t at, uint64_t value, size_t size) {
    for (const uint64_t layer : {uint64_t{0}, uint64_t{2}})
      header(4096 + layer * 128 + at, value, size);
  };
  table(0, 1, 4);  // the same layer twice
  table(4, 2, 4);  // role
  for (const uint64_t n : {0u, 7u, 70000u, ~0u}) table(8, n, 4);
  for (const uint64_t n : {0u, 100u, ~0u}) table(12, n, 4);
  for (const uint64_t at : {16, 20}) {
    for (const uint64_t n : {0u, 32u, 65u, 1u << 30, ~0u}) table(at, n, 4);
  }
  for (const uint64_t at : {24, 28, 32}) {
    for (const uint64_t type : {3u, 4u, 12u, 99u, ~0u}) table(at, type, 4);
  }
  for (uint64_t at = 40; at < 104; at += 8) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{8191}, ~uint64_t{0}, uint64_t{1} << 62}) {
      table(at, value, 8);
    }
  }
  header(16, 1 + 8, 4);  // uniform, but it is not
}

TEST_F(Refusals, DamagedListsAreFoundWhenTheyAreRead) {
  const auto sums = number<uint64_t>(good_, 48);
  const auto meta = number<uint64_t>(good_, 64);
  std::string bytes = good_;
  bytes[sums + 9] ^= 1;
  bytes[meta + 3] ^= 1;
  write_bytes(bench_.out, bytes);
  const Pack pack = Pack::open(bench_.out);
  expect_words(message_of(ErrorKind::Format, [&] { pack.read_sums(); }), {"checksums"});
  expect_words(message_of(ErrorKind::Format, [&] { pack.read_metadata(); }), {"metadata"});
}

TEST_F(Refusals, NewerMinorVersionsAreReadAndTheirFieldsIgnored) {
  std::string bytes = good_;
  put<uint16_t>(bytes, 10, 9);
  for (size_t at = 328; at < 4072; ++at) bytes[at] = 'n';
  for (uint64_t l = 0; l < 3; ++l) {
    for (size_t at = 104; at < 128; ++at) bytes[4096 + l * 128 + at] = 'n';
  }
  put<uint32_t>(bytes, 16, number<uint32_t>(bytes, 16) | 1u << 20);
  seal(bytes);
  write_bytes(bench_.out, bytes);
  const Pack pack = Pack::open(bench_.out);
  EXPECT_EQ(pack_mismatch(pack.header(), identify(bench_.model)), "");
  EXPECT_EQ(verify_pack(pack, {}, nullptr).n_bad, 0u);
}

TEST_F(Refusals, LongerEntriesOfANewerMinorVersionAreRead) {
  std::string bytes = good_;
  std::string table;
  for (uint64_t l = 0; l < 3; ++l)
    table += bytes.substr(4096 + l * 128, 128) + std::string(32, 'n');
  bytes.replace(4096, table.size(), table);
  put<uint16_t>(bytes, 10, 2);
  put<uint32_t>(bytes, 28, 160);
  seal(bytes);
  write_bytes(bench_.out, bytes);
  EXPECT_EQ(verify_pack(Pack::open(bench_.out), {}, nullptr).n_bad, 0u);
}

TEST_F(Refusals, ThePackOfVersion1_0StillServesTheWholeModel) {
  std::string bytes = good_;
  put<uint16_t>(bytes, 10, 0);
  bytes.replace(296, 32, std::string(32, '\0'));  // it had no dense_id
  seal(bytes);
  write_bytes(bench_.out, bytes);
  const Pack pack = Pack::open(bench_.out);
  ModelIdentity identity = identify(bench_.model);
  EXPECT_EQ(pack_mismatch(pack.header(), identity), "");
  identity.whole = false;
  expect_words(pack_mismatch(pack.header(), identity), {"version 1.0", "whole model"});
}

TEST(Checksums, KnownAnswers) {
  // The check values that the two algorithms are published with.
  const std::string digits = "123456789";
  EXPECT_EQ(checksum(Checksum::Crc32c, std::as_bytes(std::span(digits))), 0xe3069283u);
  EXPECT_EQ(checksum(Checksum::Xxh64, {}), 0xef46db3751d8e999u);
}

TEST_F(Refusals, ChecksumsMayBeCrc32c) {
  std::string bytes = good_;
  const Pack pack = Pack::open(bench_.out);
  put<uint32_t>(bytes, 20, 2);
  const auto sums = number<uint64_t>(bytes, 48);
  uint64_t record = 0;
  for (const PackLayer& l : pack.layers()) {
    for (uint64_t e = 0; e < l.n_expert; ++e) {
      const auto piece =
          std::as_bytes(std::span(bytes.data() + l.base_off + e * l.stride, l.stride));
      put(bytes, sums + 8 * record++, checksum(Checksum::Crc32c, piece));
    }
  }
  put(bytes, 240, sum_of(bytes, sums, 8 * record));
  seal(bytes);
  write_bytes(bench_.out, bytes);
  EXPECT_EQ(verify_pack(Pack::open(bench_.out), {}, nullptr).n_bad, 0u);
  bytes[pack.layers()[1].base_off + 17] ^= 4;
  write_bytes(bench_.out, bytes);
  EXPECT_EQ(verify_pack(Pack::open(bench_.out), {}, nullptr).n_bad, 1u);
}

TEST_F(Refusals, VerifyFindsEachFlippedBitAndSaysWhere) {
  std::mt19937 random(3);
  const Pack clean = Pack::open(bench_.out);
  for (int round = 0; round < 20; ++round) {
    const PackLayer& l = clean.layers()[random() % 3];
    const uint64_t expert = random() % l.n_expert;
    const uint64_t at = l.base_off + expert * l.stride + random() % l.stride;  // padding included
    std::string bytes = good_;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
    write_bytes(bench_.out, bytes);
    const PackCheck check = verify_pack(Pack::open(bench_.out), {}, nullptr);
    EXPECT_EQ(check.n_records, 25u);
    ASSERT_EQ(check.n_bad, 1u);
    EXPECT_EQ(check.bad[0].layer, static_cast<int>(l.layer));
    EXPECT_EQ(check.bad[0].expert, static_cast<int>(expert));
    EXPECT_EQ(check.bad[0].offset, l.base_off + expert * l.stride);
  }
}

}  // namespace
}  // namespace penstock::experts::test
