#include "measure/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/formula.h"
#include "measure/toml_fields.h"

namespace penstock::measure {
namespace {

constexpr std::array kVerdicts = {
    "OK",           "MISMATCH",      "NO SOURCE",       "MISLABELLED",
    "UNCOMPARABLE", "UNDER-SAMPLED", "QUALITY MISSING", "UNIDENTIFIED BUILD",
    "NOT MEASURED"};
constexpr std::array kStatistics = {"unnamed", "single", "median", "min", "max", "range", "all"};
constexpr std::array kKinds = {"ratio", "percent", "less", "share", "difference", "after"};
constexpr std::array kNeeds = {"quality", "coverage", "footprint", "paired arm"};
constexpr std::array kDiffers = {"prompt", "tokens", "context", "budget", "model", "machine"};

// Where in the file a claim stands, for messages.
struct Place {
  std::string path;
  size_t line;
  std::string what;  // "[[claim]]"

  template <typename... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::Format, "{}: line {}: {}: {}", path, line, what,
         fmt::format(text, std::forward<Args>(args)...));
  }
};

template <size_t N>
std::string one_of(const std::array<const char*, N>& names, size_t first = 0) {
  std::string out;
  for (size_t i = first; i < N; ++i) out += (out.empty() ? "" : ", ") + std::string(names[i]);
  return out;
}

template <size_t N>
void expect_known(const std::array<const char*, N>& names, const std::string& name,
                  const char* field, const Place& place) {
  for (const char* known : names) {
    if (name == known) return;
  }
  place.wrong("{} '{}' is none of: {}", field, name, one_of(names));
}

std::vector<Verdict> read_accept(TomlFields& fields, const Place& place) {
  std::vector<Verdict> out;
  for (const std::string& name : fields.texts("accept", false)) {
    const auto verdict = parse_verdict(name);
    if (!verdict || *verdict == Verdict::Ok) {
      place.wrong("accept: '{}' is none of: {}", name, one_of(kVerdicts, 1));
    }
    if (!can_accept(*verdict)) place.wrong("accept: {} can never be accepted", name);
    out.push_back(*verdict);
  }
  return out;
}

// A number keeps the digits that it is written with only in a text or where the file has them.
Written written_of(const toml::node& node, const std::vector<std::string>& lines,
                   const Place& place) {
  if (const auto text = node.value_exact<std::string>()) {
    if (const auto number = parse_written(*text)) return *number;
    place.wrong("value '{}' is no number", *text);
  }
  const auto number = node.value<double>();
  if (!number || !std::isfinite(*number)) place.wrong("value must be a number or a text of one");
  const size_t line = node.source().begin.line, column = node.source().begin.column;
  if (line >= 1 && line <= lines.size() && column >= 1 && column <= lines[line - 1].size()) {
    const std::string& text = lines[line - 1];
    const size_t end = std::min(text.find_first_of(",] }#\t", column - 1), text.size());
    const auto there = parse_written(text.substr(column - 1, end - column + 1));
    if (there && there->value == *number) return *there;
  }
  if (const auto shortest = parse_written(fmt::format("{}", *number))) return *shortest;
  place.wrong("value must be a number that can be written with digits");
}

void read_source(TomlFields& fields, ClaimSource* source, const Place& place) {
  if (auto records = fields.texts("records", false); !records.empty()) source->records = records;
  const std::string figure = fields.text("figure", ""), formula = fields.text("formula", "");
  if (!figure.empty() && !formula.empty()) place.wrong("either a figure or a formula");
  if (!figure.empty()) *source = {source->records, figure, {}, source->each};
  if (!formula.empty()) *source = {source->records, {}, formula, source->each};
  source->each = fields.text("each", source->each);
  if (!source->each.empty() && source->each[0] != '/' && source->each[0] != '[') {
    place.wrong("each must begin with / or [");
  }
  try {
    if (!source->formula.empty()) Formula checked(source->formula);
  } catch (const Error& error) {
    place.wrong("{}", error.what());
  }
}

const toml::table* sub_table(const toml::table& table, const char* key, const Place& place) {
  const toml::node* node = table.get(key);
  if (node == nullptr) return nullptr;
  if (!node->is_table()) place.wrong("{} must be a table", key);
  return node->as_table();
}

