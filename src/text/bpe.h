// Byte-level byte-pair encoding: the merge table and the merging of one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::text {

// The GPT-2 alphabet spells each byte as one printable character. Writes the bytes that `spelled`
// stands for; false if a character is not of the alphabet (then nothing is written).
bool decode_byte_alphabet(std::string_view spelled, std::string& bytes);
std::string encode_byte_alphabet(std::string_view bytes);

// Token texts in one buffer, found by text. A vocabulary has 250,000 of them: a hash map of strings
// would cost several times their size.
class TokenTable {
 public:
  int32_t add(std::string_view text);  // returns the new id
  // Makes find() work. Of equal texts an id that is `preferred` is found, else the first.
  void index(const std::function<bool(int32_t)>& preferred);

  size_t size() const noexcept { return offsets_.size() - 1; }
  std::string_view text(int32_t id) const noexcept;
  int32_t find(std::string_view text) const noexcept;  // -1 if there is none

 private:
  std::string bytes_;
  std::vector<uint64_t> offsets_{0};
  std::vector<int32_t> slots_;
};

class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void reserve(size_t merges);
  // A pair that is already there gets the new rank, as the reference library has it.
  void add(int32_t left, int32_t right, Merge merge);
  // rank kNone if the pair does not merge
  Merge find(int32_t left, int32_t right) const noexcept;

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  size_t probe(uint64_t key) const noexcept;
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

// Repeatedly merges the pair of lowest rank, leftmost first, until none is left. `symbols` holds
// the ids of the bytes on entry and those of the tokens on return. O(n log n) in the piece's
// length.
void merge_symbols(const MergeTable& merges, std::vector<int32_t>& symbols);

}  // namespace penstock::text
