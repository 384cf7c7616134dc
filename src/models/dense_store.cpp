#include "models/dense_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "models/dense_reader.h"
#include "quant/codec.h"

namespace penstock::models {
namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;
constexpr uint64_t kMostGap = uint64_t{64} << 10;  // read along rather than starting a new run
constexpr int kReaders = 4;
constexpr uint64_t kMadeAlignment = 64;

void decode(const gguf::Tensor& tensor, bool transposed, uint64_t count, const std::byte* from,
            float* to) {
  const auto n_in = static_cast<int64_t>(tensor.ne[0]);
  const auto n_rows = static_cast<int64_t>(count);
  std::vector<float> row(static_cast<size_t>(n_in));
  for (int64_t r = 0; r < n_rows; ++r, from += tensor.row_bytes) {
    quant::decode_row(tensor.type, from, row.data(), n_in);
    for (int64_t i = 0; i < n_in; ++i) {
      to[transposed ? i * n_rows + r : r * n_in + i] = row[static_cast<size_t>(i)];
    }
  }
}

}  // namespace

// A stretch of a file to be read: into its place, or into scratch, from which rows are made.
struct DenseStore::Piece {
  const gguf::Shard* shard;
  uint64_t start, bytes;  // page-aligned
  std::byte* to;          // where it goes, or where the first of the rows made from it goes
  const Made* made;       // null: as it stands
  uint64_t first, count;  // of the tensor's rows
};

void DenseStore::add_matrix(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor) {
  const gguf::TypeId type = conversions_.type_for(file, tensor);
  if (type == tensor.type) {
    add_verbatim(out, file, tensor);
    return;
  }
  converts_ = true;
  out->type = type;
  out->row_bytes = gguf::row_bytes(type, tensor.ne[0]);
  made_.push_back(
      {&file, &tensor, tensor.rows() * out->row_bytes, out->row_bytes,
       [&tensor, type](uint64_t first, uint64_t count, const std::byte* from, std::byte* to) {
         convert_rows(tensor, type, first, count, from, to);
       },
       [out](const std::byte* made) { out->data = made; }});
}

void DenseStore::add_verbatim(ops::Matrix* out, const gguf::Model& file,
                              const gguf::Tensor& tensor) {
  raws_.push_back({out, &file, &tensor});
}

void DenseStore::add_gathered(ops::Matrix* out, const gguf::Model& file, const gguf::Tensor& tensor,
                              std::vector<int64_t> rows) {
  const uint64_t bytes = rows.size() * tensor.row_bytes;
  made_.push_back(
      {&file, &tensor, bytes, 0,
       [&tensor, rows = std::move(rows)](uint64_t, uint64_t, const std::byte* from, std::byte* to) {
         for (const int64_t row : rows) {
           std::memcpy(to, from + static_cast<uint64_t>(row) * tensor.row_bytes, tensor.row_bytes);
           to += tensor.row_bytes;
         }
       },
       [out](const std::byte* made) { out->data = made; }});
}

void DenseStore::add_floats(const float** out, const gguf::Model& file, const gguf::Tensor& tensor,
                            bool transposed) {
  made_.push_back(
      {&file, &tensor, tensor.n_elements() * sizeof(float), 0,
       [&tensor, transposed](uint64_t, uint64_t count, const std::byte* from, std::byte* to) {
         decode(tensor, transposed, count, from, reinterpret_cast<float*>(to));
       },
       [out](const std::byte* made) { *out = reinterpret_cast<const float*>(made); }});
}

void DenseStore::add_decoded(ops::Matrix* out, const gguf::Model& file,
                             const gguf::Tensor& tensor) {
  made_.push_back({&file, &tensor, tensor.n_elements() * sizeof(float),
                   tensor.ne[0] * sizeof(float),
                   [&tensor](uint64_t, uint64_t count, const std::byte* from, std::byte* to) {
                     decode(tensor, false, count, from, reinterpret_cast<float*>(to));
                   },
                   [out](const std::byte* made) { out->data = made; }});
}

std::vector<size_t> DenseStore::raws_by_place() const {
  std::vector<size_t> order(raws_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::tuple(raws_[i].file->path(), raws_[i].tensor->shard, raws_[i].tensor->offset);
    };
    return key(a) < key(b);
  });
  return order;
}

