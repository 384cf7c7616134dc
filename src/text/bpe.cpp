#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "text/unicode.h"

namespace penstock::text {
namespace {

// Printable Latin-1 characters stand for themselves; the other bytes, in order, for U+0100 and on.
struct Alphabet {
  std::array<uint16_t, 256> to_char{};
  std::array<int16_t, 0x180> to_byte{};

  Alphabet() {
    to_byte.fill(-1);
    uint16_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      to_char[b] = printable ? static_cast<uint16_t>(b) : next++;
      to_byte[to_char[b]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

uint64_t mix(uint64_t key) noexcept {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15ULL;
  return key ^ (key >> 29);
}

uint64_t pair_key(int32_t left, int32_t right) noexcept {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

constexpr uint64_t kEmptyKey = UINT64_MAX;

// Up to this many symbols, scanning all pairs for the lowest rank beats the heap.
constexpr size_t kShortPiece = 40;

void merge_short(const MergeTable& merges, std::vector<int32_t>& symbols) {
  std::array<MergeTable::Merge, kShortPiece> pair;
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) pair[i] = merges.find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pair[i].rank < pair[best].rank) best = i;
    }
    if (pair[best].rank == MergeTable::kNone) break;
    symbols[best] = pair[best].result;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      pair[i] = pair[i + 1];
    }
    --n;
    if (best > 0) pair[best - 1] = merges.find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) pair[best] = merges.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

void merge_long(const MergeTable& merges, std::vector<int32_t>& symbols) {
  constexpr uint32_t kEnd = UINT32_MAX;
  struct Node {
    uint32_t previous, next;
    int32_t id;  // -1 once it is part of the symbol before it
  };
  struct Candidate {
    uint64_t order;  // rank, then position: the heap's smallest is merged first
    int32_t left, right, result;
    bool operator>(const Candidate& other) const { return order > other.order; }
  };
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<Node> nodes(n);
  std::vector<Candidate> heap;
  const auto candidate = [&](uint32_t i) -> Candidate {
    const int32_t left = nodes[i].id, right = nodes[nodes[i].next].id;
    const MergeTable::Merge merge = merges.find(left, right);
    return {(static_cast<uint64_t>(merge.rank) << 32) | i, left, right, merge.result};
  };
  const auto possible = [](const Candidate& c) { return (c.order >> 32) != MergeTable::kNone; };
  for (uint32_t i = 0; i < n; ++i) {
    nodes[i] = {i == 0 ? kEnd : i - 1, i + 1 == n ? kEnd : i + 1, symbols[i]};
  }
  for (uint32_t i = 0; i + 1 < n; ++i) {
    const Candidate c = candidate(i);
    if (possible(c)) heap.push_back(c);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t i) {
    const Candidate c = candidate(i);
    if (!possible(c)) return;
    heap.push_back(c);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate c = heap.back();
    heap.pop_back();
    const auto i = static_cast<uint32_t>(c.order);
    Node& left = nodes[i];
    // Stale entries: either side has been merged into something else since.
    if (left.id != c.left || left.next == kEnd || nodes[left.next].id != c.right) continue;
    Node& right = nodes[left.next];
    left.id = c.result;
    left.next = right.next;
    right.id = -1;
    if (left.next != kEnd) nodes[left.next].previous = i;
    if (left.previous != kEnd) push(left.previous);
    if (left.next != kEnd) push(i);
  }
  size_t count = 0;
  for (uint32_t i = 0; i != kEnd; i = nodes[i].next) symbols[count++] = nodes[i].id;
  symbols.resize(count);
}

}  // namespace

bool decode_byte_alphabet(std::string_view spelled, std::string& bytes) {
  const Alphabet& table = alphabet();
  const size_t before = bytes.size();
  for (size_t at = 0; at < spelled.size();) {
    const CodePoint c = decode_utf8(spelled, at);
    if (c.value >= table.to_byte.size() || table.to_byte[c.value] < 0) {
      bytes.resize(before);
      return false;
    }
    bytes += static_cast<char>(table.to_byte[c.value]);
    at += c.length;
  }
  return true;
}

std::string encode_byte_alphabet(std::string_view bytes) {
  std::string spelled;
  for (const char byte : bytes) {
    append_utf8(spelled, alphabet().to_char[static_cast<unsigned char>(byte)]);
  }
  return spelled;
}

int32_t TokenTable::add(std::string_view text) {
  bytes_.append(text);
  offsets_.push_back(bytes_.size());
  return static_cast<int32_t>(offsets_.size() - 2);
}

std::string_view TokenTable::text(int32_t id) const noexcept {
  const auto i = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

void TokenTable::index(const std::function<bool(int32_t)>& preferred) {
  slots_.assign(std::bit_ceil(size() * 2 + 1), -1);
  const size_t mask = slots_.size() - 1;
  for (const bool wanted : {true, false}) {
    for (size_t i = 0; i < size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      if (preferred(id) != wanted) continue;
      const std::string_view key = text(id);
      size_t slot = std::hash<std::string_view>{}(key)&mask;
      while (slots_[slot] >= 0 && text(slots_[slot]) != key) slot = (slot + 1) & mask;
      if (slots_[slot] < 0) slots_[slot] = id;
    }
  }
}

int32_t TokenTable::find(std::string_view key) const noexcept {
  if (slots_.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  size_t slot = std::hash<std::string_view>{}(key)&mask;
  while (slots_[slot] >= 0 && text(slots_[slot]) != key) slot = (slot + 1) & mask;
  return slots_[slot];
}

void MergeTable::reserve(size_t merges) {
  slots_.assign(std::bit_ceil(merges * 2 + 2), Slot{kEmptyKey, {kNone, -1}});
}

size_t MergeTable::probe(uint64_t key) const noexcept {
  const size_t mask = slots_.size() - 1;
  size_t slot = mix(key) & mask;
  while (slots_[slot].key != kEmptyKey && slots_[slot].key != key) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::add(int32_t left, int32_t right, Merge merge) {
  if ((used_ + 1) * 2 > slots_.size()) {
    std::vector<Slot> old;
    old.swap(slots_);
    reserve(old.size());
    used_ = 0;
    for (const Slot& slot : old) {
      if (slot.key == kEmptyKey) continue;
      slots_[probe(slot.key)] = slot;
      ++used_;
    }
  }
  Slot& slot = slots_[probe(pair_key(left, right))];
  if (slot.key == kEmptyKey) ++used_;
  slot = {pair_key(left, right), merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const noexcept {
  if (slots_.empty()) return {kNone, -1};
  return slots_[probe(pair_key(left, right))].merge;
}

void merge_symbols(const MergeTable& merges, std::vector<int32_t>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kShortPiece) {
    merge_short(merges, symbols);
  } else {
    merge_long(merges, symbols);
  }
}

}  // namespace penstock::text
