#include "gguf/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/abandoned.h"
#include "base/error.h"
#include "base/memory.h"
#include "gguf/output_file.h"
#include "gguf/parser.h"

namespace penstock::gguf {
namespace {

template <typename T>
void put(std::string* out, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out->append(raw, sizeof value);
}

void put_text(std::string* out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out->append(text);
}

void put_pair(std::string* out, std::string_view key, ValueType type,
              std::span<const std::byte> payload) {
  put_text(out, key);
  put(out, static_cast<uint32_t>(type));
  out->append(reinterpret_cast<const char*>(payload.data()), payload.size());
}

template <typename T>
std::span<const std::byte> raw(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

struct Writer::Declared {
  std::string name;
  TypeId type{};
  std::vector<uint64_t> dims;
  uint64_t bytes = 0;
  bool absent = false;
  size_t output = 0;
  uint64_t offset = 0;  // relative to the data section of its file
  std::atomic<uint64_t> written{0};
  uint64_t descriptor_bytes() const noexcept { return 8 + name.size() + 4 + 8 * dims.size() + 12; }
};

struct Writer::Output {
  std::string path;
  std::unique_ptr<OutputFile> file;
  std::vector<Declared*> tensors;
  std::string header;  // written last, so that an unfinished file is no GGUF
  uint64_t header_bytes = 0;
  uint64_t data_start = 0;
  uint64_t data_bytes = 0;
  uint64_t absent_bytes = 0;  // described, behind the end of the file
  uint64_t started = 0;       // written_before(): up to here on the way to the disk
  uint64_t dropped = 0;       // and up to here out of the page cache
  uint64_t file_bytes() const noexcept { return data_start + data_bytes; }
};

Writer::Writer(std::string path, WriterOptions options)
    : path_(std::move(path)), options_(options) {
  const uint64_t a = options_.alignment;
  if (a == 0 || (a & (a - 1)) != 0 || a > (uint64_t{1} << 20)) {
    fail(ErrorKind::Usage, "alignment {} is no power of two from 1 to 1048576", a);
  }
}

Writer::~Writer() = default;

void Writer::pair(std::string_view key, ValueType type, std::span<const std::byte> payload) {
  if (laid_out_) fail(ErrorKind::Internal, "{}: key {} set after begin()", path_, key);
  if (key.empty() || !keys_.insert(std::string(key)).second) {
    fail(ErrorKind::Internal, "{}: key \"{}\" is empty or set twice", path_, key);
  }
  put_pair(&pairs_, key, type, payload);
  ++n_pairs_;
}

void Writer::array(std::string_view key, ValueType element, uint64_t count,
                   std::span<const std::byte> payload) {
  std::string value;
  put(&value, static_cast<uint32_t>(element));
  put(&value, count);
  value.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  pair(key, ValueType::Array, std::as_bytes(std::span(value)));
}

void Writer::set_u16(std::string_view key, uint16_t value) {
  pair(key, ValueType::U16, raw(value));
}
void Writer::set_u32(std::string_view key, uint32_t value) {
  pair(key, ValueType::U32, raw(value));
}
void Writer::set_i32(std::string_view key, int32_t value) {
  pair(key, ValueType::I32, raw(value));
}
void Writer::set_u64(std::string_view key, uint64_t value) {
  pair(key, ValueType::U64, raw(value));
}
void Writer::set_f32(std::string_view key, float value) {
  pair(key, ValueType::F32, raw(value));
}
void Writer::set_bool(std::string_view key, bool value) {
  pair(key, ValueType::Bool, raw(static_cast<uint8_t>(value ? 1 : 0)));
}
void Writer::set_string(std::string_view key, std::string_view value) {
  std::string payload;
  put_text(&payload, value);
  pair(key, ValueType::String, std::as_bytes(std::span(payload)));
}
void Writer::set_i32_array(std::string_view key, std::span<const int32_t> values) {
  array(key, ValueType::I32, values.size(), std::as_bytes(values));
}
void Writer::set_u32_array(std::string_view key, std::span<const uint32_t> values) {
  array(key, ValueType::U32, values.size(), std::as_bytes(values));
}
void Writer::set_u64_array(std::string_view key, std::span<const uint64_t> values) {
  array(key, ValueType::U64, values.size(), std::as_bytes(values));
}
void Writer::set_f32_array(std::string_view key, std::span<const float> values) {
  array(key, ValueType::F32, values.size(), std::as_bytes(values));
}
void Writer::set_string_array(std::string_view key, std::span<const std::string> values) {
  std::string payload;
  for (const std::string& value : values) put_text(&payload, value);
  array(key, ValueType::String, values.size(), std::as_bytes(std::span(payload)));
}

void Writer::set_copy(const Entry& entry) {
  if (entry.is_array()) {
    array(entry.key, entry.element, entry.count, entry.bytes);
  } else if (entry.type == ValueType::String) {
    set_string(entry.key, {reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()});
  } else {
    pair(entry.key, entry.type, entry.bytes);
  }
}

bool Writer::has(std::string_view key) const noexcept {
  return keys_.count(std::string(key)) != 0;
}

size_t Writer::add_tensor(std::string_view name, TypeId type, std::span<const uint64_t> dims) {
  if (laid_out_) fail(ErrorKind::Internal, "{}: tensor {} added after begin()", path_, name);
  if (name.empty() || name.size() > 63 || !names_.insert(std::string(name)).second) {
    fail(ErrorKind::Internal, "{}: tensor name \"{}\" is empty, longer than 63 bytes or used twice",
         path_, name);
  }
  if (dims.empty() || dims.size() > 4) {
    fail(ErrorKind::Internal, "{}: tensor {} has {} dimensions", path_, name, dims.size());
  }
  auto tensor = std::make_unique<Declared>();
  tensor->name = name;
  tensor->type = type;
  tensor->dims.assign(dims.begin(), dims.end());
  const TypeInfo& info = type_info(type);
  bool fits = dims[0] % info.block_elems == 0 &&
              !__builtin_mul_overflow(dims[0] / info.block_elems, uint64_t{info.block_bytes},
                                      &tensor->bytes);
  for (size_t d = 0; d < dims.size(); ++d) {
    fits = fits && dims[d] > 0 &&
           (d == 0 || !__builtin_mul_overflow(tensor->bytes, dims[d], &tensor->bytes));
  }
  if (!fits || tensor->bytes >> 62 != 0) {
    fail(ErrorKind::Internal, "{}: tensor {} of type {} cannot have the shape [{}]", path_, name,
         info.name, fmt::join(dims, ", "));
  }
  tensors_.push_back(std::move(tensor));
  return tensors_.size() - 1;
}

void Writer::add_absent_tensor(std::string_view name, TypeId type, std::span<const uint64_t> dims) {
  if (options_.max_shard_bytes > 0) {
    fail(ErrorKind::Internal, "{}: a set of shards cannot leave tensor {} out", path_, name);
  }
  tensors_[add_tensor(name, type, dims)]->absent = true;
}

// Shares the tensors out to files and gives each its place.
void Writer::place_tensors(uint64_t own_bytes) {
  const uint64_t a = options_.alignment;
  constexpr uint64_t kSplitPairBytes = 22 + 25 + 35;
  const auto start_output = [&] {
    outputs_.push_back(std::make_unique<Output>());
    outputs_.back()->header_bytes = 24 + own_bytes + (outputs_.size() == 1 ? pairs_.size() : 0) +
                                    (options_.max_shard_bytes > 0 ? kSplitPairBytes : 0);
  };
  start_output();
  for (const auto& tensor : tensors_) {
    const uint64_t room = round_up(tensor->bytes, a);
    const uint64_t after = round_up(outputs_.back()->header_bytes + tensor->descriptor_bytes(), a) +
                           outputs_.back()->data_bytes + room;
    if (options_.max_shard_bytes > 0 && after > options_.max_shard_bytes &&
        !outputs_.back()->tensors.empty()) {
      start_output();
    }
    Output& output = *outputs_.back();
    if (!tensor->absent && output.absent_bytes > 0) {
      fail(ErrorKind::Internal, "{}: tensor {} follows tensors without data", path_, tensor->name);
    }
    tensor->output = outputs_.size() - 1;
    tensor->offset = output.data_bytes + output.absent_bytes;
    output.tensors.push_back(tensor.get());
    output.header_bytes += tensor->descriptor_bytes();
    (tensor->absent ? output.absent_bytes : output.data_bytes) += room;
  }
}

void Writer::layout() {
  if (laid_out_) fail(ErrorKind::Internal, "{}: laid out twice", path_);
  laid_out_ = true;
  const uint64_t a = options_.alignment;
  std::string own;  // pairs that every file carries
  uint64_t n_own = 0;
  if (a != 32) {
    put_pair(&own, "general.alignment", ValueType::U32, raw(static_cast<uint32_t>(a)));
    ++n_own;
  }
  place_tensors(own.size());
  const size_t count = outputs_.size();
  if (count > std::numeric_limits<uint16_t>::max()) {
    fail(ErrorKind::Usage, "{}: {} shards are too many; choose larger ones", path_, count);
  }
  std::string prefix = path_;
  if (prefix.ends_with(".gguf")) prefix.resize(prefix.size() - 5);
  for (size_t i = 0; i < count; ++i) {
    Output& output = *outputs_[i];
    output.path = count > 1 ? shard_path(prefix, i + 1, count) : path_;
    std::string header = "GGUF";
    put<uint32_t>(&header, 3);
    put<uint64_t>(&header, output.tensors.size());
    put<uint64_t>(&header, n_own + (i == 0 ? n_pairs_ : 0) + (count > 1 ? 3 : 0));
    if (i == 0) header += pairs_;
    header += own;
    if (count > 1) {
      put_pair(&header, "split.no", ValueType::U16, raw(static_cast<uint16_t>(i)));
      put_pair(&header, "split.count", ValueType::U16, raw(static_cast<uint16_t>(count)));
      put_pair(&header, "split.tensors.count", ValueType::I32,
               raw(static_cast<int32_t>(tensors_.size())));
    }
    for (const Declared* tensor : output.tensors) {
      put_text(&header, tensor->name);
      put(&header, static_cast<uint32_t>(tensor->dims.size()));
      for (const uint64_t size : tensor->dims) put(&header, size);
      put(&header, static_cast<uint32_t>(tensor->type));
      put(&header, tensor->offset);
    }
    output.header_bytes = header.size();
    output.data_start = round_up(header.size(), a);
    output.header = std::move(header);
  }
}

void Writer::begin() {
  if (begun_) fail(ErrorKind::Internal, "{}: begin() called twice", path_);
  if (!laid_out_) layout();
  begun_ = true;
  for (const auto& output : outputs_) {
    remove_abandoned(output->path);
    output->file = std::make_unique<OutputFile>(output->path, options_.resumable);
    output->file->reserve(output->file_bytes());
    if (options_.resumable) output->file->zero(0, output->data_start);  // an old header, for one
  }
}

void Writer::hash_headers(Sha256Stream* hash) const {
  for (const auto& output : outputs_) hash->update(output->header.data(), output->header.size());
}

void Writer::take_back() {
  for (const auto& output : outputs_) {
    const std::string partial = OutputFile::kept_name(output->path);
    int error = 0;
    const File file = File::try_open(output->path, O_RDONLY, &error);
    if (!file || ::access(partial.c_str(), F_OK) == 0 || file.size() != output->file_bytes()) {
      continue;
    }
    std::string header(output->header.size(), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(header)));
    if (header == output->header && ::rename(output->path.c_str(), partial.c_str()) != 0) {
      fail(ErrorKind::Io, "cannot rename {} to {}: {}", output->path, partial, errno_text(errno));
    }
  }
}

bool Writer::read_at(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  const Declared& from = *tensors_[tensor];
  const Output& output = *outputs_[from.output];
  return output.file->read_at(output.data_start + from.offset + offset, out);
}

void Writer::is_there(size_t tensor, uint64_t bytes) {
  tensors_[tensor]->written.fetch_add(bytes, std::memory_order_relaxed);
}

void Writer::discard() {
  for (const auto& output : outputs_) {
    if (output->file) output->file->discard();
  }
}

void Writer::write_at(size_t tensor, uint64_t offset, std::span<const std::byte> piece) {
  if (!begun_ || finished_ || tensor >= tensors_.size()) {
    fail(ErrorKind::Internal, "{}: data written outside begin() and finish()", path_);
  }
  Declared& to = *tensors_[tensor];
  if (to.absent || offset > to.bytes || piece.size() > to.bytes - offset) {
    fail(ErrorKind::Internal, "{}: tensor {} has {} bytes; {} more at {} were written", path_,
         to.name, to.bytes, piece.size(), offset);
  }
  Output& output = *outputs_[to.output];
  output.file->write_at(output.data_start + to.offset + offset, piece);
  to.written.fetch_add(piece.size(), std::memory_order_relaxed);
}

void Writer::written_before(size_t tensor, uint64_t offset) noexcept {
  constexpr uint64_t kWindow = uint64_t{32} << 20;
  const Declared& to = *tensors_[tensor];
  Output& output = *outputs_[to.output];
  const uint64_t end = output.data_start + to.offset + offset;
  if (end < output.started + kWindow) return;
  const int fd = output.file->fd();
  const auto sync = [fd](uint64_t from, uint64_t until, unsigned flags) {
    ::sync_file_range(fd, static_cast<off_t>(from), static_cast<off_t>(until - from), flags);
  };
  sync(output.started, end, SYNC_FILE_RANGE_WRITE);
  if (output.started > output.dropped) {
    sync(output.dropped, output.started,
         SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(fd, static_cast<off_t>(output.dropped),
                    static_cast<off_t>(output.started - output.dropped), POSIX_FADV_DONTNEED);
  }
  output.dropped = output.started;
  output.started = end;
}

void Writer::append(std::span<const std::byte> piece) {
  while (current_ < tensors_.size() && tensors_[current_]->written == tensors_[current_]->bytes) {
    ++current_;
  }
  if (piece.empty()) return;
  if (current_ == tensors_.size()) {
    fail(ErrorKind::Internal, "{}: {} bytes more than the tensors hold", path_, piece.size());
  }
  write_at(current_, tensors_[current_]->written, piece);
}

void Writer::finish() {
  if (!begun_ || finished_) fail(ErrorKind::Internal, "{}: finish() out of order", path_);
  for (const auto& tensor : tensors_) {
    if (!tensor->absent && tensor->written != tensor->bytes) {
      fail(ErrorKind::Internal, "{}: tensor {} got {} of its {} bytes", path_, tensor->name,
           tensor->written.load(), tensor->bytes);
    }
  }
  finished_ = true;
  if (options_.resumable) {  // padding, where an earlier file may have had something else
    for (const auto& tensor : tensors_) {
      if (tensor->absent) continue;
      const Output& output = *outputs_[tensor->output];
      const uint64_t end = output.data_start + tensor->offset + tensor->bytes;
      output.file->zero(end, round_up(end, options_.alignment));
    }
  }
  for (const auto& output : outputs_) {
    output->file->write_at(0, std::as_bytes(std::span(output->header)));
  }
  for (size_t i = outputs_.size(); i-- > 0;) outputs_[i]->file->commit();
}

uint64_t Writer::total_bytes() const noexcept {
  uint64_t sum = 0;
  for (const auto& output : outputs_) sum += output->file_bytes();
  return sum;
}

std::vector<std::string> Writer::file_names() const {
  std::vector<std::string> names;
  for (const auto& output : outputs_) names.push_back(output->path);
  return names;
}

}  // namespace penstock::gguf