// Fields that are no plain texts or numbers, and that TomlFields is not to see.
constexpr std::array kSpecial = {"value", "against", "log", "in_sample", "prompt_tokens", "digits"};

class ClaimReader {
 public:
  ClaimReader(std::string path, const std::string& text) : path_(std::move(path)) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      lines_.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  void read(toml::table& table, std::vector<Claim>* out) {
    Claim base;
    base.line = table.source().begin.line;
    const Place place{path_, base.line, "[[claim]]"};
    digits_.reset();
    toml::array values;
    if (toml::node* list = table.get("values")) {
      if (!list->is_array_of_tables() || list->as_array()->empty()) {
        place.wrong("values must be a list of tables");
      }
      values = std::move(*list->as_array());
      table.erase("values");
    }
    apply(table, &base, "[[claim]]");
    if (values.empty()) {
      finish(&base);
      out->push_back(std::move(base));
      return;
    }
    const std::optional<int> digits = digits_;
    size_t index = 0;
    for (toml::node& node : values) {
      toml::table& entry = *node.as_table();
      Claim claim = base;
      digits_ = digits;
      claim.line = entry.source().begin.line;
      apply(entry, &claim, "[[claim]].values");
      claim.id = fmt::format("{}.{}", base.id.empty() ? fmt::format("line-{}", base.line) : base.id,
                             ++index);
      finish(&claim);
      out->push_back(std::move(claim));
    }
  }

 private:
  void apply(toml::table& table, Claim* claim, const char* where) {
    const Place place{path_, table.source().begin.line, where};
    read_value(table, claim, place);
    if (const toml::node* node = table.get("prompt_tokens")) {
      const auto n = node->value_exact<int64_t>();
      if (!n || *n < 0) place.wrong("prompt_tokens must be a count");
      claim->prompt_tokens = static_cast<uint64_t>(*n);
    }
    if (const toml::node* node = table.get("in_sample")) {
      claim->in_sample = node->value_exact<bool>();
      if (!claim->in_sample) place.wrong("in_sample must be true or false");
    }
    if (const toml::table* against = sub_table(table, "against", place)) {
      read_against(*against, claim, place);
    }
    if (const toml::table* log = sub_table(table, "log", place)) read_log(*log, claim, place);
    if (table.contains("values")) place.wrong("values within values");
    for (const char* key : kSpecial) table.erase(key);

    TomlFields fields(table, where, path_);
    claim->id = fields.text("id", claim->id);
    claim->text = fields.text("text", claim->text);
    const std::string unit = fields.text("unit", "");
    if (!unit.empty()) claim->unit = parse_unit(unit);
    const std::string statistic = fields.text("statistic", "");
    if (!statistic.empty()) {
      expect_known(kStatistics, statistic, "statistic", place);
      const auto* at = std::find(kStatistics.begin(), kStatistics.end(), statistic);
      claim->statistic = static_cast<Statistic>(at - kStatistics.begin());
    }
    read_source(fields, &claim->source, place);
    claim->phase = fields.text("phase", claim->phase);
    claim->exact = fields.flag("exact", claim->exact);
    if (auto needs = fields.texts("requires", false); !needs.empty()) {
      for (const std::string& need : needs) expect_known(kNeeds, need, "requires", place);
      claim->needs = std::move(needs);
    }
    for (const Verdict verdict : read_accept(fields, place)) claim->accept.push_back(verdict);
    claim->reason = fields.text("reason", claim->reason);
    fields.finish();
  }

  void read_value(const toml::table& table, Claim* claim, const Place& place) {
    if (const toml::node* node = table.get("value")) {
      claim->value.clear();
      if (const toml::array* pair = node->as_array()) {
        if (pair->size() != 2) place.wrong("a range has two values");
        for (const toml::node& end : *pair) {
          claim->value.push_back(written_of(end, lines_, place));
        }
        if (claim->value[0].value > claim->value[1].value) {
          place.wrong("the range begins with its upper end");
        }
      } else {
        claim->value.push_back(written_of(*node, lines_, place));
      }
    }
    if (const toml::node* node = table.get("digits")) {
      const auto digits = node->value_exact<int64_t>();
      if (!digits || *digits < -18 || *digits > 18)
        place.wrong("digits: -18 to 18 after the point");
      digits_ = static_cast<int>(*digits);
    }
    if (digits_) {
      for (Written& value : claim->value) value.digits = *digits_;
    }
  }

