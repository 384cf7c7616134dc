#include "gguf/model.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "gguf/parser.h"

namespace penstock::gguf {
namespace {

constexpr std::string_view kSuffix = "-00000-of-00000.gguf";

// Opening a FIFO or a device would block or make no sense of sizes.
void require_regular_file(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    fail(ErrorKind::Io, "cannot open {}: {}", path, errno_text(errno));
  }
  if (S_ISDIR(info.st_mode)) {
    fail(ErrorKind::Io, "{} is a directory; name a .gguf file in it", path);
  }
  if (!S_ISREG(info.st_mode)) fail(ErrorKind::Io, "{} is not a regular file", path);
}

}  // namespace

bool parse_shard_name(const std::string& path, ShardName* out) {
  if (path.size() < kSuffix.size()) return false;
  const size_t start = path.size() - kSuffix.size();
  const std::string_view suffix = std::string_view(path).substr(start);
  uint64_t numbers[2] = {0, 0};
  int which = 0;
  for (size_t i = 0; i < kSuffix.size(); ++i) {
    if (kSuffix[i] == '0') {
      if (std::isdigit(static_cast<unsigned char>(suffix[i])) == 0) return false;
      numbers[which] = numbers[which] * 10 + static_cast<uint64_t>(suffix[i] - '0');
    } else {
      if (suffix[i] != kSuffix[i]) return false;
      if (suffix[i] == 'o') which = 1;  // past "-of-"
    }
  }
  *out = {path.substr(0, start), numbers[0], numbers[1]};
  return true;
}

std::string shard_path(const std::string& prefix, uint64_t number, uint64_t total) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, number, total);
}

void Parser::add(ParsedFile file, std::span<const std::byte> view) {
  const auto shard = static_cast<uint32_t>(model_.shards_.size());
  Metadata metadata;
  metadata.path_ = file.shard.path;
  metadata.entries_ = std::move(file.entries);
  for (size_t i = 0; i < metadata.entries_.size(); ++i) {
    metadata.index_.emplace(metadata.entries_[i].key, i);
  }
  for (Tensor& tensor : file.tensors) {
    tensor.shard = shard;
    model_.tensors_.push_back(std::move(tensor));
  }
  model_.shards_.push_back(std::move(file.shard));
  model_.metadata_.push_back(std::move(metadata));
  model_.views_.push_back(view);
}

void Parser::add_file(const std::string& path) {
  require_regular_file(path);
  FileMap map(File::open_read(path));
  const std::span<const std::byte> view(map.data(), map.size());
  model_.maps_.push_back(std::move(map));
  add(parse_file(view, path, options_), view);
}

// The given file is shard `no` of `count`: opens all of them in order, by the name as given (the
// files may be links to names that say nothing).
void Parser::open_set() {
  const Metadata& given = model_.metadata_.front();
  const uint64_t count = given.get_u64("split.count");
  const uint64_t no = given.get_u64("split.no");
  ShardName name;
  if (!parse_shard_name(model_.path_, &name)) {
    fail(ErrorKind::Format,
         "{}: this is shard {} of {} (keys split.no, split.count), but its name does not end in "
         "-{:05}-of-{:05}.gguf, so the other shards cannot be found; give the files their names",
         model_.path_, no + 1, count, no + 1, count);
  }
  if (name.number != no + 1 || name.total != count) {
    fail(ErrorKind::Format,
         "{}: the name says shard {} of {}, but keys split.no and split.count say {} of {}; the "
         "files were renamed or mixed up",
         model_.path_, name.number, name.total, no + 1, count);
  }
  const std::string path = model_.path_;
  model_ = Model();
  model_.path_ = path;
  for (uint64_t i = 1; i <= count; ++i) {
    const std::string shard = shard_path(name.prefix, i, count);
    struct stat info {};
    if (stat(shard.c_str(), &info) != 0 && errno == ENOENT) {
      fail(ErrorKind::Io, "{}: shard {} of {} is missing: no file {}; download it", path, i, count,
           shard);
    }
    add_file(shard);
    const Metadata& metadata = model_.metadata_.back();
    if (metadata.get_u64("split.count") != count || metadata.get_u64("split.no") != i - 1) {
      fail(ErrorKind::Format,
           "{}: keys split.no and split.count say shard {} of {}, but by its name it is {} of {}; "
           "the files were renamed or mixed up",
           shard, metadata.get_u64("split.no") + 1, metadata.get_u64("split.count"), i, count);
    }
  }
}

// Shards of one model: the same total of tensors everywhere, that many tensors in all, and no other
// architecture in a later shard.
void Parser::check_set() const {
  const Metadata& first = model_.metadata_.front();
  const uint64_t total = first.get_u64("split.tensors.count");
  for (const Metadata& metadata : model_.metadata_) {
    if (metadata.get_u64("split.tensors.count", total) != total) {
      fail(ErrorKind::Format,
           "{}: key split.tensors.count is {}, but {} in {}; these are shards of different models",
           metadata.path(), metadata.get_u64("split.tensors.count"), total, first.path());
    }
    if (metadata.has("general.architecture") &&
        metadata.get_string("general.architecture") != first.get_string("general.architecture")) {
      fail(ErrorKind::Format,
           "{}: key general.architecture is {}, but {} in {}; these are shards of different models",
           metadata.path(), printable(metadata.get_string("general.architecture")),
           printable(first.get_string("general.architecture")), first.path());
    }
  }
  if (model_.tensors_.size() != total) {
    fail(ErrorKind::Format,
         "{}: the {} shards hold {} tensors, but key split.tensors.count says {}; these are shards "
         "of different models or of different versions of one, download the set again",
         first.path(), model_.shards_.size(), model_.tensors_.size(), total);
  }
}

