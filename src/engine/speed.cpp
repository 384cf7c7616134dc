#include "engine/speed.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"

namespace penstock::engine {
namespace {

constexpr double kRange[] = {0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0};

double mean_read_bytes(const std::vector<experts::LayerLoad>& layers) {
  double bytes = 0, n = 0;
  for (const experts::LayerLoad& layer : layers) {
    bytes += layer.read_bytes * layer.n_expert;
    n += layer.n_expert;
  }
  return n > 0 ? bytes / n : 0;
}

std::vector<experts::LayerLoad> loads_of(const OpenedModel& opened) {
  return experts::layer_loads(opened.source.geometry, opened.source.files->alignment());
}

// Multiplied with every token: neither an expert, nor rows that are gathered, nor a draft block's.
bool is_dense_matrix(const OpenedModel& opened, const gguf::Tensor& tensor) {
  if (tensor.n_dims != 2 || gguf::is_expert_bank(tensor.name) || !quant::has_kernel(tensor.type)) {
    return false;
  }
  if (tensor.name == "token_embd.weight") return opened.file->find("output.weight") == nullptr;
  const models::TableGeometry* table = opened.model->table();
  if (table != nullptr && table->offset == tensor.offset) return false;
  const std::vector<std::string>& unused = opened.model->info().unused_tensors;
  if (std::find(unused.begin(), unused.end(), tensor.name) != unused.end()) return false;
  int block = 0;
  if (tensor.name.starts_with("blk.")) {
    std::from_chars(tensor.name.data() + 4, tensor.name.data() + tensor.name.size(), block);
  }
  return block < opened.model->info().n_layer;
}

// The floor that the kernels' rates set; nothing where one of them was not measured.
std::optional<experts::DecodeCost> estimate(const OpenedModel& opened, const MachineFile& file,
                                            SpeedFigures* out) {
  const ComputeKey key = compute_key(opened.options);
  experts::DecodeCost cost;
  for (const TypeWork& work : token_work(opened)) {
    const KernelFigures* rate = file.find_kernel(key, gguf::type_name(work.type));
    if (rate == nullptr) return std::nullopt;
    const double experts_s = static_cast<double>(work.expert_bytes) / rate->bytes_per_s;
    cost.experts_s += experts_s;
    cost.token_s += experts_s + static_cast<double>(work.dense_bytes) / rate->bytes_per_s;
    out->compute_time =
        out->compute_time == 0 ? rate->measured : std::min(out->compute_time, rate->measured);
  }
  return cost;
}

}  // namespace

ComputeKey compute_key(const RuntimeOptions& options) {
  return {cpu_facts().model, options.threads, quant::isa_name(quant::current_isa()),
          options.precision == quant::Precision::Exact ? "exact" : "fast"};
}

DiskKey disk_key(const OpenedModel& opened) {
  struct stat info {};
  const experts::StreamFiles& files = *opened.source.files;
  if (files.size() > 0 && fstat(files.fd(0), &info) != 0) {
    fail(ErrorKind::Io, "{}: {}", files.path(0), errno_text(errno));
  }
  return {cpu_facts().model, static_cast<uint64_t>(info.st_dev),
          stride_class(mean_read_bytes(loads_of(opened))),
          experts::io_mode_name(opened.options.stream.io), opened.options.stream.depth};
}

std::vector<TypeWork> token_work(const OpenedModel& opened) {
  struct Sum {
    TypeWork work;
    std::map<int64_t, uint64_t> bytes_of_row;
  };
  std::map<gguf::TypeId, Sum> sums;
  const auto add = [&](gguf::TypeId type, int64_t n_in, uint64_t dense, uint64_t expert) {
    Sum& sum = sums[type];
    sum.work.type = type;
    sum.work.dense_bytes += dense;
    sum.work.expert_bytes += expert;
    sum.bytes_of_row[n_in] += dense + expert;
  };
  for (const gguf::Tensor& tensor : opened.file->tensors()) {
    if (is_dense_matrix(opened, tensor)) {
      const gguf::TypeId type = opened.model->held_type(tensor);
      add(type, static_cast<int64_t>(tensor.ne[0]),
          tensor.rows() * gguf::row_bytes(type, tensor.ne[0]), 0);
    }
  }
  for (const experts::LayerGeometry& layer : opened.source.geometry.layers) {
    for (const experts::MatrixGeometry* m : {&layer.gate, &layer.up, &layer.down}) {
      add(m->type, m->n_in, 0, m->bytes * static_cast<uint64_t>(layer.n_used));
    }
  }
  std::vector<TypeWork> out;
  for (auto& [type, sum] : sums) {
    const auto most =
        std::max_element(sum.bytes_of_row.begin(), sum.bytes_of_row.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    sum.work.n_in = most->first;
    out.push_back(sum.work);
  }
  return out;
}

SpeedFigures speed_figures(const OpenedModel& opened, const MachineFile& file) {
  SpeedFigures out;
  out.layers = loads_of(opened);
  if (const DiskFigures* disk = file.find(disk_key(opened))) {
    out.disk = *disk;
  } else {
    out.missing.emplace_back(
        "expert reads of this size from this file system, with this --io and --io-depth");
  }
  const ModelFigures* model =
      file.find_model(compute_key(opened.options), hex(opened.file->header_id()));
  if (model != nullptr) {
    out.decode = {model->token_s, model->experts_s, model->shared_s};
    out.decode_measured = true;
    out.decode_tokens = model->tokens;
    out.prompt_token_s = model->prompt_token_s;
    out.prompt_tokens = model->prompt_tokens;
    out.compute_time = model->measured;
  } else {
    out.decode = estimate(opened, file, &out);
  }
  if (!out.decode) {
    out.missing.emplace_back(
        "computing with this model's types, with these threads, instruction set and precision");
  }
  return out;
}

SpeedPrediction predict_speed(const SpeedFigures& figures, const MemoryPlan& plan,
                              const std::vector<HitRate>& given) {
  SpeedPrediction out;
  if (!figures.disk || !figures.decode || !plan.outcome.fits()) return out;
  const experts::DiskCost disk = {figures.disk->bytes_per_s, figures.disk->latency_s};
  const experts::ArenaShape& shape = plan.outcome.plan.shape;
  const double uniform = shape.n_experts() == 0 ? 1
                                                : static_cast<double>(shape.slots()) /
                                                      static_cast<double>(shape.n_experts());
  std::vector<HitRate> rates = given;
  if (shape.holds_all()) {
    rates.push_back({1, "every expert has a slot"});
  } else {
    rates.push_back({uniform, "slots / experts, uniformly random routing"});
    for (const double rate : kRange) {
      if (rate > uniform + 0.02) rates.push_back({rate, {}});
    }
  }
  std::stable_sort(rates.begin(), rates.end(),
                   [](const HitRate& a, const HitRate& b) { return a.rate < b.rate; });
  for (HitRate& rate : rates) {
    const double hits = rate.rate;
    out.rows.push_back(
        {std::move(rate), experts::predict_decode(figures.layers, *figures.decode, disk, hits)});
  }
  out.break_even_reads = experts::break_even_reads(figures.layers, *figures.decode, disk);
  if (figures.prompt_token_s > 0) {
    const int chunk = plan.prompt_chunk;
    const auto prompt = [&](double resident) {
      return experts::predict_prompt(figures.layers, figures.prompt_token_s, disk, chunk, chunk,
                                     resident);
    };
    out.prompt_cold = prompt(0);
    out.prompt_warm = prompt(uniform);
  }
  return out;
}

}  // namespace penstock::engine
