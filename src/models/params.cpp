#include "models/params.h"

#include <cmath>

#include "base/error.h"

namespace penstock::models {

bool Params::has(std::string_view key) const {
  return file_.metadata().has(file_.arch_key(key));
}

void Params::refuse(std::string_view key, const std::string& why) const {
  fail(ErrorKind::Format, "{}: {}: {}; the file does not describe a model that can run",
       file_.path(), file_.arch_key(key), why);
}

int Params::checked(const std::string& key, int64_t value, int64_t min, int64_t max) const {
  if (value < min || value > max) {
    fail(ErrorKind::Format,
         "{}: {} is {}, outside {} to {}; the file is damaged or made for another program",
         file_.path(), key, value, min, max);
  }
  return static_cast<int>(value);
}

int Params::count(std::string_view key, int64_t min, int64_t max) const {
  const std::string full = file_.arch_key(key);
  return checked(full, file_.metadata().get_i64(full), min, max);
}

int Params::count_or(std::string_view key, int fallback, int64_t min, int64_t max) const {
  return has(key) ? count(key, min, max) : fallback;
}

std::vector<int> Params::per_layer(std::string_view key, int n, int64_t min, int64_t max) const {
  const std::string full = file_.arch_key(key);
  std::vector<int> values;
  for (const uint64_t value : file_.metadata().get_u64_per_layer(full, static_cast<uint64_t>(n))) {
    const auto most = static_cast<uint64_t>(INT64_MAX);
    values.push_back(checked(full, static_cast<int64_t>(std::min(value, most)), min, max));
  }
  return values;
}

double Params::real(std::string_view key, double min, double max) const {
  const std::string full = file_.arch_key(key);
  const double value = file_.metadata().get_f64(full);
  if (!(value >= min && value <= max)) {
    fail(ErrorKind::Format, "{}: {} is {}, outside {} to {}; the file is damaged", file_.path(),
         full, value, min, max);
  }
  return value;
}

double Params::real_or(std::string_view key, double fallback, double min, double max) const {
  return has(key) ? real(key, min, max) : fallback;
}

std::vector<uint64_t> Params::u64_array(std::string_view key, size_t n) const {
  std::vector<uint64_t> values = file_.metadata().get_u64_array(file_.arch_key(key));
  if (values.size() != n) {
    refuse(key, fmt::format("{} entries where {} are needed", values.size(), n));
  }
  return values;
}

std::vector<bool> Params::recurrent_layers(int n_blocks, int n_trunk) const {
  std::vector<bool> recurrent(static_cast<size_t>(n_blocks), false);
  if (has("attention.recurrent_layers")) {
    const std::vector<bool> given =
        file_.metadata().get_bool_array(file_.arch_key("attention.recurrent_layers"));
    if (given.size() != recurrent.size() && given.size() != static_cast<size_t>(n_trunk)) {
      refuse("attention.recurrent_layers",
             fmt::format("{} entries for {} blocks", given.size(), n_blocks));
    }
    for (int l = 0; l < n_trunk; ++l) {
      recurrent[static_cast<size_t>(l)] = given[static_cast<size_t>(l)];
    }
    return recurrent;
  }
  const int interval = count_or("full_attention_interval", 4, 1, kMostLayers);
  for (int l = 0; l < n_trunk; ++l) recurrent[static_cast<size_t>(l)] = (l + 1) % interval != 0;
  return recurrent;
}

// spec/moe-architectures.md §1.3
ops::RopeScaling Params::rope_scaling() const {
  ops::RopeScaling scaling;
  const std::string_view type =
      file_.metadata().get_string(file_.arch_key("rope.scaling.type"), "none");
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn") {
    fail(ErrorKind::Unsupported, "{}: {} \"{}\" is not known (known: none, linear, yarn)",
         file_.path(), file_.arch_key("rope.scaling.type"), type);
  }
  scaling.factor = real("rope.scaling.factor", 1e-3, 1e6);
  scaling.type = type == "linear" ? ops::RopeScaling::Type::Linear : ops::RopeScaling::Type::Yarn;
  if (scaling.type == ops::RopeScaling::Type::Yarn) {
    scaling.original_context = real("rope.scaling.original_context_length", 1.0, 1e9);
    scaling.beta_fast = real_or("rope.scaling.yarn_beta_fast", 32.0, 1e-3, 1e6);
    scaling.beta_slow = real_or("rope.scaling.yarn_beta_slow", 1.0, 1e-3, 1e6);
    scaling.attention_factor = real_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3);
  }
  return scaling;
}

}  // namespace penstock::models
