#include "surgery/rewrite_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "base/machine.h"

namespace penstock::surgery {

namespace fs = std::filesystem;
using gguf::Tensor;

SourceFiles::SourceFiles(const gguf::Model& model) {
  for (const gguf::Shard& shard : model.shards()) {
    files_.push_back(File::open_read(shard.path));
    stamps_.push_back(stamp(files_.back()));
  }
}

void SourceFiles::read(const Tensor& tensor, uint64_t offset, std::span<std::byte> out) const {
  files_[tensor.shard].read_at(tensor.offset + offset, out);
}

void SourceFiles::advise(const Tensor& tensor, uint64_t offset, uint64_t bytes,
                         int advice) const noexcept {
  ::posix_fadvise(files_[tensor.shard].fd(), static_cast<off_t>(tensor.offset + offset),
                  static_cast<off_t>(bytes), advice);
}

void SourceFiles::check_unchanged() const {
  for (size_t i = 0; i < files_.size(); ++i) {
    if (stamp(files_[i]) != stamps_[i]) {
      fail(ErrorKind::Io,
           "{} was written to while it was read: what was made is given up; start "
           "again",
           files_[i].path());
    }
  }
}

SourceFiles::Stamp SourceFiles::stamp(const File& file) {
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) {
    fail(ErrorKind::Io, "cannot stat {}: {}", file.path(), errno_text(errno));
  }
  return {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

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

void check_room(const gguf::Writer& writer, const std::string& out) {
  uint64_t held = 0;
  for (const std::string& name : writer.file_names()) {
    struct stat info {};
    if (::stat((name + ".partial").c_str(), &info) == 0) {
      held += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  const uint64_t need = writer.total_bytes() - std::min(writer.total_bytes(), held);
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
         "another folder with -o",
         format_bytes(need), out, need, format_bytes(free), format_bytes(need - free));
  }
}

void check_output(const gguf::Model& source, const std::string& path, bool may_exist) {
  std::error_code error;
  if (!fs::exists(path, error)) return;
  for (const gguf::Shard& shard : source.shards()) {
    if (fs::equivalent(path, shard.path, error)) {
      fail(ErrorKind::Usage, "{} is the model itself: name another file", path);
    }
  }
  if (fs::is_directory(path, error)) fail(ErrorKind::Usage, "{} is a folder: name a file", path);
  if (!may_exist) fail(ErrorKind::Usage, "{} exists: --force replaces it", path);
}

}  // namespace penstock::surgery