std::vector<DenseStore::Run> DenseStore::runs() const {
  std::vector<Run> runs;
  uint64_t place = 0;
  for (const size_t i : raws_by_place()) {
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

// Ranges that touch or overlap are one; those of different files never are.
std::vector<DenseStore::Range> DenseStore::ranges() const {
  std::vector<Range> ranges;
  for (const size_t i : raws_by_place()) {
    const gguf::Tensor& tensor = *raws_[i].tensor;
    const std::byte* const data = raws_[i].file->data(tensor);
    const uint64_t before = reinterpret_cast<uintptr_t>(data) % kPageSize;
    const std::byte* const start = data - before;
    const uint64_t bytes = round_up(before + tensor.bytes, kPageSize);
    const std::string* path = &raws_[i].file->shards()[tensor.shard].path;
    if (!ranges.empty() && ranges.back().path == path &&
        start <= ranges.back().start + ranges.back().bytes) {
      Range& last = ranges.back();
      last.bytes = std::max(last.bytes, static_cast<uint64_t>(start - last.start) + bytes);
    } else {
      ranges.push_back({start, bytes, path, tensor.offset - before});
    }
  }
  return ranges;
}

uint64_t DenseStore::copied_bytes() const {
  const std::vector<Run> all = runs();
  return all.empty() ? 0 : all.back().place + all.back().end - all.back().start;
}

uint64_t DenseStore::mapped_bytes() const {
  uint64_t bytes = 0;
  for (const Range& range : ranges()) bytes += range.bytes;
  return bytes;
}

uint64_t DenseStore::made_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const Made& made : made_) bytes += round_up(made.bytes, kMadeAlignment);
  return round_up(bytes, kPageSize);
}

// At most kPiece bytes each, except for a tensor that is made as a whole, or rows longer than that.
std::vector<DenseStore::Piece> DenseStore::pieces(const std::vector<Run>& runs) const {
  std::vector<Piece> pieces;
  uint64_t place = 0;
  for (const Made& made : made_) {
    const gguf::Tensor& tensor = *made.tensor;
    const uint64_t rows = tensor.rows();
    const uint64_t step =
        made.row_bytes == 0 ? rows : std::max<uint64_t>(1, kPiece / tensor.row_bytes);
    for (uint64_t first = 0; first < rows; first += step) {
      const uint64_t count = std::min(step, rows - first);
      const uint64_t offset = tensor.offset + first * tensor.row_bytes;
      const uint64_t start = round_down(offset, kPageSize);
      const uint64_t end = round_up(offset + count * tensor.row_bytes, kPageSize);
      pieces.push_back({&made.file->shards()[tensor.shard], start, end - start,
                        made_memory_.data() + place + first * made.row_bytes, &made, first, count});
    }
    place += round_up(made.bytes, kMadeAlignment);
  }
  for (const Run& run : runs) {
    for (uint64_t at = run.start; at < run.end; at += kPiece) {
      pieces.push_back({run.shard, at, std::min(kPiece, run.end - at),
                        copied_memory_.data() + run.place + (at - run.start), nullptr, 0, 0});
    }
  }
  return pieces;
}

