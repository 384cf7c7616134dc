// Makes an expert pack from a model (docs/pack.md), with bounded memory. The pack grows under a
// temporary name, OUT.partial, and gets its own when it is complete and on the disk. A run that was
// killed is continued by the next one: what is there is read back and compared with its checksums
// first.
#pragma once

#include <sys/statvfs.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "experts/geometry.h"
#include "experts/options.h"
#include "experts/pack.h"
#include "gguf/model.h"

namespace penstock::experts {

// The system calls that change the disk; tests put failing ones in their place.
struct WriteCalls {
  std::function<ssize_t(int fd, const void* data, size_t bytes, off_t offset)> pwrite;
  std::function<int(int fd)> fsync;
  std::function<int(int fd, int mode, off_t offset, off_t bytes)> fallocate;
  std::function<int(const char* from, const char* to)> rename;
  std::function<int(int fd, struct statvfs* out)> fstatvfs;
  WriteCalls();  // the system's own
};

struct PackRequest {
  const gguf::Model* source = nullptr;
  Geometry geometry;  // the experts in the source's files, draft blocks included
  int n_trunk = 0;    // blocks from this one on are a draft head's
  std::string out;
  std::string tool;  // name and version, for the metadata
  uint32_t align = kDefaultPackAlign;
  bool content_id = false;  // also hash the whole source, which reads it once more
  bool replace = false;     // an existing file `out` that is not the pack wanted
  // A dense-only GGUF to write beside the pack: the model without its expert banks. Empty: none.
  std::string dense_out;
  // How often an unfinished pack notes how far it is: what a killed run loses at most.
  uint64_t checkpoint_bytes = uint64_t{256} << 20;
  StreamOptions stream;  // io, depth and decorate are used
  WriteCalls calls;
  PackProgress progress;
  const std::atomic<bool>* cancel = nullptr;
};

struct PackResult {
  bool existed = false;  // `out` was this model's pack already; nothing was written
  bool dense_existed = false;
  uint64_t file_bytes = 0;
  uint64_t n_records = 0;
  uint64_t packed_bytes = 0;   // records written by this run
  uint64_t resumed_bytes = 0;  // records of an earlier run, compared with their checksums
  uint64_t dense_bytes = 0;    // of the dense-only file, if written
  double seconds = 0;          // for the records written
  std::string io;              // how the source was read
};

// Throws Error(Io) when the disk lacks room (naming how much), when reading or writing fails, when
// another process packs to the same file or the source changes meanwhile; Error(Usage) for an
// output that exists and is something else; Error(Cancelled).
PackResult write_pack(const PackRequest& request);

// The dense-only GGUF of `source`: the same metadata and tensors, the banks of `layers` described
// but behind the end of the file. Appears under its name when complete.
uint64_t write_dense_only(const gguf::Model& source, const Geometry& geometry,
                          const std::string& out, const PackProgress& progress);
uint64_t dense_only_bytes(const gguf::Model& source, const Geometry& geometry);  // about

}  // namespace penstock::experts
