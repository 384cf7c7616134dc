#!/usr/bin/env python3
"""Writes the expected values of the tokenizer tests, tests/text/data/*.json.

A small vocabulary is trained with the `tokenizers` library, and that library's answers on hard and
made-up strings are recorded. Needs `pip install tokenizers`; a developer's tool: the tests read
only its output. Usage: make_fixtures.py OUTPUT_DIRECTORY
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import corpus

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
HEAD, TAIL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# spec/moe-architectures.md §9 and spec/qwen4exp.md §7, in the library's own regular expressions
EXPRESSIONS = {
    "qwen2": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST],
    "qwen35": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + REST],
    "llama-bpe": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST],
    "gpt-4o": [rf"[^\r\n\p{{L}}\p{{N}}]?{HEAD}*{TAIL}+{CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{HEAD}+{TAIL}*{CONTRACTION}?"
               r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + REST],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                    r"""| ?[\p{P}\p{S}]+[\r\n]*|""" + REST],
    "bailingmoe2": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
}
NFC = {"qwen2", "qwen35"}
WHOLE_WORDS = {"llama-bpe"}

TRAINING = """The tokenizer turns text into numbers and numbers into text. I'm sure that you're right, they'll see it, we've been there.
It was the year 2026 and there were 1234567 tokens in the file; 98.6% of them were short. What is the capital of France?
for i in range(10):\n    print(i, i ** 2)\n\nint main(void) {\n\treturn 0;\n}\n
Der schnelle braune Fuchs springt über den faulen Hund. Où est la bibliothèque ? El niño comió una manzana.
Быстрая коричневая лиса прыгает через ленивую собаку. Το γρήγορο καφέ άλογο. 日本語の文章と漢字、カタカナ。中文的句子没有空格。
한국어 문장은 띄어쓰기를 합니다. नमस्ते दुनिया, यह हिन्दी है। مرحبا بالعالم، هذه جملة عربية. สวัสดีชาวโลก Tiếng Việt có dấu.
"""


def pre_tokenizer(pre):
    splits = [pre_tokenizers.Split(Regex(e), "isolated") for e in EXPRESSIONS[pre]]
    return pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def split_ends(pre, text):
    splits = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in EXPRESSIONS[pre]])
    ends, total = [], 0
    for piece, _ in splits.pre_tokenize_str(text):
        total += len(piece.encode())
        ends.append(total)
    return ends


def train(rng):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer("qwen35")
    texts = [TRAINING] * 30 + corpus.HARD * 6 + [corpus.fuzz(rng) for _ in range(1500)]
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False, min_frequency=2)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = model["vocab"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    # Some words keep their token but lose the merge that makes it: only these tell a vocabulary that
    # takes whole words from one that merges.
    used = {part for merge in merges for part in merge}
    lost = [m for m in merges if "".join(m) not in used][::9]
    return vocab, [m for m in merges if m not in set(lost)], ["".join(m) for m in lost]


def build(pre, vocab, merges):
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in WHOLE_WORDS))
    if pre in NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in corpus.CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in corpus.USER_DEFINED])
    return tokenizer


def ids(tokenizer, text, parse_special):
    tokenizer.encode_special_tokens = not parse_special
    return tokenizer.encode(text, add_special_tokens=False).ids


def dump(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    print(path, os.path.getsize(path))


def main():
    out = sys.argv[1]
    rng = random.Random(20261129)
    vocab, merges, lost = train(rng)
    strings = corpus.HARD + [corpus.fuzz(rng) for _ in range(2000)]
    tokens = sorted(vocab, key=vocab.get)
    types = [1] * len(tokens) + [3] * len(corpus.CONTROL) + [4] * len(corpus.USER_DEFINED)
    dump(f"{out}/tokenizer_vocab.json", {
        "tokens": tokens + corpus.CONTROL + corpus.USER_DEFINED, "token_type": types, "merges": [" ".join(m) for m in merges]})

    tokenizer = build("qwen35", vocab, merges)
    cases = []
    for s in strings:
        special, plain = ids(tokenizer, s, True), ids(tokenizer, s, False)
        cases.append([s, special] if special == plain else [s, special, plain])
    dump(f"{out}/encode_cases.json", cases)

    words = [bytes(decode_alphabet(w)).decode("utf-8", "replace") for w in lost]
    few = corpus.HARD + words + [corpus.fuzz(rng) for _ in range(150)]
    others = {}
    for pre in EXPRESSIONS:
        if pre != "qwen35":
            tokenizer = build(pre, vocab, merges)
            others[pre] = [ids(tokenizer, s, True) for s in few]
    dump(f"{out}/pre_type_cases.json", {"strings": few, "ids": others})

    few = corpus.HARD + [corpus.fuzz(rng) for _ in range(600)]
    dump(f"{out}/split_cases.json", {"strings": few, "ends": {p: [split_ends(p, s) for s in few] for p in EXPRESSIONS}})

    # What a decoder with errors="replace" makes of broken bytes.
    broken = [b"\xff", b"a\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82\xac\xe2\x82", b"\xf0\x9f\x99", b"\xf0\x9f\x99\x82\xf0\x9f", b"\xed\xa0\x80",
              b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf4\x90\x80\x80", b"\xf5\x80", b"\x80\x80a", b"\xf0\x9fa\x99", b"\xe1\x80\xc3\xa9"]
    for _ in range(300):
        whole = corpus.fuzz(rng).encode() + b" "
        b = bytearray(whole[: rng.randint(1, 24)])
        for _ in range(rng.randrange(3)):
            b[rng.randrange(len(b))] = rng.choice([0x80, 0xBF, 0xC3, 0xE2, 0xF0, 0xED, 0xFF, 0x41])
        broken.append(bytes(b))
    dump(f"{out}/utf8_cases.json", [[b.hex(), b.decode("utf-8", "replace")] for b in broken])

    import unicodedata
    nfc = normalizers.NFC()
    forms = []
    for s in corpus.HARD + [corpus.fuzz(rng) for _ in range(400)]:
        for variant in {s, unicodedata.normalize("NFD", s)}:
            if nfc.normalize_str(variant) != variant:
                forms.append([variant, nfc.normalize_str(variant)])
    dump(f"{out}/nfc_cases.json", forms)


def decode_alphabet(spelled):
    table, extra = {}, 0
    for b in range(256):
        if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE:
            table[chr(b)] = b
        else:
            table[chr(256 + extra)] = b
            extra += 1
    return [table[c] for c in spelled]


if __name__ == "__main__":
    main()
