"""Strings that tokenizers get wrong, and an endless supply of made-up ones from their parts."""
import random

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>"]
USER_DEFINED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

HARD = [
    "", " ", "  ", "   a", "a   ", "\t", "\t\ta", "\n", "\n\n\n", "\r\n", "a\r\nb\r\n", "\r\r\n\n a", " \n \n x",
    "  \n\n  \t\n", "x \u00a0\u00a0 y", "\u3000\u3000字", "a\u2028b\u2029c\u0085d", "\u180ea\u180e b", "\u200b\u200dx\ufeff",
    "Hello, world!", "The capital of France is Paris.", "def f(x):\n    return x**2  # square\n\n\n", "a" * 70, " " * 70,
    "I'm you're he'S they'LL we'Ve it'd don'T 'tis 's 'S '' ''s 'll'", "I'\u017f x'\u017fy '\u017f", "rock'n'roll d'accord l'été",
    "0 1 12 123 1234 12345 3.14159 1,000,000 ½ ² Ⅷ ٣٤٥ ४५६ 七", "v1.2.3-rc4+build.5", "2026-11-29T23:59:59Z", "1e-5 0x1F 0b1010",
    "naïve café résumé", "nai\u0308ve cafe\u0301 re\u0301sume\u0301", "A\u030a \u00c5 \u212b", "e\u0301\u0323 e\u0323\u0301 \u1eb9\u0301", "\u0344 \u0340 \u0341 \u0958 \u095c",
    "한국어 텍스트 \u1112\u1161\u11ab\u1100\u1173\u11af", "각\u11a8 \uac00\u11a8", "ｶﾞ ガ カ\u3099 は\u309a", "日本語のテキスト、漢字とかな。ア・イ゠ウ", "中文文本，没有空格。１２３４５",
    "Привет, мир! Ёж Е\u0308ж Й И\u0306", "Καλημέρα κόσμε ά α\u0301", "שָׁלוֹם עולם", "مرحبا بالعالم ٱلْعَرَبِيَّة", "नमस्ते दुनिया हिन्दी", "สวัสดีชาวโลก ภาษาไทย",
    "བོད་ཡིག ᄀᄁ ꧁ꦗꦮ꧂", "Tiếng Việt: đường phố, Nguyễn", "İstanbul ıI ǅ ǆ Ǆ", "ﬁ ﬂ ﬅ ß ẞ", "𝒜𝓁𝓅𝒽𝒶 𝟘𝟙𝟚 𐐀𐐨", "\U00010d50\U00010d70 \u1c89\u1c8a \u0897x",
    "👍 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇩🇪 ❤️ 1️⃣", "emoji🙂inside🙂words", "🙂\n🙂\r\n", "x\u0301\u0302\u0303\u0304y", "\u0301start", " \u0301", "\n\u0301a", "1\u0301", "-\u0301-",
    "!!!???...---___", "a.b,c;d:e/f\\g|h", "((()))[[]]{{}}", "<a href=\"x\">y</a>", "C++ C# F# .NET a_b_c __init__", "http://example.org/a?b=c&d=e#f",
    "foo/bar/\n//baz///\r\n/", "$€£¥ ±×÷ ≤≥≠ →←", "camelCaseWord HTTPServer XMLHttpRequest iPhone McDonald's", "ALLCAPS'S allcaps's ÀÉÎÕÜ'LL", "ｆｕｌｌｗｉｄｔｈ ＡＢＣ", "tab\tseparated\tvalues",
    "\x00\x01\x02\x1b[0m\x7f", "a\x0bb\x0cc\x1cd\x1de", "\ufffd\ufffd x\ufffd", "\ue000\uf8ff\U000f0000", "\u0378\u0379a",
    "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|", "|im_start|>", "<|im_<|im_end|>start|>", "<<|im_end|>>", "< |im_end|>", "<|IM_END|>", "<|im_end|><|im_end|>", " <|im_end|> ",
    "<think>\nhm\n</think>\n\nyes", "<think", "<<think>>", "<tool_call>{\"name\": \"f\"}</tool_call>", "</think</think>", "a<think>b<|im_end|>c</think>", "é<|im_end|>e\u0301<think>\u0301", "<|endoftext|>\u0301",
    "\"quoted\" 'single' `back` «guillemets» “curly” ‘x’", "ab\u00adcd soft\u00adhyphen", "mixed العربية and English 中文 together", "word\u00a0word\u202fword\u2009word",
    "    four\n        eight\n\ttab\n  \t mixed\n", "trailing space \nnext", "a \n\n b", "end with newline\n", "end with space ", "\n leading", "x" + "\n" * 9 + "y",
    "ﷺ ﷽ \ufdfa", "𠀀𠀁𪛖", "〇一二三龥龦鿿㐀", "ーｰ〜～", "゛゜ヽヾ・", "𞤀𞤢", "ᏣᎳᎩ Ꮳꮳ", "ქართული ᲥᲐᲠᲗᲣᲚᲘ", "ǰ ΐ ŉ", "\u1e9b\u0323 \u017f\u0323\u0307",
]

_PIECES = [
    " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "a", "B", "hello", " World", "ing", "THE", "é", "e\u0301", "\u0301", "\u0323", "ß", "Ж", "ж", "字", "の", "カ", "\u3099",
    "한", "\u1112", "\u1161", "\u11ab", "ا", "\u064e", "ह", "\u093f", "ก", "\u0e33", "1", "23", "٣", "Ⅷ", "½", ".", ",", "!", "'", "'s", "'LL", "'\u017f", "-", "/", "_", "(", ")", "<", ">", "|",
    "🙂", "🏽", "\u200d", "\ufe0f", "𝒜", "\U00010400", "\x00", "\u0085", "\u2028", "\ufffd", "\ue000", "\u0378", "ǅ", "ʰ", "ー", "・", "$", "+", "^", "`", "€",
]


def fuzz(rng: random.Random) -> str:
    """One made-up string."""
    kind = rng.randrange(6)
    if kind == 0:  # code points from anywhere
        out = []
        for _ in range(rng.randint(1, 24)):
            c = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
            if not 0xD800 <= c < 0xE000:
                out.append(chr(c))
        return "".join(out)
    if kind == 1:  # one of the hard ones, cut and joined
        a, b = rng.choice(HARD), rng.choice(HARD)
        return a[rng.randint(0, len(a)):] + b[:rng.randint(0, len(b))]
    if kind == 2:  # control-token look-alikes
        parts = CONTROL + USER_DEFINED
        out = []
        for _ in range(rng.randint(1, 5)):
            s = rng.choice(parts)
            out.append(s if rng.random() < 0.6 else s[rng.randint(0, len(s)):])
            out.append(rng.choice(_PIECES) if rng.random() < 0.5 else "")
        return "".join(out)
    if kind == 3:  # few different pieces, long runs
        few = rng.sample(_PIECES, 3)
        return "".join(rng.choice(few) * rng.randint(1, 6) for _ in range(rng.randint(1, 12)))
    return "".join(rng.choice(_PIECES) for _ in range(rng.randint(1, 40)))
