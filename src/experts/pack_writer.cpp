#include "experts/pack_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/abandoned.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "experts/expert_scan.h"
#include "experts/pack_file.h"
#include "experts/pack_identity.h"

namespace penstock::experts {
namespace {

namespace fs = std::filesystem;

uint64_t source_stamp(const gguf::Model& model) {
  std::vector<int64_t> facts;
  for (const gguf::Shard& shard : model.shards()) {
    struct stat info {};
    if (::stat(shard.path.c_str(), &info) != 0) {
      fail(ErrorKind::Io, "cannot stat {}: {}", shard.path, errno_text(errno));
    }
    facts.insert(facts.end(), {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec});
  }
  return xxh64(std::as_bytes(std::span(facts)));
}

// What is decided before a byte is written: header (but for what depends on the records), table and
// metadata. The same source and settings give the same bytes.
struct PackPlan {
  PackHeader header;
  std::vector<PackLayer> layers;
  std::string metadata;
};

std::string metadata_text(const PackRequest& request) {
  nlohmann::ordered_json json;
  json["tool"] = request.tool;
  auto& files = json["source"] = nlohmann::ordered_json::array();
  for (const gguf::Shard& shard : request.source->shards()) {
    files.push_back(
        {{"file", fs::path(shard.path).filename().string()}, {"bytes", shard.file_bytes}});
  }
  json["architecture"] = std::string(request.source->architecture());
  json["parameters"] = {{"align", request.align}, {"layout", "plain"}};
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// What `penstock prune` and `penstock requantise` have written into the model (docs/surgery.md).
void note_surgery(const gguf::Metadata& metadata, PackHeader* h) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0;
  };
  const std::string_view keep_map = metadata.get_string("penstock.keep_map_id", "");
  if (keep_map.size() == 2 * h->keep_map_id.size()) {
    for (size_t i = 0; i < h->keep_map_id.size(); ++i) {
      h->keep_map_id[i] =
          static_cast<uint8_t>(digit(keep_map[2 * i]) << 4 | digit(keep_map[2 * i + 1]));
    }
    h->flags |= kPackPruned;
  }
  h->quant_recipe_id = quant_recipe_id(metadata);
  if (h->quant_recipe_id != Sha256{}) h->flags |= kPackRequantised;
}

PackPlan plan_pack(const PackRequest& request) {
  PackPlan plan;
  PackHeader& h = plan.header;
  const ModelIdentity identity = identify(*request.source);
  if (!identity.whole) {
    fail(ErrorKind::Format,
         "{} does not hold all of its experts: a pack is made from the whole model",
         request.source->path());
  }
  if (request.geometry.layers.empty()) {
    fail(ErrorKind::Unsupported, "{} has no routed experts to pack", request.source->path());
  }
  h.align = request.align;
  h.source_header_id = identity.header_id;
  h.model_id = identity.model_id;
  h.dense_id = identity.dense_id;
  note_surgery(request.source->metadata(), &h);
  if (request.content_id) h.source_content_id = content_id(*request.source);
  h.n_layers = static_cast<uint32_t>(request.geometry.layers.size());
  h.entry_bytes = kPackLayerBytes;
  h.table_off = kPackHeaderBytes;
  h.data_off = round_up(h.table_off + pack_table_bytes(h), h.align);
  uint64_t end = h.data_off;
  bool uniform = true;
  for (const LayerGeometry& layer : request.geometry.layers) {
    const bool draft = layer.layer >= request.n_trunk;
    PackLayer entry = pack_layer(layer, draft ? PackRole::Draft : PackRole::Trunk, h.align);
    entry.base_off = end;
    end += entry.n_expert * entry.stride;
    h.n_records += entry.n_expert;
    if (draft) h.flags |= kPackDraft;
    plan.layers.push_back(entry);
    uniform = uniform && entry.stride == plan.layers.front().stride;
  }
  if (uniform) h.flags |= kPackUniform;
  h.table_sum = xxh64(std::as_bytes(std::span(plan.layers)));
  h.sums_off = end;
  h.sums_bytes = 8 * h.n_records;
  plan.metadata = metadata_text(request);
  h.meta_off = h.sums_off + h.sums_bytes;
  h.meta_bytes = plan.metadata.size();
  h.meta_sum = xxh64(std::as_bytes(std::span(plan.metadata)));
  h.file_bytes = h.meta_off + h.meta_bytes;
  h.source_stamp = source_stamp(*request.source);
  return plan;
}

// Headers of one plan differ only in how far the work is.
PackHeader without_progress(PackHeader header) {
  header.flags &= ~static_cast<uint32_t>(kPackComplete);
  header.header_sum = header.sums_sum = header.n_done = 0;
  return header;
}

// Is this file the pack that the plan would make? Names in its metadata may differ.
bool is_wanted(const std::string& path, const PackPlan& plan) {
  try {
    const Pack pack = Pack::open(path);
    const PackHeader& have = pack.header();
    const PackHeader& want = plan.header;
    return have.source_header_id == want.source_header_id && have.model_id == want.model_id &&
           have.dense_id == want.dense_id && have.align == want.align &&
           have.layout == want.layout && have.table_sum == want.table_sum &&
           (want.source_content_id == Sha256{} || have.source_content_id == want.source_content_id);
  } catch (const Error&) {
    return false;
  }
}

class Packer {
 public:
  Packer(const PackRequest& request, const PackPlan& plan)
      : request_(request), plan_(plan), header_(plan.header), file_(request.out, request.calls) {}

