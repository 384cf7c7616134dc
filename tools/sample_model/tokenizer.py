"""Trains the byte-level BPE tokenizer of the sample model: qwen35 pre-tokenizer, Qwen's special tokens.

The vocabulary is the 256 bytes and the merges, then the special tokens in the order of the released model.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import chat
import corpus
import tasks

VOCAB_SIZE = 4096
PRE_TOKENIZER = (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
                 r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# (text, control?): control tokens are GGUF type 3, the others user-defined (type 4).
SPECIAL_TOKENS: list[tuple[str, bool]] = [
    ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
    ("<|object_ref_start|>", True), ("<|object_ref_end|>", True), ("<|box_start|>", True), ("<|box_end|>", True),
    ("<|quad_start|>", True), ("<|quad_end|>", True), ("<|vision_start|>", True), ("<|vision_end|>", True),
    ("<|vision_pad|>", True), ("<|image_pad|>", True), ("<|video_pad|>", True),
    ("<tool_call>", False), ("</tool_call>", False),
    ("<|fim_prefix|>", False), ("<|fim_middle|>", False), ("<|fim_suffix|>", False), ("<|fim_pad|>", False),
    ("<|repo_name|>", False), ("<|file_sep|>", False),
    ("<tool_response>", False), ("</tool_response>", False), ("<think>", False), ("</think>", False),
    ("<|audio_start|>", True), ("<|audio_end|>", True), ("<tts_pad>", True), ("<tts_text_bos>", True),
    ("<tts_text_eod>", True), ("<tts_text_bos_single>", True), ("<|audio_pad|>", True)]


def training_text(work: pathlib.Path, rng: random.Random, bytes_per_domain: int = 3_000_000) -> Iterator[str]:
    for domain in corpus.DOMAINS:
        total = 0
        for line in (work / f"{domain}.train.jsonl").open():
            text = json.loads(line)
            yield text
            total += len(text)
            if total > bytes_per_domain:
                break
    for _ in range(10_000):
        messages, tools, variables = tasks.conversation(rng)
        yield chat.render(messages, tools, **variables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    special = [text for text, _ in SPECIAL_TOKENS]
    plain = (piece for text in training_text(args.work, random.Random(args.seed)) for piece in _without(text, special))
    tokenizer.train_from_iterator(plain, trainer)
    tokenizer.add_tokens([AddedToken(text, special=control, normalized=False) for text, control in SPECIAL_TOKENS])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"unexpected vocabulary size {tokenizer.get_vocab_size()}")
    tokenizer.save(str(args.work / "tokenizer.json"))


def _without(text: str, special: list[str]) -> list[str]:
    """The pieces of a text between special tokens, so that no merge learns their spelling."""
    for token in special:
        text = text.replace(token, "\0")
    return [piece for piece in text.split("\0") if piece]


if __name__ == "__main__":
    main()
