// Which parts of a record a claim's `each` means: "/runs/arena" all of a list,
// "/rows[arm=reap][routing=exact]" those of its objects that have these members,
// "/rows[arm=reap]/interval" the elements of a list within them.
#include <algorithm>

#include "measure/audit_rules.h"
#include "measure/record.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;

void expand(std::vector<Selected>* selected) {
  std::vector<Selected> out;
  for (const Selected& one : *selected) {
    if (!one.value->is_array()) continue;
    for (size_t i = 0; i < one.value->size(); ++i) {
      out.push_back({one.pointer + "/" + std::to_string(i), &(*one.value)[i]});
    }
  }
  *selected = std::move(out);
}

bool has_member(const Json& object, const std::string& name, const std::string& value) {
  if (!object.is_object()) return false;
  const auto found = object.find(name);
  if (found == object.end()) return false;
  return found->is_string() ? found->get_ref<const std::string&>() == value
                            : canonical_text(*found) == value;
}

}  // namespace

std::vector<Selected> select_elements(const Json& record, const std::string& each) {
  std::vector<Selected> out = {{"", &record}};
  if (each.empty()) return out;
  bool elements = false;  // not the lists themselves
  for (size_t at = 0; at < each.size();) {
    if (each[at] == '[') {
      const size_t end = std::min(each.find(']', at), each.size());
      const std::string filter = each.substr(at + 1, end - at - 1);
      const size_t equals = filter.find('=');
      if (equals == std::string::npos || end == each.size()) return {};
      if (!elements) expand(&out);
      elements = true;
      std::erase_if(out, [&](const Selected& one) {
        return !has_member(*one.value, filter.substr(0, equals), filter.substr(equals + 1));
      });
      at = end + 1;
    } else {
      const size_t end = std::min(each.find('[', at), each.size());
      const std::string pointer = each.substr(at, end - at);
      std::vector<Selected> next;
      for (const Selected& one : out) {
        if (const Json* found = resolve_pointer(*one.value, pointer)) {
          next.push_back({one.pointer + pointer, found});
        }
      }
      out = std::move(next);
      elements = false;
      at = end;
    }
  }
  if (!elements) expand(&out);
  return out;
}

}  // namespace penstock::measure
