#include "surgery/rewrite.h"

#include <fcntl.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/thread_pool.h"
#include "gguf/writer.h"
#include "surgery/rewrite_files.h"
#include "surgery/rewrite_journal.h"
#include "surgery/rewrite_pieces.h"

namespace penstock::surgery {
namespace {

using gguf::Tensor;

constexpr int64_t kPiecesPerThread = 16;  // between two looks at the clock
constexpr size_t kSampleEvery = 100;      // pieces: one is read back when all is done

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
                              .max_shard_bytes = request.max_shard_bytes,
                              .resumable = true}),
        there_(list_.pieces().size()),
        batch_(static_cast<size_t>(kPiecesPerThread * request.pool->size())),
        workspaces_(static_cast<size_t>(request.pool->size())) {}

  RewriteResult run();

 private:
  void lay_out();
  void begin();
  void check_there();
  void check_batch(size_t first, std::span<const std::optional<JournalRecord>> records);
  void say_what_is_there(Journal::Found found) const;
  void work(RewriteResult* result);
  void check_cancelled() const;
  void run_batch(size_t first, size_t n);
  // Returns what was written.
  std::span<const std::byte> run_piece(const Piece& piece, Workspace* space, ErrorSums* sums);
  void note(size_t first, size_t n);
  void read_back(const std::string& written) const;
  std::span<const float> importance_of(const Piece& piece, Workspace* space) const;
  [[noreturn]] void bad_value(const Piece& piece, const BadValue& bad) const;
  void advise(size_t first, size_t n, int advice) const noexcept;
  void fold(size_t first, size_t n, RewriteResult* result);
  template <typename Task>
  void on_all_threads(size_t n, const Task& task);

  const RewriteRequest& request_;
  const RewritePlan& plan_;
  PieceList list_;
  SourceFiles files_;
  gguf::Writer writer_;
  std::optional<Journal> journal_;
  std::vector<uint8_t> there_;  // by piece: an earlier run's
  uint64_t there_bytes_ = 0;    // of the source, that need not be read
  uint64_t done_bytes_ = 0;     // and that this run has read
  size_t n_done_ = 0;           // pieces in the result, by whichever run
  bool hopeless_ = false;       // what is done is worth nothing
  size_t batch_;                // pieces between two looks at the clock
  std::vector<Workspace> workspaces_;
  std::vector<JournalRecord> records_;  // of the batch's pieces
  std::vector<uint64_t> samples_;       // XXH64 of every kSampleEvery-th piece as it was written
};

