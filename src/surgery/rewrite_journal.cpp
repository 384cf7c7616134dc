#include "surgery/rewrite_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/output_steps.h"
#include "quant/codec.h"

namespace penstock::surgery {
namespace {

constexpr uint64_t kMagic = 0x314c4e524a545350;  // "PSTJRNL1"

template <typename T>
uint64_t sum_of(const T& value, uint64_t seed) {
  static_assert(offsetof(T, sum) + sizeof value.sum == sizeof value);
  return xxh64(std::as_bytes(std::span(&value, 1)).first(offsetof(T, sum)), seed);
}

uint64_t record_offset(size_t piece) {
  return sizeof(JournalHeader) + piece * sizeof(JournalRecord);
}

void hash_text(Sha256Stream* hash, std::string_view text) {
  const uint64_t bytes = text.size();
  hash->update(&bytes, sizeof bytes);
  hash->update(text.data(), text.size());
}

template <typename T>
void hash_values(Sha256Stream* hash, std::span<const T> values) {
  const uint64_t n = values.size();
  hash->update(&n, sizeof n);
  hash->update(values.data(), values.size_bytes());
}

// What the encoder of this type makes of a row of fixed values, plain and weighted: another version
// of the program that encodes otherwise is another job.
void hash_encoder(Sha256Stream* hash, gguf::TypeId type, bool positive) {
  constexpr uint64_t kRow = 4096;
  std::vector<float> x(kRow), weights(kRow);
  uint64_t state = 1;
  const auto next = [&state] {  // Knuth's MMIX generator; the upper bits, in [-1, 1)
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int64_t>(state) >> 40) * 0x1p-23f;
  };
  for (uint64_t i = 0; i < kRow; ++i) {
    x[i] = next() * next();
    weights[i] = next() + 1;
  }
  RowEncoder encoder(gguf::TypeId::F32, type, kRow, positive);
  std::vector<std::byte> out(gguf::row_bytes(type, kRow));
  const auto* in = reinterpret_cast<const std::byte*>(x.data());
  for (const std::span<const float> importance :
       {std::span<const float>(), std::span<const float>(weights)}) {
    ErrorSums sums;
    BadValue bad;
    encoder.run(in, out.data(), 1, importance, &sums, &bad);
    hash_values<std::byte>(hash, out);
  }
}

}  // namespace

Sha256 rewrite_job(const RewriteRequest& request, const Sha256& headers) {
  const RewritePlan& plan = *request.plan;
  Sha256Stream hash;
  hash_text(&hash, "penstock rewrite 1");
  hash.update(headers.data(), headers.size());
  const Sha256 source = plan.source->model_id();
  hash.update(source.data(), source.size());
  std::vector<int64_t> stamps;
  for (const gguf::Shard& shard : plan.source->shards()) {
    struct stat info {};
    if (::stat(shard.path.c_str(), &info) != 0) {
      fail(ErrorKind::Io, "cannot stat {}: {}", shard.path, errno_text(errno));
    }
    stamps.insert(stamps.end(), {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec});
  }
  hash_values<int64_t>(&hash, stamps);
  std::set<gguf::TypeId> types;
  for (const OutputTensor& tensor : plan.tensors) {
    hash_values<uint32_t>(&hash, tensor.kept);
    if (tensor.encoded()) types.insert(tensor.type);
  }
  for (const gguf::TypeId type : types) hash_encoder(&hash, type, request.positive_scales);
  const uint8_t positive = request.positive_scales ? 1 : 0;
  hash.update(&positive, 1);
  if (request.imatrix != nullptr) {
    for (const auto& [name, importance] : request.imatrix->tensors) {
      hash_text(&hash, name);
      hash_values<float>(&hash, importance.sums);
      hash_values<float>(&hash, importance.counts);
    }
  }
  return hash.finish();
}

Journal::Journal(const std::string& out) : file_(open_locked(out + ".journal", out)) {}

Journal::~Journal() {
  struct stat info {};
  if (::fstat(file_.fd(), &info) == 0 && info.st_size == 0) ::unlink(file_.path().c_str());
}

Journal::Found Journal::look(const Sha256& job, uint64_t n_pieces) {
  header_ = {};
  if (file_.size() == 0) return Found::Nothing;
  if (file_.size() < sizeof header_) return Found::Other;
  JournalHeader there;
  file_.read_at(0, std::as_writable_bytes(std::span(&there, 1)));
  if (there.magic != kMagic || there.sum != sum_of(there, 0) || there.job != job ||
      there.n_pieces != n_pieces) {
    return Found::Other;
  }
  header_ = there;
  return Found::Same;
}

void Journal::begin(const Sha256& job, uint64_t n_pieces, bool keep) {
  if (!keep && ::ftruncate(file_.fd(), 0) != 0) {
    fail(ErrorKind::Io, "cannot empty {}: {}", path(), errno_text(errno));
  }
  header_.magic = kMagic;
  header_.job = job;
  header_.n_pieces = n_pieces;
  header_.naming = 0;
  write_header();
}

void Journal::read(size_t first, std::span<std::optional<JournalRecord>> out) const {
  const uint64_t size = file_.size();
  const uint64_t from = std::min(size, record_offset(first));
  const size_t n = std::min<uint64_t>(out.size(), (size - from) / sizeof(JournalRecord));
  std::vector<JournalRecord> records(n);
  file_.read_at(from, std::as_writable_bytes(std::span(records)));
  std::fill(out.begin(), out.end(), std::nullopt);
  for (size_t i = 0; i < n; ++i) {
    if (records[i].sum == sum_of(records[i], first + i)) out[i] = records[i];
  }
}

void Journal::write(size_t piece, JournalRecord record) {
  record.sum = sum_of(record, piece);
  put(record_offset(piece), std::as_bytes(std::span(&record, 1)));
}

void Journal::begin_naming() {
  header_.naming = 1;
  write_header();
}

void Journal::remove() {
  ::unlink(path().c_str());
}

void Journal::write_header() {
  header_.sum = sum_of(header_, 0);
  put(0, std::as_bytes(std::span(&header_, 1)));
}

void Journal::put(uint64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pwrite(file_.fd(), bytes.data() + done, bytes.size() - done,
                               static_cast<off_t>(offset + done));
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      fail(ErrorKind::Io, "writing {} at offset {} failed: {}; the same command goes on", path(),
           offset + done, errno_text(errno));
    }
  }
}

}  // namespace penstock::surgery
