// Texts that reports are made of: what files say, made safe for each format.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace penstock::measure {

// A string or number of a record; "" or 0 where it is none.
std::string text_member(const nlohmann::json& value, const std::string& pointer);
double number_member(const nlohmann::json& value, const std::string& pointer);

// Absolute paths cut to their last part: a report says nothing about where files lay.
std::string without_folders(const std::string& text);

// Of text and attributes of HTML and SVG; control characters, and what XML does not allow, become
// spaces.
std::string html_text(const std::string& text);
// Of one line of Markdown or one cell of its tables.
std::string markdown_text(const std::string& text);
std::string csv_cell(const std::string& text);  // RFC 4180

// At most `most` characters, the rest as "..."; does not cut a character in two.
std::string shortened(const std::string& text, size_t most);
// Characters, as far as the text is UTF-8; where it goes on, columns for a terminal.
size_t characters(const std::string& text);

// With `digits` after the point; very large and very small values by their leading digits.
std::string number_text(double value, int digits);
// Letters and digits in lower case, all else as single hyphens; for names of files and anchors.
std::string slug(const std::string& text);

}  // namespace penstock::measure
