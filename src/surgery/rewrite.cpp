#include "surgery/rewrite.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/machine.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "gguf/writer.h"

namespace penstock::surgery {
namespace {

namespace fs = std::filesystem;
using gguf::Tensor;

constexpr uint64_t kCopyBytes = uint64_t{2} << 20;      // of a piece that is copied
constexpr uint64_t kEncodeWeights = uint64_t{1} << 19;  // of a piece that is encoded: 2 MiB of F32
constexpr int64_t kPiecesPerThread = 16;                // between two looks at the clock
constexpr size_t kSampleEvery = 100;                    // pieces: one is read back when all is done

// What one task does: a run of rows (encoded) or bytes (copied) of one tensor.
struct Piece {
  uint32_t tensor = 0;  // index into the plan's
  uint32_t mat = 0;     // the expert in the source, for its importance
  uint64_t from = 0;    // bytes from the tensor's start, in the source
  uint64_t to = 0;      // and in the result
  uint64_t bytes = 0;   // in the source
  uint64_t n_rows = 0;  // 0: copied
};

// Pieces in the order of the result, so that both files are gone through from front to back.
class PieceList {
 public:
  explicit PieceList(const RewritePlan& plan) {
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
      if (plan.tensors[t].encoded()) {
        add_encoded(static_cast<uint32_t>(t), plan.tensors[t]);
      } else {
        add_copied(static_cast<uint32_t>(t), plan.tensors[t]);
      }
    }
  }
  const std::vector<Piece>& pieces() const noexcept { return pieces_; }
  uint64_t bytes() const noexcept { return bytes_; }

 private:
  // Runs of neighbouring places along the last dimension, as (first, count).
  static std::vector<std::pair<uint64_t, uint64_t>> runs(const OutputTensor& tensor) {
    if (tensor.kept.empty()) return {{0, tensor.n_places()}};
    std::vector<std::pair<uint64_t, uint64_t>> out;
    for (const uint32_t place : tensor.kept) {
      if (!out.empty() && out.back().first + out.back().second == place) {
        ++out.back().second;
      } else {
        out.emplace_back(place, 1);
      }
    }
    return out;
  }

  void add(const Piece& piece) {
    pieces_.push_back(piece);
    bytes_ += piece.bytes;
  }

  void add_copied(uint32_t index, const OutputTensor& tensor) {
    const uint64_t place_bytes = tensor.source_bytes() / tensor.n_places();
    uint64_t to = 0;
    for (const auto& [first, count] : runs(tensor)) {
      uint64_t from = first * place_bytes;
      for (uint64_t left = count * place_bytes; left > 0;) {
        const uint64_t n = std::min(left, kCopyBytes);
        add({index, 0, from, to, n, 0});
        from += n;
        to += n;
        left -= n;
      }
    }
  }

  // A piece never crosses from one matrix into the next: each may have its own importance.
  void add_encoded(uint32_t index, const OutputTensor& tensor) {
    const Tensor& source = *tensor.source;
    const uint64_t rows_per_place =
        source.n_dims > 2 ? source.rows() / source.ne[source.n_dims - 1] : 1;
    const uint64_t out_row = gguf::row_bytes(tensor.type, source.ne[0]);
    const uint64_t most = std::max<uint64_t>(1, kEncodeWeights / source.ne[0]);
    uint64_t to = 0;
    for (const auto& [first, count] : runs(tensor)) {
      const bool bank = source.n_dims > 2;
      const uint64_t n_mats = bank ? count : 1;
      for (uint64_t m = 0; m < n_mats; ++m) {
        uint64_t row = (first + m) * rows_per_place;
        for (uint64_t left = bank ? rows_per_place : count; left > 0;) {
          const uint64_t n = std::min(left, most);
          add({index, bank ? static_cast<uint32_t>(first + m) : 0u, row * source.row_bytes, to,
               n * source.row_bytes, n});
          row += n;
          to += n * out_row;
          left -= n;
        }
      }
    }
  }

  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
};

// A model's files, read beside their mappings: what has been read can leave the page cache.
class SourceFiles {
 public:
  explicit SourceFiles(const gguf::Model& model) {
    for (const gguf::Shard& shard : model.shards()) {
      files_.push_back(File::open_read(shard.path));
      stamps_.push_back(stamp(files_.back()));
    }
  }