// Everything is read by few threads in stretches of at most a piece, tensors to be made among them:
// through the mapping the kernel would read megabytes around each of those. Converting takes the
// processor's time, so all threads do it, each with scratch for one piece.
uint64_t DenseStore::read_all(const std::vector<Run>& runs, int n_threads,
                              const LoadProgress& progress) const {
  const std::vector<Piece> all = pieces(runs);
  std::map<const gguf::Shard*, DenseReader> readers;
  uint64_t total = 0;
  for (const Piece& piece : all) {
    readers.try_emplace(piece.shard, *piece.shard);
    total += piece.bytes;
  }
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> done{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](bool report) {
    try {
      Mapping scratch;
      for (size_t i = next++; i < all.size(); i = next++) {
        const Piece& piece = all[i];
        const DenseReader& reader = readers.at(piece.shard);
        if (piece.made == nullptr) {
          reader.read(piece.start, piece.bytes, piece.to);
        } else {
          if (scratch.size() < piece.bytes) scratch = Mapping(piece.bytes, Pages::Small);
          reader.read(piece.start, piece.bytes, scratch.data());
          const gguf::Tensor& tensor = *piece.made->tensor;
          const uint64_t offset = tensor.offset + piece.first * tensor.row_bytes;
          piece.made->make(piece.first, piece.count, scratch.data() + (offset - piece.start),
                           piece.to);
        }
        const uint64_t so_far = done += piece.bytes;
        if (report && progress) progress(so_far, total);
      }
    } catch (...) {
      next = all.size();
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < (converts_ ? std::max(kReaders, n_threads) : kReaders); ++i) {
    threads.emplace_back(work, false);
  }
  work(true);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  if (progress) progress(total, total);
  return total;
}

void DenseStore::copy_in(int threads, const LoadProgress& progress) {
  copied_memory_ = Mapping(copied_bytes(), Pages::Huge);
  const std::vector<Run> all = runs();
  read_all(all, threads, progress);
  for (const Run& run : all) {
    for (const size_t i : run.raws) {
      raws_[i].out->data =
          copied_memory_.data() + run.place + (raws_[i].tensor->offset - run.start);
    }
  }
}

// Used in place, page for page: whatever lies between the used tensors (experts, what is converted
// or not used at all) must not come into memory with them. So the whole mapping is told that it is
// used at random, the used ranges are fetched at once, and then, should they be dropped, in larger
// pieces again.
void DenseStore::map_in(int threads, const LoadProgress& progress) {
  const std::vector<Range> all = ranges();
  const uint64_t mapped = mapped_bytes();
  const uint64_t read = read_all({}, threads, [&](uint64_t done, uint64_t total) {
    if (progress) progress(done, total + mapped);
  });
  std::set<const gguf::Model*> files;
  for (const Raw& raw : raws_) files.insert(raw.file);
  for (const Made& made : made_) files.insert(made.file);
  for (const gguf::Model* file : files) {
    for (const gguf::Tensor& tensor : file->tensors()) file->advise(tensor, MADV_RANDOM);
  }
  uint64_t done = read;
  for (const Range& range : all) {
    fault_in(range.start, range.bytes, *range.path, [&](uint64_t bytes) {
      done += bytes;
      if (progress) progress(done, read + mapped);
    });
    madvise(const_cast<std::byte*>(range.start), range.bytes, MADV_NORMAL);
  }
  for (const Raw& raw : raws_) raw.out->data = raw.file->data(*raw.tensor);
}

void DenseStore::load(DenseMode mode, int threads, const LoadProgress& progress) {
  mode_ = mode;
  made_memory_ = Mapping(made_bytes(), Pages::Huge);
  if (mode == DenseMode::Copy) {
    copy_in(threads, progress);
  } else {
    map_in(threads, progress);
  }
  uint64_t place = 0;
  for (const Made& made : made_) {
    made.done(made_memory_.data() + place);
    place += round_up(made.bytes, kMadeAlignment);
  }
  loaded_ = true;
}

void DenseStore::lock(const MemoryLocker& lock) {
  regions_.clear();
  const auto add = [&](std::string what, const std::byte* start, uint64_t bytes) {
    if (bytes == 0) return;
    const int error = lock(start, bytes);
    regions_.push_back({std::move(what), bytes, error == 0 ? bytes : 0, error});
  };
  if (mode_ == DenseMode::Map) {
    for (const Range& range : ranges()) {
      add(fmt::format("{} from byte {}", *range.path, range.offset), range.start, range.bytes);
    }
  } else {
    add("copied", copied_memory_.data(), copied_memory_.size());
  }
  add("made", made_memory_.data(), made_memory_.size());
  lock_tried_ = true;
  vm_locked_ = locked_memory();
  lock_limit_ = memory_lock_limit();
}

DenseReport DenseStore::report() const {
  DenseReport report;
  std::set<const gguf::Tensor*> seen;
  const auto count = [&](const gguf::Tensor* tensor, uint64_t live) {
    report.bytes_live += live;
    if (!seen.insert(tensor).second) return;
    ++report.tensors;
    report.bytes_file += tensor->bytes;
  };
  for (const Raw& raw : raws_) count(raw.tensor, raw.tensor->bytes);
  for (const Made& made : made_) count(made.tensor, made.bytes);
  if (loaded_) {
    report.bytes_pages =
        made_memory_.size() + (mode_ == DenseMode::Map ? mapped_bytes() : copied_memory_.size());
  }
  report.converted.assign(conversions_.report().begin(), conversions_.report().end());
  report.lock_tried = lock_tried_;
  report.regions = regions_;
  report.vm_locked = vm_locked_;
  report.lock_limit = lock_limit_;
  return report;
}

}  // namespace penstock::models
