#!/usr/bin/env python3
"""Writes src/text/unicode_table.inc: the character classes of the pre-tokenizers' expressions.

Token ids must be those the models were trained with, so the classes are taken from the
`tokenizers` library itself (its regex engine's Unicode version and its NFC tables' differ from
each other and from every system library): each class is probed over all code points. Needs
`pip install tokenizers`; a developer's tool, never run by the build.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CLASSES = [  # (constant in unicode.cpp, expression)
    ("U", r"[\p{Lu}\p{Lt}]"), ("D", r"\p{Ll}"), ("O", r"[\p{Lm}\p{Lo}]"), ("M", r"\p{M}"),
    ("N", r"\p{N}"), ("P", r"\p{P}"), ("S", r"\p{S}"), ("W", r"\s"),
]
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def members(expression):
    split = pre_tokenizers.Split(Regex(expression), "removed")
    found = set()
    for start in range(0, len(ALL), 4096):
        block = "".join(map(chr, ALL[start:start + 4096]))
        kept = set("".join(piece for piece, _ in split.pre_tokenize_str(block)))
        found |= set(map(ord, set(block) - kept))
    return found


def nfc_active():
    """Code points that NFC may change, move, or compose with what stands before them."""
    nfc = normalizers.NFC().normalize_str
    active = {0x345}  # the highest combining class: the probe below cannot see it
    for c in ALL:
        probe = "a\u0345" + chr(c)
        if nfc(chr(c)) != chr(c) or nfc(probe) != probe:
            active.add(c)
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            active.add(int(parts[1], 16))
    active |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # Hangul vowels and finals
    return active


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    path = sys.argv[1]
    rows = []
    for name, expression in CLASSES:
        rows += [(first, last, name) for first, last in ranges(members(expression))]
    rows.sort()
    active = ranges(nfc_active())
    with open(path, "w") as f:
        f.write("// Made by tools/text_oracle/make_unicode_table.py from tokenizers "
                f"{tokenizers.__version__}; do not edit.\n// clang-format off\n")
        f.write("constexpr ClassRange kClassRanges[] = {\n")
        items = [f"{{0x{a:X},0x{b:X},{n}}}," for a, b, n in rows]
        for i in range(0, len(items), 5):
            f.write(" ".join(items[i:i + 5]) + "\n")
        f.write("};\nconstexpr CodePointRange kNfcActive[] = {\n")
        items = [f"{{0x{a:X},0x{b:X}}}," for a, b in active]
        for i in range(0, len(items), 6):
            f.write(" ".join(items[i:i + 6]) + "\n")
        f.write("};\n// clang-format on\n")
    print(len(rows), "class ranges,", len(active), "NFC ranges", file=sys.stderr)


if __name__ == "__main__":
    main()
