#include "measure/report_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "measure/formula.h"
#include "measure/record_diff.h"

namespace penstock::measure {
namespace {

bool is_path_char(char c) {
  const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return plain || static_cast<unsigned char>(c) >= 0x80 ||
         std::string("._~+-/@").find(c) != std::string::npos;
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

std::string text_member(const nlohmann::json& value, const std::string& pointer) {
  const nlohmann::json* found = resolve_pointer(value, pointer);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

double number_member(const nlohmann::json& value, const std::string& pointer) {
  const nlohmann::json* found = resolve_pointer(value, pointer);
  return found != nullptr && found->is_number() ? found->get<double>() : 0;
}

std::string without_folders(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const bool begins = text[i] == '/' && (i == 0 || !is_path_char(text[i - 1]));
    if (!begins) {
      out += text[i++];
      continue;
    }
    size_t end = i;
    while (end < text.size() && is_path_char(text[end])) ++end;
    const std::string path = text.substr(i, end - i);
    out += path.find('/', 1) == std::string::npos ? path : path.substr(path.rfind('/') + 1);
    i = end;
  }
  return out;
}

std::string html_text(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // U+FFFE and U+FFFF are valid in JSON and not in XML.
        if (text.compare(i, 2, "\xef\xbf") == 0 && i + 2 < text.size() &&
            static_cast<unsigned char>(text[i + 2]) >= 0xBE) {
          out += ' ';
          i += 2;
        } else {
          out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
        }
    }
  }
  return out;
}

std::string markdown_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      if (std::string("\\`*_[]|#~").find(c) != std::string::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

size_t characters(const std::string& text) {
  size_t n = 0;
  for (const char c : text) n += is_continuation(c) ? 0 : 1;
  return n;
}

std::string shortened(const std::string& text, size_t most) {
  if (characters(text) <= most) return text;
  size_t end = 0;
  for (size_t n = 0; end < text.size(); ++end) {
    if (!is_continuation(text[end]) && ++n > most - 3) break;
  }
  return text.substr(0, end) + "...";
}

std::string number_text(double value, int digits) {
  const double size = std::fabs(value);
  const double least = std::pow(10.0, -digits);
  if (size >= 1e12 || (size > 0 && size < least && digits > 0)) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value, digits);
}

std::string slug(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const char low = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    if ((low >= 'a' && low <= 'z') || (low >= '0' && low <= '9')) {
      out += low;
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.substr(0, std::min<size_t>(60, out.size()));
}

}  // namespace penstock::measure
