// Finding control and user-defined tokens in text, before it is split and merged.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock::text {

class AddedTokens {
 public:
  // Longer ones are refused by the tokenizer: the search takes length(text) times this at worst.
  static constexpr size_t kMaxLength = 1024;

  void add(std::string_view text, int32_t id, bool control);

  struct Match {
    int32_t id = -1;
    size_t length = 0;
    bool control = false;
  };
  // The longest token that starts at `at`; id -1 if none does.
  Match longest(std::string_view text, size_t at) const noexcept;
  // The longest control token that starts at `at` and ends by `limit`.
  Match longest_control(std::string_view text, size_t at, size_t limit) const noexcept;

  bool empty() const noexcept { return nodes_.size() == 1; }
  bool may_start(unsigned char byte) const noexcept { return first_[byte]; }

 private:
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;
    int32_t id = -1;
    bool control = false;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<bool> first_ = std::vector<bool>(256);
};

}  // namespace penstock::text