// task(index, thread) for 0 to n - 1; rethrows what one of them threw.
template <typename Task>
void Rewriter::on_all_threads(size_t n, const Task& task) {
  std::vector<std::exception_ptr> errors(workspaces_.size());
  std::atomic<bool> failed{false};
  request_.pool->parallel_for(static_cast<int64_t>(n), [&](int64_t at, int thread) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      task(static_cast<size_t>(at), static_cast<size_t>(thread));
    } catch (...) {
      errors[static_cast<size_t>(thread)] = std::current_exception();
      failed = true;
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

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

// The batch's pieces that are not there yet, and the records of all.
void Rewriter::run_batch(size_t first, size_t n) {
  records_.assign(n, {});
  std::vector<std::optional<JournalRecord>> known(n);
  if (there_bytes_ > 0) journal_->read(first, known);
  on_all_threads(n, [&](size_t at, size_t thread) {
    if (there_[first + at] != 0) {
      records_[at] = known[at].value();
      return;
    }
    const std::span<const std::byte> written =
        run_piece(list_.pieces()[first + at], &workspaces_[thread], &records_[at].errors);
    records_[at].written = xxh64(written);
  });
}

// To the journal, when the bytes are in the file.
void Rewriter::note(size_t first, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const size_t piece = first + i;
    if (piece % kSampleEvery == 0) samples_[piece / kSampleEvery] = records_[i].written;
    if (there_[piece] != 0) continue;
    journal_->write(piece, records_[i]);
    done_bytes_ += list_.pieces()[piece].bytes;
    ++n_done_;
  }
}

void Rewriter::advise(size_t first, size_t n, int advice) const noexcept {
  const size_t end = std::min(first + n, list_.pieces().size());
  for (size_t i = first; i < end; ++i) {
    if (there_[i] != 0) continue;
    const Piece& piece = list_.pieces()[i];
    files_.advise(*plan_.tensors[piece.tensor].source, piece.from, piece.bytes, advice);
  }
}

// Adds the batch's errors to their tensors', in order.
void Rewriter::fold(size_t first, size_t n, RewriteResult* result) {
  for (size_t i = 0; i < n; ++i) {
    const Piece& piece = list_.pieces()[first + i];
    const bool resumed = there_[first + i] != 0;
    if (resumed) result->resumed_bytes += list_.out_bytes(piece);
    if (piece.n_rows == 0) continue;
    const OutputTensor& tensor = list_.tensor(piece);
    if (result->encoded.empty() || result->encoded.back().tensor != &tensor) {
      const bool weighted =
          request_.imatrix != nullptr && request_.imatrix->find(tensor.source->name) != nullptr;
      result->encoded.push_back({&tensor, weighted, {}});
    }
    const uint64_t row = tensor.source->ne[0];
    const uint64_t before = piece.to / gguf::row_bytes(tensor.type, row) * row;
    result->encoded.back().errors.add(records_[i].errors, before);
    result->n_encoded += piece.n_rows * row;
    if (resumed) result->resumed_encoded += piece.n_rows * row;
  }
}

void Rewriter::lay_out() {
  write_keys(plan_, &writer_);
  for (const OutputTensor& tensor : plan_.tensors) {
    writer_.add_tensor(tensor.source->name, tensor.type, tensor.dims());
  }
  writer_.layout();
}

void Rewriter::begin() {
  lay_out();
  std::vector<std::string> names = writer_.file_names();
  if (names.front() != request_.out) names.push_back(request_.out);
  for (const std::string& name : names) check_output(*plan_.source, name, true);
  journal_.emplace(request_.out);
  Sha256Stream headers;
  writer_.hash_headers(&headers);
  const Sha256 job = rewrite_job(request_, headers.finish());
  const size_t n_pieces = list_.pieces().size();
  const Journal::Found found = journal_->look(job, n_pieces);
  const bool same = found == Journal::Found::Same;
  if (same && journal_->naming()) writer_.take_back();
  for (const std::string& name : names) check_output(*plan_.source, name, request_.replace);
  check_room(writer_, request_.out);
  try {
    writer_.begin();
  } catch (const Error&) {
    if (found == Journal::Found::Nothing) writer_.discard();
    throw;
  }
  journal_->begin(job, n_pieces, same);
  if (same) check_there();
  say_what_is_there(found);
}

// What an earlier run has written, as far as it is what its checksums say.
void Rewriter::check_there() {
  const size_t all = list_.pieces().size();
  std::vector<std::optional<JournalRecord>> records;
  uint64_t total = 0;
  const auto for_batches = [&](const auto& visit) {
    for (size_t first = 0; first < all; first += batch_) {
      records.resize(std::min(batch_, all - first));
      journal_->read(first, records);
      visit(first);
    }
  };
  const auto bytes_of = [&](size_t first) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < records.size(); ++i) {
      if (records[i]) bytes += list_.out_bytes(list_.pieces()[first + i]);
    }
    return bytes;
  };
  for_batches([&](size_t first) { total += bytes_of(first); });
  uint64_t checked = 0;
  for_batches([&](size_t first) {
    const uint64_t bytes = bytes_of(first);
    if (bytes == 0) return;
    check_cancelled();
    check_batch(first, records);
    checked += bytes;
    if (request_.progress) request_.progress("checking what is there", checked, total);
  });
}