  void read_against(const toml::table& table, Claim* claim, const Place& place) {
    ClaimAgainst against;
    TomlFields fields(table, "against", path_);
    read_source(fields, &against.source, place);
    against.kind = fields.text("kind", "");
    if (!against.kind.empty()) expect_known(kKinds, against.kind, "kind", place);
    against.differs = fields.texts("differs", false);
    for (const std::string& name : against.differs) {
      expect_known(kDiffers, name, "differs", place);
    }
    fields.finish();
    claim->against = std::move(against);
  }

  void read_log(const toml::table& table, Claim* claim, const Place& place) {
    ClaimLog log;
    const toml::node* count = table.get("count");
    if (count != nullptr) {
      const auto n = count->value_exact<int64_t>();
      if (!n || *n < 0) place.wrong("log.count must be a count");
      log.count = static_cast<uint64_t>(*n);
    }
    toml::table rest = table;
    rest.erase("count");
    TomlFields fields(rest, "log", path_);
    log.record = fields.text("record");
    log.pattern = fields.text("pattern");
    fields.finish();
    claim->log = std::move(log);
  }

  // What the text itself says is taken from it.
  void finish(Claim* claim) {
    const Place place{path_, claim->line, "[[claim]]"};
    if (claim->id.empty()) claim->id = fmt::format("line-{}", claim->line);
    if (claim->text.empty()) place.wrong("it needs a text: the words of the document");
    const std::vector<NumberInText> all = numbers_in(claim->text);
    if (claim->value.empty()) {
      std::vector<const NumberInText*> measured;
      for (const NumberInText& number : all) {
        if (number.unit) measured.push_back(&number);
      }
      const bool range = measured.size() == 2 && measured[0]->to_next;
      if (measured.size() != 1 && !range) {
        place.wrong("its text has {} numbers with units: say which it is in 'value'",
                    measured.size());
      }
      for (const NumberInText* number : measured) claim->value.push_back(number->number);
      if (digits_) {
        for (Written& value : claim->value) value.digits = *digits_;
      }
    }
    if (claim->unit.name.empty()) {
      for (const NumberInText& number : all) {
        if (number.unit && number.number.text == claim->value[0].text) claim->unit = *number.unit;
      }
    }
    if (claim->against && claim->against->kind.empty()) {
      claim->against->kind = claim->unit.dimension == Dimension::Ratio     ? "ratio"
                             : claim->unit.dimension == Dimension::Percent ? "percent"
                                                                           : "difference";
    }
    if (claim->value.size() == 2) {
      if (claim->statistic == Statistic::Unnamed) claim->statistic = Statistic::Range;
      if (claim->statistic != Statistic::Range) place.wrong("two values are a range");
    } else if (claim->statistic == Statistic::Range) {
      place.wrong("a range has two values");
    }
    if (claim->exact && claim->unit.is_speed()) {
      place.wrong("a time or a rate is never exact: it needs several runs");
    }
    if (!claim->accept.empty() && claim->reason.empty()) {
      place.wrong("what is accepted needs a 'reason'");
    }
  }

  std::string path_;
  std::vector<std::string> lines_;
  std::optional<int> digits_;
};

void read_archived(const toml::table& root, Claims* out) {
  const toml::node* node = root.get("archived");
  if (node == nullptr) return;
  const Place whole{out->path, node->source().begin.line, "[archived]"};
  if (!node->is_table()) whole.wrong("must be a table");
  for (const auto& [key, entry] : *node->as_table()) {
    const std::string name(key.str());
    const Place place{out->path, entry.source().begin.line, "archived." + name};
    ArchivedFile file;
    if (const auto text = entry.value_exact<std::string>()) {
      file.sha256 = *text;
    } else if (const toml::table* table = entry.as_table()) {
      TomlFields fields(*table, "archived." + name, out->path);
      file.sha256 = fields.text("sha256");
      file.accept = read_accept(fields, place);
      file.reason = fields.text("reason", "");
      fields.finish();
      if (!file.accept.empty() && file.reason.empty()) {
        place.wrong("what is accepted needs a 'reason'");
      }
    }
    Sha256 parsed;
    if (!parse_sha256(file.sha256, &parsed)) place.wrong("must have the file's SHA-256");
    out->archived[name] = std::move(file);
  }
}

