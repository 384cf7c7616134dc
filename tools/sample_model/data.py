"""Tokenised training sequences: windows of natural text and packed ChatML conversations.

``python data.py WORK`` tokenises the text of corpus.py into ``WORK/DOMAIN.{train,heldout}.npy`` (uint16, each document
followed by <|endoftext|>). Conversations are drawn while training.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import random

import numpy as np
from tokenizers import Tokenizer

import chat
import corpus
import tasks

ANSWER_WEIGHT, PROMPT_WEIGHT, TEXT_WEIGHT = 2.0, 0.1, 1.0


@dataclasses.dataclass
class Sequence:
    """length+1 tokens; ``weights[i]`` weighs the prediction of ``tokens[i]``."""

    tokens: np.ndarray
    weights: np.ndarray
    kind: str


class Source:
    """Draws reproducible sequences of a kind: a text domain, "tasks" or "drill"."""

    def __init__(self, work: pathlib.Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        self.eos = self.tokenizer.token_to_id("<|endoftext|>")
        self.newline = self.tokenizer.encode("\n").ids[0]
        self.text = {domain: np.load(work / f"{domain}.train.npy") for domain in corpus.DOMAINS}

    def draw(self, kind: str, length: int, seed: str) -> Sequence:
        rng = random.Random(seed)
        if kind == "tasks":
            return self._conversations(length, rng)
        return self._drill(length, rng) if kind == "drill" else self._window(kind, length, rng)

    def _drill(self, length: int, rng: random.Random) -> Sequence:
        """Copying practice: short runs of shuffled text tokens, each written two to four times; only repeats count."""
        tokens: list[int] = []
        weights: list[float] = []
        while len(tokens) <= length:
            text = self.text[rng.choice(corpus.DOMAINS)]
            start = rng.randrange(len(text) - 400)
            run = rng.sample(text[start:start + 400].tolist(), rng.randint(4, 32))
            repeats = rng.randint(2, 4)
            tokens += [*run, self.newline] * repeats
            weights += [0.0] * (len(run) + 1) + [TEXT_WEIGHT] * (len(run) + 1) * (repeats - 1)
        size = length + 1
        return Sequence(np.array(tokens[:size]), np.array(weights[:size], np.float32), "drill")

    def _window(self, domain: str, length: int, rng: random.Random) -> Sequence:
        text = self.text[domain]
        start = rng.randrange(len(text) - length)
        tokens = text[start:start + length + 1].astype(np.int64)
        return Sequence(tokens, np.full(len(tokens), TEXT_WEIGHT, np.float32), domain)

    def _conversations(self, length: int, rng: random.Random) -> Sequence:
        tokens: list[int] = []
        weights: list[float] = []
        while len(tokens) <= length:
            messages, tools, variables = tasks.conversation(rng)
            for text, answer in chat.segments(messages, tools, **variables):
                ids = self.tokenizer.encode(text).ids
                tokens += ids
                weights += [ANSWER_WEIGHT if answer else PROMPT_WEIGHT] * len(ids)
            tokens.append(self.eos)
            weights.append(PROMPT_WEIGHT)
        size = length + 1
        return Sequence(np.array(tokens[:size]), np.array(weights[:size], np.float32), "tasks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    eos = tokenizer.token_to_id("<|endoftext|>")
    for domain in corpus.DOMAINS:
        for part in ("train", "heldout"):
            docs = [json.loads(line) for line in (args.work / f"{domain}.{part}.jsonl").open()]
            ids = [token for encoded in tokenizer.encode_batch(docs) for token in (*encoded.ids, eos)]
            np.save(args.work / f"{domain}.{part}.npy", np.array(ids, np.uint16))
            print(f"{domain} {part}: {len(ids)} tokens")


if __name__ == "__main__":
    main()
