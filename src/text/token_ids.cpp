#include "text/token_ids.h"

#include <charconv>

#include "base/error.h"
#include "base/file.h"

namespace penstock::text {

std::vector<int32_t> read_token_ids(const std::string& path) {
  const std::string text = read_text_file(path);
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    while (at != end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t' || *at == ',')) {
      ++at;
    }
    if (at == end) return ids;
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0) {
      fail(ErrorKind::Usage, "{}: byte {} does not begin a token id (a number from 0)", path,
           at - text.data());
    }
    ids.push_back(id);
    at = next;
  }
}

}  // namespace penstock::text