  void run(uint64_t room_beside, PackResult* result);

 private:
  void resume();
  uint64_t check_resumed(uint64_t n);
  void pack_records(PackResult* result);
  void make_record(const ExpertScan::Item& item, const PackLayer& layer);
  void checkpoint();
  void finish();
  void check_cancelled();
  uint64_t bytes_of(uint64_t first, uint64_t n) const;

  const PackRequest& request_;
  const PackPlan& plan_;
  PackHeader header_;
  PartialPack file_;
  std::vector<uint64_t> sums_;  // of all records, zeros for those to come
  Mapping record_;
};

uint64_t Packer::bytes_of(uint64_t first, uint64_t n) const {
  uint64_t bytes = 0;
  uint64_t at = 0;
  for (const PackLayer& layer : plan_.layers) {
    const uint64_t from = std::max(first, at);
    const uint64_t to = std::min(first + n, at + layer.n_expert);
    if (to > from) bytes += (to - from) * layer.stride;
    at += layer.n_expert;
  }
  return bytes;
}

void Packer::check_cancelled() {
  if (request_.cancel == nullptr || !request_.cancel->load()) return;
  checkpoint();
  fail(ErrorKind::Cancelled,
       "interrupted after {} of {} experts; the same command goes on from there", header_.n_done,
       header_.n_records);
}

// Takes over what an earlier run has written, as far as it is what its checksums say.
void Packer::resume() {
  PackHeader there;
  sums_.assign(header_.n_records, 0);
  header_.n_done = 0;
  if (!file_.read_header(&there)) return;
  // Complete, but killed before it got its name.
  if (there.has(kPackComplete)) there.source_stamp = plan_.header.source_stamp;
  if (without_progress(there) != without_progress(plan_.header)) return;
  const uint64_t n = there.has(kPackComplete) ? there.n_records : there.n_done;
  if (n > header_.n_records || file_.file().size() != header_.file_bytes) return;
  file_.file().read_at(header_.sums_off, std::as_writable_bytes(std::span(sums_)));
  header_.n_done = check_resumed(n);
  std::fill(sums_.begin() + static_cast<std::ptrdiff_t>(header_.n_done), sums_.end(), 0);
}

// How many of the first n records are as their checksums say.
uint64_t Packer::check_resumed(uint64_t n) {
  if (n == 0) return 0;
  // The unfinished file, as if it were a pack of the layers' first experts.
  Geometry geometry;
  geometry.shards.push_back(file_.path());
  uint64_t left = n;
  for (size_t l = 0; l < plan_.layers.size() && left > 0; ++l) {
    const PackLayer& layer = plan_.layers[l];
    LayerGeometry g = request_.geometry.layers[l];
    g.record_bytes = layer.stride;
    for (MatrixGeometry* m : {&g.gate, &g.up, &g.down}) {
      m->shard = 0;
      m->offset = layer.base_off;
      m->stride = layer.stride;
    }
    g.n_expert = static_cast<int>(std::min<uint64_t>(left, layer.n_expert));
    left -= static_cast<uint64_t>(g.n_expert);
    geometry.layers.push_back(g);
  }
  StreamOptions options = request_.stream;
  options.decorate = {};
  ExpertScan scan(geometry, options);
  const uint64_t total = bytes_of(0, n);
  uint64_t good = 0;
  while (const ExpertScan::Item* item = scan.next()) {
    const uint64_t stride = plan_.layers[static_cast<size_t>(item->index)].stride;
    if (item->error != 0 || xxh64({item->data.gate, stride}) != sums_[good]) break;
    ++good;
    if (request_.progress) request_.progress("checking what is there", bytes_of(0, good), total);
    if (request_.cancel != nullptr && request_.cancel->load()) {
      fail(ErrorKind::Cancelled, "interrupted; the same command goes on");
    }
  }
  return good;
}

void Packer::make_record(const ExpertScan::Item& item, const PackLayer& layer) {
  std::byte* record = record_.data();
  const auto put = [&](const std::byte* from, uint64_t at, uint64_t bytes, uint64_t end) {
    std::memcpy(record + at, from, bytes);
    std::memset(record + at + bytes, 0, end - at - bytes);
  };
  put(item.data.gate, 0, layer.gate_bytes, layer.up_off);
  put(item.data.up, layer.up_off, layer.up_bytes, layer.down_off);
  put(item.data.down, layer.down_off, layer.down_bytes, layer.stride);
}

// Only what is in the page cache is promised, which a killed process leaves behind; after a power
// failure the checksums tell what has not reached the disk.
void Packer::checkpoint() {
  file_.write(header_.sums_off, std::as_bytes(std::span(sums_)));
  header_.header_sum = header_sum(header_);
  file_.write(0, std::as_bytes(std::span(&header_, 1)));
}

void Packer::pack_records(PackResult* result) {
  uint64_t largest = kPageSize;
  for (const PackLayer& layer : plan_.layers) largest = std::max(largest, layer.stride);
  record_ = Mapping(largest, Pages::Small);
  ExpertScan scan(request_.geometry, request_.stream, header_.n_done);
  result->io = scan.report().describe();
  const uint64_t total = bytes_of(header_.n_done, header_.n_records - header_.n_done);
  uint64_t since_checkpoint = 0;
  while (const ExpertScan::Item* item = scan.next()) {
    check_cancelled();
    const PackLayer& layer = plan_.layers[static_cast<size_t>(item->index)];
    if (item->error != 0) {
      fail(ErrorKind::Io,
           "expert {} of layer {} could not be read: {}; check the file and the disk", item->expert,
           layer.layer, item->error_text());
    }
    make_record(*item, layer);
    const std::span<const std::byte> record(record_.data(), layer.stride);
    sums_[header_.n_done] = xxh64(record);
    file_.write_behind(layer.base_off + static_cast<uint64_t>(item->expert) * layer.stride, record);
    ++header_.n_done;
    result->packed_bytes += layer.stride;
    since_checkpoint += layer.stride;
    if (since_checkpoint >= request_.checkpoint_bytes) {
      checkpoint();
      since_checkpoint = 0;
    }
    if (request_.progress) request_.progress("packing", result->packed_bytes, total);
  }
  const std::string changed = scan.files().changed();
  if (!changed.empty()) {
    file_.remove();
    fail(ErrorKind::Io, "{}: what was packed is given up; start again", changed);
  }
}

// The header that calls the pack complete goes to the disk after everything that it vouches for.
void Packer::finish() {
  file_.write(header_.sums_off, std::as_bytes(std::span(sums_)));
  file_.sync();
  header_.flags |= kPackComplete;
  header_.n_done = header_.source_stamp = 0;
  header_.sums_sum = xxh64(std::as_bytes(std::span(sums_)));
  header_.header_sum = header_sum(header_);
  file_.write(0, std::as_bytes(std::span(&header_, 1)));
  file_.commit();
}

void Packer::run(uint64_t room_beside, PackResult* result) {
  resume();
  const bool keep = header_.n_done > 0;
  result->resumed_bytes = bytes_of(0, header_.n_done);
  try {
    file_.reserve(header_.file_bytes, room_beside, keep);
  } catch (const Error&) {
    if (!keep) file_.remove();
    throw;
  }
  checkpoint();
  file_.write(header_.table_off, std::as_bytes(std::span(plan_.layers)));
  file_.write(header_.meta_off, std::as_bytes(std::span(plan_.metadata)));
  const int64_t started = now_ns();
  try {
    pack_records(result);
  } catch (const Error& error) {
    // So that little is lost; a disk that is full or broken may refuse this too.
    try {
      if (error.kind() != ErrorKind::Cancelled && fs::exists(file_.path())) checkpoint();
    } catch (const Error&) {
    }
    throw;
  }
  finish();
  result->seconds = seconds_since(started);
}

bool is_wanted_dense(const std::string& path, const PackPlan& plan) {
  try {
    const gguf::Model model = gguf::Model::open(path, {.allow_missing_experts = true});
    const ModelIdentity identity = identify(model);
    return !identity.whole && identity.dense_id == plan.header.dense_id;
  } catch (const Error&) {
    return false;
  }
}

// True when `out` is there already and is what is wanted.
bool exists_already(const std::string& out, bool wanted, bool replace) {
  std::error_code error;
  if (!fs::exists(out, error)) return false;
  if (fs::is_directory(out, error)) fail(ErrorKind::Usage, "{} is a folder: name a file", out);
  if (wanted) return true;
  if (!replace) {
    fail(ErrorKind::Usage, "{} exists and is something else: --force replaces it", out);
  }
  return false;
}

void check_outputs(const PackRequest& request) {
  if (request.align < 4096 || request.align > (1u << 20) || !std::has_single_bit(request.align)) {
    fail(ErrorKind::Usage, "the alignment {} is no power of two from 4096 to 1048576",
         request.align);
  }
  std::error_code error;
  for (const gguf::Shard& shard : request.source->shards()) {
    for (const std::string& out : {request.out, request.dense_out}) {
      if (!out.empty() && fs::equivalent(out, shard.path, error)) {
        fail(ErrorKind::Usage, "{} is the model itself: name another file", out);
      }
    }
  }
  if (!request.dense_out.empty() && request.dense_out == request.out) {
    fail(ErrorKind::Usage, "the pack and the dense-only model cannot both be {}", request.out);
  }
}

}  // namespace

PackResult write_pack(const PackRequest& request) {
  check_outputs(request);
  const PackPlan plan = plan_pack(request);
  PackResult result;
  result.file_bytes = plan.header.file_bytes;
  result.n_records = plan.header.n_records;
  result.existed = exists_already(request.out, is_wanted(request.out, plan), request.replace);
  const bool dense = !request.dense_out.empty();
  if (dense) {
    result.dense_existed = exists_already(
        request.dense_out, is_wanted_dense(request.dense_out, plan), request.replace);
    remove_abandoned(request.dense_out);
  }
  const bool write_dense = dense && !result.dense_existed;
  if (!result.existed) {
    const uint64_t beside = write_dense ? dense_only_bytes(*request.source, request.geometry) : 0;
    Packer(request, plan).run(beside, &result);
  }
  if (write_dense) {
    result.dense_bytes =
        write_dense_only(*request.source, request.geometry, request.dense_out, request.progress);
  }
  return result;
}

}  // namespace penstock::experts
