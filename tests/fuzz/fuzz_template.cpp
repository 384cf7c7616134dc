// Any bytes as a chat template, rendered with a conversation under small limits. The only way out
// but a text is a penstock::Error.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace {

using namespace penstock::text::jinja;

const Dict& variables() {
  static const Dict dict =
      *parse_json(
           R"({"messages": [{"role": "system", "content": " s "}, {"role": "user", "content": "hé\n🙂"},
          {"role": "assistant", "content": "<think>\nt</think>\n\na", "tool_calls": [{"function":
          {"name": "f", "arguments": {"a": 1, "b": [1.5, null, true, "x"]}}}]}],
          "tools": [{"function": {"name": "f"}}], "s": "text", "n": 3, "l": [1, 2, 3], "d": {"k": "v"}})",
           Origin::User, "variables")
           .as_dict();
  return dict;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Limits limits;
  limits.steps = 20'000;
  limits.bytes = 4 << 20;
  limits.output = 1 << 20;
  limits.depth = 200;
  try {
    const Ast ast = parse_template({reinterpret_cast<const char*>(data), size});
    Interpreter(ast, limits, 0).render(variables());
  } catch (const penstock::Error&) {
  }
  return 0;
}
