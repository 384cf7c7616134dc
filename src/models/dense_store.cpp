#include "models/dense_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "quant/codec.h"

namespace penstock::models {
namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;
constexpr uint64_t kMostGap = uint64_t{64} << 10;  // read along rather than starting a new run
constexpr int kReaders = 4;

// Reads page-aligned stretches, around the page cache where the file system allows it.
class Reader {
 public:
  explicit Reader(const gguf::Shard& shard) : size_(shard.file_bytes) {
    int error = 0;
    direct_ = File::try_open(shard.path, O_RDONLY | O_DIRECT | O_CLOEXEC, &error);
    buffered_ = File::open_read(shard.path);
  }

  // [start, start + bytes), cut at the end of the file.
  void read(uint64_t start, uint64_t bytes, std::byte* out) const {
    const uint64_t end = std::min(start + bytes, size_);
    uint64_t at = start;
    while (direct_ && at < end) {
      const ssize_t n =
          pread(direct_.fd(), out + (at - start), bytes - (at - start), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0 ||
          (at + static_cast<uint64_t>(n) < end && static_cast<uint64_t>(n) % kPageSize != 0)) {
        break;  // refused or cut short: the buffered descriptor finishes, or says why not
      }
      at += static_cast<uint64_t>(n);
    }
    if (at < end) {
      buffered_.read_at(at, {out + (at - start), end - at});
      posix_fadvise(buffered_.fd(), static_cast<off_t>(start), static_cast<off_t>(bytes),
                    POSIX_FADV_DONTNEED);
    }
  }

 private:
  File direct_, buffered_;
  uint64_t size_;
};

void decode(const gguf::Tensor& tensor, bool transposed, const std::byte* from, float* to) {
  const auto n_in = static_cast<int64_t>(tensor.ne[0]);
  const auto n_rows = static_cast<int64_t>(tensor.rows());
  std::vector<float> row(static_cast<size_t>(n_in));
  for (int64_t r = 0; r < n_rows; ++r, from += tensor.row_bytes) {
    quant::decode_row(tensor.type, from, row.data(), n_in);
    for (int64_t i = 0; i < n_in; ++i) {
      to[transposed ? i * n_rows + r : r * n_in + i] = row[static_cast<size_t>(i)];
    }
  }
}

}  // namespace

void DenseStore::add_matrix(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor) {
  raws_.push_back({out, &file, &tensor});
}

void DenseStore::add_gathered(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor,
                              std::vector<int64_t> rows) {
  const uint64_t bytes = rows.size() * tensor.row_bytes;
  made_.push_back({&file, &tensor,
                   [out, &tensor, rows = std::move(rows)](const std::byte* from, std::byte* to) {
                     out->data = to;
                     for (const int64_t row : rows) {
                       std::memcpy(to, from + static_cast<uint64_t>(row) * tensor.row_bytes,
                                   tensor.row_bytes);
                       to += tensor.row_bytes;
                     }
                   },
                   bytes});
}

void DenseStore::add_floats(const float** out, const gguf::Model& file, const gguf::Tensor& tensor,
                            bool transposed) {
  made_.push_back({&file, &tensor,
                   [out, &tensor, transposed](const std::byte* from, std::byte* to) {
                     decode(tensor, transposed, from, reinterpret_cast<float*>(to));
                     *out = reinterpret_cast<const float*>(to);
                   },
                   tensor.n_elements() * sizeof(float)});
}

void DenseStore::add_decoded(ops::Matrix* out, const gguf::Model& file,
                             const gguf::Tensor& tensor) {
  made_.push_back({&file, &tensor,
                   [out, &tensor](const std::byte* from, std::byte* to) {
                     decode(tensor, false, from, reinterpret_cast<float*>(to));
                     out->data = to;
                   },
                   tensor.n_elements() * sizeof(float)});
}

