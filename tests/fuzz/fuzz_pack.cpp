// The pack's header and layer table on arbitrary bytes: they may be refused with an Error and
// nothing else; what is accepted must lie inside the file, record by record.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "experts/pack_format.h"

using namespace penstock;
using namespace penstock::experts;

namespace {

// Checksums would keep the fuzzer from getting anywhere: they are made right.
void seal(std::vector<std::byte>& bytes) {
  PackHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const uint64_t table = pack_table_bytes(header);
  if (header.table_off <= bytes.size() && table <= bytes.size() - header.table_off) {
    header.table_sum = xxh64({bytes.data() + header.table_off, table});
  }
  header.header_sum = header_sum(header);
  std::memcpy(bytes.data(), &header, sizeof header);
}

// A file of which only the beginning is at hand; `file_bytes` long.
void check(std::span<const std::byte> bytes, uint64_t file_bytes) {
  const PackHeader header = parse_pack_header(bytes, file_bytes, "fuzz.xpk");
  const uint64_t table = pack_table_bytes(header);
  if (header.table_off > file_bytes || table > file_bytes - header.table_off) std::abort();
  if (header.table_off + table > bytes.size()) return;
  uint64_t end = header.data_off;
  uint64_t n = 0;
  for (const PackLayer& l :
       parse_pack_layers(header, bytes.subspan(header.table_off, table), "fuzz.xpk")) {
    const auto record = static_cast<unsigned __int128>(l.stride) * l.n_expert + l.base_off;
    if (l.base_off < end || record > header.sums_off || l.stride % header.align != 0) std::abort();
    if (l.up_off < l.gate_bytes || l.down_off < l.up_off + l.up_bytes ||
        l.record_bytes != l.down_off + l.down_bytes || l.record_bytes > l.stride) {
      std::abort();
    }
    end = static_cast<uint64_t>(record);
    n += l.n_expert;
  }
  if (n != header.n_records || header.sums_bytes != 8 * n ||
      header.sums_off + header.sums_bytes > file_bytes) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(std::max(size, kPackHeaderBytes));
  std::memcpy(bytes.data(), data, size);
  for (const bool sealed : {false, true}) {
    if (sealed) seal(bytes);
    PackHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    try {
      check(bytes, sealed ? header.file_bytes : bytes.size());
    } catch (const Error&) {  // an answer, not a finding
    }
  }
  return 0;
}
