// A table of a TOML file whose fields are taken one by one: what is missing, of another type, or
// was taken by nobody is an Error(Format) that names the file, the line and the field.
#pragma once

#include <toml++/toml.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::measure {

class TomlFields {
 public:
  // `where`: what the table is called in messages, "[[arm]]".
  TomlFields(const toml::table& table, std::string where, std::string path)
      : table_(table), where_(std::move(where)), path_(std::move(path)) {}

  // Without a fallback the field must be there.
  std::string text(const char* key, std::optional<std::string> fallback = std::nullopt);
  // A number or a text, as it would stand on a command line; "" if it is not there.
  std::string argument(const char* key);
  // One text or a list of them.
  std::vector<std::string> texts(const char* key, bool required);
  std::vector<double> numbers(const char* key);
  double number(const char* key, double fallback, double low, double high);
  bool flag(const char* key, bool fallback = false);
  void finish() const;  // nothing may be left

 private:
  const toml::node* take(const char* key, bool optional);
  [[noreturn]] void wrong(const toml::node& node, const char* key, const std::string& what) const;

  const toml::table& table_;
  std::string where_, path_;
  std::set<std::string> taken_;
};

// The file's tables; the text is parsed under `path`'s name. Throws Error(Format) with the line.
toml::table parse_toml(const std::string& text, const std::string& path);
// The tables of an array of tables; none if it is not there.
std::vector<const toml::table*> toml_tables(const toml::table& root, const char* key,
                                            const std::string& path);

}  // namespace penstock::measure
