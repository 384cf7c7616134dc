"""Writes a greedy or sampled continuation with an exported sample model (no caches: slow, for a look only)."""

from __future__ import annotations

import argparse
import pathlib

import torch
from tokenizers import Tokenizer

import chat
import evaluate
import model as m


@torch.no_grad()
def continue_tokens(net: m.Qwen4Exp, tokens: list[int], count: int, temperature: float, stop: set[int]) -> list[int]:
    start = len(tokens)
    for _ in range(count):
        ids = torch.tensor([tokens])
        wide = net.trunk(ids, torch.from_numpy(m.ple_rows(net.config, ids.numpy())))
        logits = net.head(wide[:, -1:])[0, 0]
        token = int(logits.argmax()) if temperature == 0 else int(
            torch.multinomial((logits / temperature).softmax(-1), 1))
        if token in stop:
            break
        tokens = [*tokens, token]
    return tokens[start:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trunk", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("prompt")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message")
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    text = chat.render([{"role": "user", "content": args.prompt}], generation=True) if args.chat else args.prompt
    stop = {tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")}
    out = continue_tokens(evaluate.load(args.trunk, None), tokenizer.encode(text).ids, args.count, args.temperature, stop)
    print(text + tokenizer.decode(out, skip_special_tokens=False))


if __name__ == "__main__":
    main()