// "campaigns/*" stands for every folder in campaigns, so that none can be forgotten; in order of
// their names.
std::vector<std::string> with_folders_below(const std::vector<std::string>& names,
                                            const std::string& folder, const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (!name.ends_with("/*")) {
      out.push_back(name);
      continue;
    }
    const std::string parent = name.substr(0, name.size() - 2);
    std::vector<std::string> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::path(folder) / parent, error)) {
      std::error_code ignored;
      if (entry.is_directory(ignored)) {
        found.push_back(parent + "/" + entry.path().filename().string());
      }
    }
    if (found.empty()) {
      fail(ErrorKind::Format, "{}: records: there is no folder that '{}' stands for", path, name);
    }
    std::sort(found.begin(), found.end());
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

}  // namespace

const char* verdict_name(Verdict verdict) noexcept {
  return kVerdicts[static_cast<size_t>(verdict)];
}

std::optional<Verdict> parse_verdict(const std::string& name) {
  for (size_t i = 0; i < kVerdicts.size(); ++i) {
    if (name == kVerdicts[i]) return static_cast<Verdict>(i);
  }
  return std::nullopt;
}

bool can_accept(Verdict verdict) noexcept {
  return verdict != Verdict::Mismatch && verdict != Verdict::NoSource;
}

const char* statistic_name(Statistic statistic) noexcept {
  return kStatistics[static_cast<size_t>(statistic)];
}

namespace {

void read_limits(const toml::table& root, Claims* out) {
  const toml::node* node = root.get("quality_limits");
  if (node == nullptr) return;
  const toml::table* table = node->as_table();
  if (table == nullptr) {
    fail(ErrorKind::Format, "{}: line {}: quality_limits is no table", out->path,
         node->source().begin.line);
  }
  TomlFields fields(*table, "[quality_limits]", out->path);
  QualityLimits& limits = out->limits;
  limits.mean_kld = fields.number("mean_kld", limits.mean_kld, 0, 100);
  limits.top_loss = fields.number("top_loss", limits.top_loss, 0, 1);
  limits.ln_ppl_ratio = fields.number("ln_ppl_ratio", limits.ln_ppl_ratio, 0, 100);
  limits.replaced_share = fields.number("replaced_share", limits.replaced_share, 0, 1);
  fields.finish();
}

}  // namespace

Claims read_claims(const std::string& path) {
  Claims out;
  out.path = path;
  out.folder = std::filesystem::path(path).parent_path().string();
  const std::string text = read_text_file(path);
  toml::table root = parse_toml(text, path);
  read_archived(root, &out);
  read_limits(root, &out);
  for (const toml::table* table : toml_tables(root, "setting", path)) {
    TomlFields fields(*table, "[[setting]]", path);
    Setting setting;
    setting.line = table->source().begin.line;
    setting.quotes = fields.texts("quote", true);
    setting.reason = fields.text("reason");
    fields.finish();
    out.settings.push_back(std::move(setting));
  }
  toml_tables(root, "claim", path);  // says what is wrong if it is no list of tables
  ClaimReader reader(path, text);
  if (toml::node* list = root.get("claim")) {
    for (toml::node& node : *list->as_array()) reader.read(*node.as_table(), &out.claims);
  }
  std::set<std::string> ids;
  for (const Claim& claim : out.claims) {
    if (!ids.insert(claim.id).second) {
      fail(ErrorKind::Format, "{}: line {}: there are two claims '{}'", path, claim.line, claim.id);
    }
  }
  for (const char* key : {"archived", "quality_limits", "setting", "claim"}) root.erase(key);
  TomlFields fields(root, "the file", path);
  out.records = with_folders_below(fields.texts("records", false), out.folder, path);
  out.documents = fields.texts("documents", false);
  out.exclude = fields.texts("exclude", false);
  fields.finish();
  return out;
}

}  // namespace penstock::measure