  void read(const Tensor& tensor, uint64_t offset, std::span<std::byte> out) const {
    files_[tensor.shard].read_at(tensor.offset + offset, out);
  }
  void advise(const Tensor& tensor, uint64_t offset, uint64_t bytes, int advice) const noexcept {
    ::posix_fadvise(files_[tensor.shard].fd(), static_cast<off_t>(tensor.offset + offset),
                    static_cast<off_t>(bytes), advice);
  }
  void check_unchanged() const {
    for (size_t i = 0; i < files_.size(); ++i) {
      if (stamp(files_[i]) != stamps_[i]) {
        fail(ErrorKind::Io,
             "{} was written to while it was read: what was made is given up; start "
             "again",
             files_[i].path());
      }
    }
  }

 private:
  struct Stamp {
    off_t bytes = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp(const File& file) {
    struct stat info {};
    if (::fstat(file.fd(), &info) != 0) {
      fail(ErrorKind::Io, "cannot stat {}: {}", file.path(), errno_text(errno));
    }
    return {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  }

  std::vector<File> files_;
  std::vector<Stamp> stamps_;
};

void write_keys(const RewritePlan& plan, gguf::Writer* out) {
  const auto put = [out](const std::string& key, const MetadataValue& value) {
    if (const auto* number = std::get_if<uint32_t>(&value)) out->set_u32(key, *number);
    if (const auto* text = std::get_if<std::string>(&value)) out->set_string(key, *text);
    if (const auto* numbers = std::get_if<std::vector<uint32_t>>(&value)) {
      out->set_u32_array(key, *numbers);
    }
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      out->set_string_array(key, *texts);
    }
  };
  for (const gguf::Entry& entry : plan.source->metadata().entries()) {
    const std::string key(entry.key);
    if (key == "general.alignment" || key.starts_with("split.") ||
        std::find(plan.removed.begin(), plan.removed.end(), key) != plan.removed.end()) {
      continue;
    }
    if (const auto found = plan.set.find(key); found != plan.set.end()) {
      put(key, found->second);
    } else {
      out->set_copy(entry);
    }
  }
  for (const auto& [key, value] : plan.set) {
    if (!out->has(key)) put(key, value);
  }
}

void check_room(const RewritePlan& plan, const std::string& out) {
  uint64_t need = plan.data_bytes();
  for (const gguf::Shard& shard : plan.source->shards())
    need += shard.header_bytes + shard.alignment;
  std::string folder = fs::path(out).parent_path().string();
  if (folder.empty()) folder = ".";
  struct statvfs room {};
  if (::statvfs(folder.c_str(), &room) != 0) {
    fail(ErrorKind::Io, "cannot write to {}: {}", folder, errno_text(errno));
  }
  const uint64_t free = uint64_t{room.f_bavail} * room.f_frsize;
  if (need > free) {
    fail(ErrorKind::Io,
         "{} are needed for {} ({} bytes), but {} are free there: make {} of room, or choose "
         "another "
         "folder with -o",
         format_bytes(need), out, need, format_bytes(free), format_bytes(need - free));
  }
}

void check_output(const gguf::Model& source, const std::string& path, bool replace) {
  std::error_code error;
  if (!fs::exists(path, error)) return;
  for (const gguf::Shard& shard : source.shards()) {
    if (fs::equivalent(path, shard.path, error)) {
      fail(ErrorKind::Usage, "{} is the model itself: name another file", path);
    }
  }
  if (fs::is_directory(path, error)) fail(ErrorKind::Usage, "{} is a folder: name a file", path);
  if (!replace) fail(ErrorKind::Usage, "{} exists: --force replaces it", path);
}

// Of one thread; kept from piece to piece.
struct Workspace {
  std::vector<std::byte> in, out;
  std::optional<RowEncoder> encoder;
  std::vector<float> importance;
  uint32_t encoder_tensor = UINT32_MAX;
  uint32_t importance_tensor = UINT32_MAX, importance_mat = 0;
  bool has_importance = false;
};

class Rewriter {
 public:
  explicit Rewriter(const RewriteRequest& request)
      : request_(request),
        plan_(*request.plan),
        list_(plan_),
        files_(*plan_.source),
        writer_(request.out, {.alignment = plan_.source->shards().front().alignment,
                              .max_shard_bytes = request.max_shard_bytes}),
        workspaces_(static_cast<size_t>(request.pool->size())) {}

  RewriteResult run();

 private:
  void begin();
  void run_batch(size_t first, size_t n);
  // Returns what was written.
  std::span<const std::byte> run_piece(const Piece& piece, Workspace* space, ErrorSums* sums);
  void read_back(const std::string& written) const;
  std::span<const float> importance_of(const Piece& piece, Workspace* space) const;
  [[noreturn]] void bad_value(const Piece& piece, const BadValue& bad) const;
  void advise(size_t first, size_t n, int advice) const noexcept;
  void fold(size_t first, size_t n, RewriteResult* result);