std::vector<DenseStore::Run> DenseStore::runs() const {
  std::vector<size_t> order(raws_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::tuple(raws_[i].file->path(), raws_[i].tensor->shard, raws_[i].tensor->offset);
    };
    return key(a) < key(b);
  });
  std::vector<Run> runs;
  uint64_t place = 0;
  for (const size_t i : order) {
    const gguf::Tensor& tensor = *raws_[i].tensor;
    const gguf::Shard* shard = &raws_[i].file->shards()[tensor.shard];
    const uint64_t end = round_up(tensor.offset + tensor.bytes, kPageSize);
    if (!runs.empty() && runs.back().shard == shard &&
        tensor.offset <= runs.back().end + kMostGap) {
      runs.back().end = std::max(runs.back().end, end);
    } else {
      runs.push_back({shard, round_down(tensor.offset, kPageSize), end, 0, {}});
    }
    runs.back().raws.push_back(i);
  }
  for (Run& run : runs) {
    run.place = place;
    place += run.end - run.start;
  }
  return runs;
}

uint64_t DenseStore::copied_bytes() const {
  const std::vector<Run> all = runs();
  return all.empty() ? 0 : all.back().place + all.back().end - all.back().start;
}

uint64_t DenseStore::made_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const Made& made : made_) bytes += round_up(made.bytes, 64);
  return bytes;
}

// Everything is read by few threads in stretches of at most a piece, tensors to be made one by one:
// through the mapping the kernel would read megabytes around each of those.
void DenseStore::read_all(const std::vector<Run>& runs, const LoadProgress& progress) const {
  struct Piece {
    const Reader* reader;
    uint64_t start, bytes;
    std::byte* to;     // null for a tensor to be made
    const Made* made;  // and where it goes to
    std::byte* made_to;
  };
  std::map<const gguf::Shard*, Reader> readers;
  const auto reader_of = [&](const gguf::Shard& shard) {
    return &readers.try_emplace(&shard, shard).first->second;
  };
  std::vector<Piece> pieces;
  uint64_t total = 0;
  for (const Run& run : runs) {
    for (uint64_t at = run.start; at < run.end; at += kPiece) {
      const uint64_t bytes = std::min(kPiece, run.end - at);
      pieces.push_back({reader_of(*run.shard), at, bytes,
                        copied_memory_.data() + run.place + (at - run.start), nullptr, nullptr});
      total += bytes;
    }
  }
  uint64_t place = 0;
  for (const Made& made : made_) {
    const uint64_t start = round_down(made.tensor->offset, kPageSize);
    const uint64_t end = round_up(made.tensor->offset + made.tensor->bytes, kPageSize);
    pieces.push_back({reader_of(made.file->shards()[made.tensor->shard]), start, end - start,
                      nullptr, &made, made_memory_.data() + place});
    place += round_up(made.bytes, 64);
    total += end - start;
  }
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> done{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](bool report) {
    try {
      Mapping scratch;
      for (size_t i = next++; i < pieces.size(); i = next++) {
        const Piece& piece = pieces[i];
        if (piece.made == nullptr) {
          piece.reader->read(piece.start, piece.bytes, piece.to);
        } else {
          if (scratch.size() < piece.bytes) scratch = Mapping(piece.bytes, Pages::Small);
          piece.reader->read(piece.start, piece.bytes, scratch.data());
          piece.made->make(scratch.data() + (piece.made->tensor->offset - piece.start),
                           piece.made_to);
        }
        const uint64_t so_far = done += piece.bytes;
        if (report && progress) progress(so_far, total);
      }
    } catch (...) {
      next = pieces.size();
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < kReaders; ++i) threads.emplace_back(work, false);
  work(true);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  if (progress) progress(total, total);
}

void DenseStore::load(DenseMode mode, const LoadProgress& progress) {
  made_memory_ = Mapping(std::max<uint64_t>(kPageSize, made_bytes()), Pages::Huge);
  if (mode == DenseMode::Copy) {
    copied_memory_ = Mapping(std::max<uint64_t>(kPageSize, copied_bytes()), Pages::Huge);
    const std::vector<Run> all = runs();
    read_all(all, progress);
    for (const Run& run : all) {
      for (const size_t i : run.raws) {
        raws_[i].out->data =
            copied_memory_.data() + run.place + (raws_[i].tensor->offset - run.start);
      }
    }
    return;
  }
  for (const Raw& raw : raws_) raw.out->data = raw.file->data(*raw.tensor);
  uint64_t at = 0;
  for (const Made& made : made_) {
    made.make(made.file->data(*made.tensor), made_memory_.data() + at);
    at += round_up(made.bytes, 64);
  }
}

}  // namespace penstock::models