void Rewriter::check_batch(size_t first, std::span<const std::optional<JournalRecord>> records) {
  on_all_threads(records.size(), [&](size_t at, size_t thread) {
    if (!records[at]) return;
    const Piece& piece = list_.pieces()[first + at];
    std::vector<std::byte>& bytes = workspaces_[thread].out;
    bytes.resize(list_.out_bytes(piece));
    there_[first + at] =
        writer_.read_at(piece.tensor, piece.to, bytes) && xxh64(bytes) == records[at]->written;
  });
  for (size_t i = first; i < first + records.size(); ++i) {
    if (there_[i] == 0) continue;
    const Piece& piece = list_.pieces()[i];
    writer_.is_there(piece.tensor, list_.out_bytes(piece));
    there_bytes_ += piece.bytes;
    ++n_done_;
  }
  const Piece& last = list_.pieces()[first + records.size() - 1];
  writer_.written_before(last.tensor, last.to);  // what was read back leaves the page cache
}

void Rewriter::say_what_is_there(Journal::Found found) const {
  if (found == Journal::Found::Other) {
    log::warn("{} is of another job, or damaged: starting over", journal_->path());
  }
  if (found != Journal::Found::Same) return;
  std::vector<uint8_t> whole(plan_.tensors.size(), 1);
  uint64_t bytes = 0;
  for (size_t i = 0; i < there_.size(); ++i) {
    const Piece& piece = list_.pieces()[i];
    if (there_[i] == 0) whole[piece.tensor] = 0;
    if (there_[i] != 0) bytes += list_.out_bytes(piece);
  }
  log::info("resuming: {} of {} tensors, {}", std::count(whole.begin(), whole.end(), 1),
            whole.size(), format_bytes(bytes));
}

void Rewriter::check_cancelled() const {
  if (request_.cancel == nullptr || !request_.cancel->load()) return;
  fail(ErrorKind::Cancelled, "interrupted after {} of {}; {} is not there yet{}",
       format_bytes(there_bytes_ + done_bytes_), format_bytes(list_.bytes()), request_.out,
       n_done_ > 0 ? ", the same command goes on with what is done" : "");
}

// One piece in a hundred is compared with what was written; most of them have left the page cache.
void Rewriter::read_back(const std::string& written) const {
  const gguf::Model model = gguf::Model::open(written);
  const SourceFiles files(model);
  std::vector<std::byte> bytes;
  for (size_t s = 0; s < samples_.size(); ++s) {
    const Piece& piece = list_.pieces()[s * kSampleEvery];
    const OutputTensor& tensor = list_.tensor(piece);
    bytes.resize(list_.out_bytes(piece));
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

void Rewriter::work(RewriteResult* result) {
  const size_t all = list_.pieces().size();
  for (size_t first = 0; first < all; first += batch_) {
    check_cancelled();
    const size_t n = std::min(batch_, all - first);
    advise(first + n, batch_, POSIX_FADV_WILLNEED);
    run_batch(first, n);
    advise(first, n, POSIX_FADV_DONTNEED);
    note(first, n);
    fold(first, n, result);
    const Piece& next = list_.pieces()[std::min(first + n, all - 1)];
    writer_.written_before(next.tensor, next.to);
    if (request_.progress) request_.progress("reading", done_bytes_, list_.bytes() - there_bytes_);
  }
  hopeless_ = true;
  files_.check_unchanged();
  hopeless_ = false;
}

RewriteResult Rewriter::run() {
  begin();
  const int64_t started = now_ns();
  RewriteResult result;
  samples_.resize((list_.pieces().size() + kSampleEvery - 1) / kSampleEvery);
  try {
    work(&result);
  } catch (const Error& error) {
    if (hopeless_ || n_done_ == 0 || error.kind() == ErrorKind::Numeric) {
      writer_.discard();
      journal_->remove();
    }
    throw;
  }
  journal_->begin_naming();
  writer_.finish();
  journal_->remove();
  result.files = writer_.file_names();
  result.bytes = writer_.total_bytes();
  result.read_bytes = done_bytes_;
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