  const RewriteRequest& request_;
  const RewritePlan& plan_;
  PieceList list_;
  SourceFiles files_;
  gguf::Writer writer_;
  std::vector<Workspace> workspaces_;
  std::vector<ErrorSums> sums_;    // of the batch's pieces
  std::vector<uint64_t> samples_;  // XXH64 of every kSampleEvery-th piece as it was written
};

std::span<const float> Rewriter::importance_of(const Piece& piece, Workspace* space) const {
  if (request_.imatrix == nullptr) return {};
  if (space->importance_tensor != piece.tensor || space->importance_mat != piece.mat) {
    const Tensor& source = *plan_.tensors[piece.tensor].source;
    const Importance* entry = request_.imatrix->find(source.name);
    space->importance.resize(source.ne[0]);
    space->has_importance =
        entry != nullptr &&
        Imatrix::mean_squares(*entry, entry->n_mat() == 1 ? 0 : piece.mat, space->importance);
    space->importance_tensor = piece.tensor;
    space->importance_mat = piece.mat;
  }
  return space->has_importance ? std::span<const float>(space->importance)
                               : std::span<const float>();
}

void Rewriter::bad_value(const Piece& piece, const BadValue& bad) const {
  const OutputTensor& tensor = plan_.tensors[piece.tensor];
  const Tensor& source = *tensor.source;
  const uint64_t row = piece.from / source.row_bytes + bad.row;
  const std::string where =
      source.n_dims > 2
          ? fmt::format("expert {}, row {}, column {}", piece.mat,
                        row % (source.rows() / source.ne[source.n_dims - 1]), bad.column)
          : fmt::format("row {}, column {}", row, bad.column);
  if (bad.in_source) {
    fail(ErrorKind::Numeric,
         "{}: tensor {}: {} at {}; the file is damaged or was made wrongly: get it again",
         plan_.source->shards()[source.shard].path, source.name, bad.value, where);
  }
  fail(ErrorKind::Numeric,
       "{}: tensor {}: {} at {} is beyond what {} can hold: choose another type",
       plan_.source->shards()[source.shard].path, source.name, bad.value, where,
       gguf::type_name(tensor.type));
}

std::span<const std::byte> Rewriter::run_piece(const Piece& piece, Workspace* space,
                                               ErrorSums* sums) {
  const OutputTensor& tensor = plan_.tensors[piece.tensor];
  space->in.resize(piece.bytes);
  files_.read(*tensor.source, piece.from, space->in);
  if (piece.n_rows == 0) {
    writer_.write_at(piece.tensor, piece.to, space->in);
    return space->in;
  }
  const uint64_t row = tensor.source->ne[0];
  if (space->encoder_tensor != piece.tensor) {
    space->encoder.emplace(tensor.source->type, tensor.type, row, request_.positive_scales);
    space->encoder_tensor = piece.tensor;
  }
  space->out.resize(piece.n_rows * gguf::row_bytes(tensor.type, row));
  BadValue bad;
  if (!space->encoder->run(space->in.data(), space->out.data(), piece.n_rows,
                           importance_of(piece, space), sums, &bad)) {
    bad_value(piece, bad);
  }
  writer_.write_at(piece.tensor, piece.to, space->out);
  return space->out;
}

void Rewriter::run_batch(size_t first, size_t n) {
  sums_.assign(n, {});
  std::vector<std::exception_ptr> errors(workspaces_.size());
  std::atomic<bool> failed{false};
  request_.pool->parallel_for(static_cast<int64_t>(n), [&](int64_t task, int thread) {
    if (failed.load(std::memory_order_relaxed)) return;
    const auto at = static_cast<size_t>(task);
    try {
      const std::span<const std::byte> written = run_piece(
          list_.pieces()[first + at], &workspaces_[static_cast<size_t>(thread)], &sums_[at]);
      if ((first + at) % kSampleEvery == 0) samples_[(first + at) / kSampleEvery] = xxh64(written);
    } catch (...) {
      errors[static_cast<size_t>(thread)] = std::current_exception();
      failed = true;
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void Rewriter::advise(size_t first, size_t n, int advice) const noexcept {
  const size_t end = std::min(first + n, list_.pieces().size());
  for (size_t i = first; i < end; ++i) {
    const Piece& piece = list_.pieces()[i];
    files_.advise(*plan_.tensors[piece.tensor].source, piece.from, piece.bytes, advice);
  }
}

// Adds the batch's errors to their tensors', in order.
void Rewriter::fold(size_t first, size_t n, RewriteResult* result) {
  for (size_t i = 0; i < n; ++i) {
    const Piece& piece = list_.pieces()[first + i];
    result->read_bytes += piece.bytes;
    if (piece.n_rows == 0) continue;
    const OutputTensor& tensor = plan_.tensors[piece.tensor];
    if (result->encoded.empty() || result->encoded.back().tensor != &tensor) {
      const bool weighted =
          request_.imatrix != nullptr && request_.imatrix->find(tensor.source->name) != nullptr;
      result->encoded.push_back({&tensor, weighted, {}});
    }
    const uint64_t row = tensor.source->ne[0];
    const uint64_t before = piece.to / gguf::row_bytes(tensor.type, row) * row;
    result->encoded.back().errors.add(sums_[i], before);
    result->n_encoded += piece.n_rows * row;
  }
}

void Rewriter::begin() {
  check_output(*plan_.source, request_.out, request_.replace);
  check_room(plan_, request_.out);
  write_keys(plan_, &writer_);
  for (const OutputTensor& tensor : plan_.tensors) {
    writer_.add_tensor(tensor.source->name, tensor.type, tensor.dims());
  }
  writer_.begin();
  for (const std::string& name : writer_.file_names()) {
    check_output(*plan_.source, name, request_.replace);
  }
}

// One piece in a hundred is compared with what was written; most of them have left the page cache.
void Rewriter::read_back(const std::string& written) const {
  const gguf::Model model = gguf::Model::open(written);
  const SourceFiles files(model);
  std::vector<std::byte> bytes;
  for (size_t s = 0; s < samples_.size(); ++s) {
    const Piece& piece = list_.pieces()[s * kSampleEvery];
    const OutputTensor& tensor = plan_.tensors[piece.tensor];
    bytes.resize(piece.n_rows == 0
                     ? piece.bytes
                     : piece.n_rows * gguf::row_bytes(tensor.type, tensor.source->ne[0]));
    const Tensor& there = model.require(tensor.source->name);
    files.read(there, piece.to, bytes);
    if (xxh64(bytes) != samples_[s]) {
      fail(
          ErrorKind::Io,
          "{}: {} bytes at {} of tensor {} read back are not what was written: remove the file and "
          "check the disk",
          model.shards()[there.shard].path, bytes.size(), piece.to, there.name);
    }
  }
}

RewriteResult Rewriter::run() {
  begin();
  const int64_t started = now_ns();
  RewriteResult result;
  const size_t all = list_.pieces().size();
  samples_.resize((all + kSampleEvery - 1) / kSampleEvery);
  const auto batch = static_cast<size_t>(kPiecesPerThread * request_.pool->size());
  for (size_t first = 0; first < all; first += batch) {
    if (request_.cancel != nullptr && request_.cancel->load()) {
      fail(ErrorKind::Cancelled, "interrupted after {} of {}; nothing is left of {}",
           format_bytes(result.read_bytes), format_bytes(list_.bytes()), request_.out);
    }
    const size_t n = std::min(batch, all - first);
    advise(first + n, batch, POSIX_FADV_WILLNEED);
    run_batch(first, n);
    advise(first, n, POSIX_FADV_DONTNEED);
    fold(first, n, &result);
    const Piece& next = list_.pieces()[std::min(first + n, all - 1)];
    writer_.written_before(next.tensor, next.to);
    if (request_.progress) request_.progress(result.read_bytes, list_.bytes());
  }
  files_.check_unchanged();
  writer_.finish();
  result.files = writer_.file_names();
  result.bytes = writer_.total_bytes();
  read_back(result.files.front());
  result.seconds = seconds_since(started);
  return result;
}

}  // namespace

std::vector<std::string> without_importance(const RewritePlan& plan, const Imatrix& imatrix,
                                            const std::string& path) {
  std::vector<std::string> missing;
  for (const OutputTensor& tensor : plan.tensors) {
    if (!tensor.encoded()) continue;
    const Tensor& source = *tensor.source;
    const Importance* entry = imatrix.find(source.name);
    if (entry == nullptr) {
      missing.push_back(source.name);
      continue;
    }
    const uint64_t n_mat = source.n_dims > 2 ? source.ne[source.n_dims - 1] : 1;
    if (entry->n_in != static_cast<int64_t>(source.ne[0]) ||
        (entry->n_mat() != 1 && entry->n_mat() != n_mat)) {
      fail(ErrorKind::Format,
           "{}: {} has {} matrices of {} inputs, but the model's is {}: the importance belongs to "
           "another model",
           path, source.name, entry->n_mat(), entry->n_in, gguf::shape_text(source));
    }
  }
  return missing;
}

RewriteResult rewrite(const RewriteRequest& request) {
  return Rewriter(request).run();
}

}  // namespace penstock::surgery