Model Parser::finish() {
  for (size_t i = 0; i < model_.tensors_.size(); ++i) {
    const Tensor& tensor = model_.tensors_[i];
    const auto [at, inserted] = model_.index_.emplace(tensor.name, i);
    if (!inserted) {
      fail(ErrorKind::Format, "{}: tensor {} is also in {}; these are shards of different models",
           model_.shards_[tensor.shard].path, printable(tensor.name),
           model_.shards_[model_.tensors_[at->second].shard].path);
    }
  }
  return std::move(model_);
}

Model Parser::open(const std::string& path, const OpenOptions& options) {
  Parser parser(options);
  parser.model_.path_ = path;
  parser.add_file(path);
  ShardName name;
  if (parser.model_.metadata_.front().get_u64("split.count", 0) > 1) {
    parser.open_set();
    parser.check_set();
  } else if (parse_shard_name(path, &name) && name.total > 1) {
    log::warn(
        "{}: the name says shard {} of {}, but the file has no key split.count; it is read "
        "alone",
        path, name.number, name.total);
  }
  return parser.finish();
}

Model Parser::from_memory(std::span<const std::byte> bytes, const std::string& path,
                          const OpenOptions& options) {
  Parser parser(options);
  parser.model_.path_ = path;
  parser.add(parse_file(bytes, path, options), bytes);
  if (parser.model_.metadata_.front().get_u64("split.count", 0) > 1) {
    fail(ErrorKind::Format, "{}: this is one shard of a set; open it as a file", path);
  }
  return parser.finish();
}

Model Model::open(const std::string& path, const OpenOptions& options) {
  return Parser::open(path, options);
}

Model Model::from_memory(std::span<const std::byte> bytes, const std::string& path,
                         const OpenOptions& options) {
  return Parser::from_memory(bytes, path, options);
}

uint64_t Model::file_bytes() const noexcept {
  uint64_t sum = 0;
  for (const Shard& shard : shards_) sum += shard.file_bytes;
  return sum;
}

std::string Model::arch_key(std::string_view suffix) const {
  return fmt::format("{}.{}", architecture(), suffix);
}

const Tensor* Model::find(std::string_view name) const noexcept {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const Tensor& Model::require(std::string_view name) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) {
    fail(ErrorKind::Format,
         "{}: tensor {} is missing; the file is incomplete or of another architecture, convert the "
         "model again or get it from its publisher",
         path_, name);
  }
  return *tensor;
}

const std::byte* Model::data(const Tensor& tensor) const {
  if (!tensor.present) {
    fail(
        ErrorKind::Format,
        "{}: tensor {} has no data in this file (it ends before byte {}); give the pack that holds "
        "the experts, or the whole model",
        shards_[tensor.shard].path, tensor.name, tensor.offset + tensor.bytes);
  }
  return views_[tensor.shard].data() + tensor.offset;
}

void Model::advise(const Tensor& tensor, int advice) const noexcept {
  if (tensor.present && tensor.shard < maps_.size()) {
    maps_[tensor.shard].advise(tensor.offset, tensor.bytes, advice);
  }
}

Sha256 Model::header_id() const {
  Sha256Stream hash;
  for (size_t i = 0; i < shards_.size(); ++i)
    hash.update(views_[i].data(), shards_[i].header_bytes);
  return hash.finish();
}

Sha256 Model::model_id() const {
  if (adopted_id_) return *adopted_id_;
  constexpr uint64_t kPiece = 4096;
  Sha256Stream hash;
  for (size_t i = 0; i < shards_.size(); ++i)
    hash.update(views_[i].data(), shards_[i].header_bytes);
  for (const Tensor& tensor : tensors_) {
    const std::byte* start = data(tensor);
    const uint64_t piece = std::min(kPiece, tensor.bytes);
    hash.update(start, piece);
    hash.update(start + tensor.bytes - piece, piece);
  }
  return hash.finish();
}

std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (uint32_t d = 0; d < tensor.n_dims; ++d) {
    text += fmt::format("{}{}", d == 0 ? "" : ", ", tensor.ne[d]);
  }
  return text + "]";
}

bool is_expert_bank(std::string_view tensor_name) noexcept {
  if (!tensor_name.starts_with("blk.")) return false;
  for (const char* kind : {".ffn_gate_exps.weight", ".ffn_up_exps.weight", ".ffn_down_exps.weight",
                           ".ffn_gate_up_exps.weight"}) {
    if (tensor_name.ends_with(kind)) return true;
  }
  return false;
}

}  // namespace penstock::gguf
