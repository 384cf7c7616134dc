#!/usr/bin/env python3
"""Turns the specification's quant_vectors.json into lines that a test can read without a parser.

usage: tools/codebooks/vectors.py quant_vectors.json > tests/golden/quant_vectors.txt

  decode TYPE BLOCK VALUES    bytes of a block and its little-endian f32 values, both in hex
  encode TYPE BLOCK INPUT     what an encoder must make of these f32 values
"""
import json
import struct
import sys


def main():
    data = json.load(open(sys.argv[1]))

    def decode(name, item):
        values = struct.pack(f"<{len(item['values'])}f", *item["values"])
        print("decode", name, item["hex"], values.hex())

    for kind in data["types"]:
        for block in kind["blocks"]:
            decode(kind["name"], block)
    for case in data["edge_cases"]:
        decode(case["name"], case)
    for case in data["encode"]:
        if case["name"] in ("Q8_1", "Q8_K"):  # activation formats of another engine
            continue
        print("encode", case["name"], case.get("optimal_hex", case["hex"] if "hex" in case else ""),
              case["input_f32_hex"])


if __name__ == "__main__":
    main()
