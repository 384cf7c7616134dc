"""Exports a checkpoint of the sample model: the trunk and, in a side file, its MTP block; or the vocabulary alone."""

from __future__ import annotations

import argparse
import pathlib
import sys

import torch

import chat
import model as m

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "export"))
import gguf_export as ge  # noqa: E402

NAME = "Penstock Sample"


def params(config: m.Config, mtp: bool) -> ge.Qwen4ExpParams:
    multipliers, sizes, offsets, _ = m.ple_constants(config)
    c = config
    return ge.Qwen4ExpParams(
        blocks=c.layers + mtp, mtp_blocks=int(mtp), context=c.context, hidden=c.hidden, interval=c.interval,
        heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, rope_dims=c.rope_dims,
        rope_sections=c.sectioned_rope, rope_base=c.rope_base, indexer_heads=c.indexer_heads,
        indexer_dim=c.indexer_dim, indexer_top_k=c.indexer_budget, block_size=c.block, gdn_k_heads=c.gdn_k_heads,
        gdn_v_heads=c.gdn_v_heads, gdn_dim=c.gdn_dim, conv_kernel=c.conv, experts=c.experts,
        experts_used=c.experts_used, expert_width=c.expert_width, shared_width=c.shared_width, streams=c.streams,
        hc_rank=c.hc_rank, ple_layer=c.ple_layer, ple_ngram=c.ngram, ple_heads_per_ngram=c.ple_heads_per_ngram,
        ple_conv_kernel=c.conv, ple_row=c.ple_row, ple_eos=c.eos, ple_multipliers=multipliers, ple_head_sizes=sizes,
        ple_head_offsets=offsets)


def metadata(config: m.Config, tokenizer: pathlib.Path, mtp: bool) -> ge.Metadata:
    vocabulary = ge.Tokenizer.from_json(tokenizer, eos="<|im_end|>", pad="<|endoftext|>", bos="<|endoftext|>",
                                        chat_template=chat.template_text())
    assert len(vocabulary.tokens) == config.vocab and vocabulary.tokens[config.eos] == "<|endoftext|>"
    return {
        "general.type": ge.text("model"),
        "general.name": ge.text(NAME + (" MTP" if mtp else "")),
        "general.size_label": ge.text(f"{config.experts}x0.4M"),
        "general.license": ge.text("apache-2.0"),
        "general.file_type": ge.u32(7),
        "general.quantization_version": ge.u32(2),
    } | params(config, mtp).metadata() | vocabulary.metadata()


def trunk_order(name: str) -> tuple[int, str]:
    """Globals first, then the blocks in order."""
    return (int(name.split(".")[1]) if name.startswith("blk.") else -1, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("--checkpoint", type=pathlib.Path, help="file of train.py")
    parser.add_argument("--out", type=pathlib.Path, help="trunk GGUF")
    parser.add_argument("--mtp-out", type=pathlib.Path, help="side GGUF with the MTP block")
    parser.add_argument("--vocab-out", type=pathlib.Path, help="GGUF with metadata and no tensors")
    args = parser.parse_args()
    if args.vocab_out:
        ge.write(args.vocab_out, "qwen4exp", metadata(m.Config(), args.tokenizer, False), {})
    if not args.checkpoint:
        return
    state = torch.load(args.checkpoint, weights_only=True)
    config = m.Config(**state["config"])
    net = m.Qwen4Exp(config)
    net.load_state_dict(state["model"])
    tensors = dict(sorted(net.to_gguf().items(), key=lambda item: trunk_order(item[0])))
    side = f"blk.{config.layers}."
    policy = ge.dense_quant(overrides={"indexer.": ge.QuantType.F16})
    for path, mtp in ((args.out, False), (args.mtp_out, True)):
        if path:
            chosen = {name: data for name, data in tensors.items() if name.startswith(side) is mtp}
            ge.write(path, "qwen4exp", metadata(config, args.tokenizer, mtp), chosen, policy)
            print(f"{path}: {path.stat().st_size} bytes, {len(chosen)} tensors")


if __name__ == "__main__":
    main()
