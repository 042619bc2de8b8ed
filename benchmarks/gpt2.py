"""GPT-2 with position encodings against transformers' `GPT2LMHeadModel`: 124M, CPU, float32, sdpa.

A short run takes part of the sizes and few rounds. Memory is that of fresh processes, one after the other.
"""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from benchmarks.report import Row
from benchmarks.timing import compare, peak_memory_of
from seqpe_zoo.portable.configuration_seqpe_gpt2 import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe_gpt2 import SeqPEGPT2LMHeadModel

BASELINE = "GPT2LMHeadModel"
FORWARD_BARS = {"seqpe mul": 1.05, "seqpe bias": 1.25, "alibi": 1.10, "rope": 1.10}
DECODE_BAR, TRAIN_BAR, MEMORY_BAR = 1.10, 1.20, 1.5
LONG = 16384


def run(full: bool) -> list[Row]:
    """Measures forward passes, decoding, training steps and memory."""
    torch.set_num_threads(2)
    rows = []
    for length in (512, 2048) if full else (512,):
        rows += forward_rows(length, rounds=7 if full else 3)
    for batch in (1, 8):
        rows += decode_rows(batch, rounds=5 if full else 3)
    rows += train_rows(rounds=3 if full else 1)
    return rows + memory_rows(list(FORWARD_BARS) if full else ["seqpe bias"])


def build(name: str, positions: int = 2048) -> Any:
    """Builds the baseline, or the same model with a position encoding; names as "seqpe bias" or "rope"."""
    torch.manual_seed(0)
    if name == BASELINE:
        return GPT2LMHeadModel(GPT2Config(n_positions=positions, attn_implementation="sdpa")).eval()
    encoding, *integration = name.split()
    args = {"integration": integration[0]} if integration else {}
    config = SeqPEGPT2Config.paper(position_encoding=encoding, position_encoding_args=args)
    return SeqPEGPT2LMHeadModel(config).eval()


@torch.inference_mode()
def forward_rows(length: int, rounds: int) -> list[Row]:
    """A forward pass over one row of tokens, all logits."""
    tokens = torch.randint(50257, (1, length))
    functions = {}
    for name in (BASELINE, *FORWARD_BARS):
        model = build(name)
        functions[name] = lambda model=model: model(tokens, use_cache=False)
    return [
        Row.slower(f"forward of {length:,} tokens, {ratio.name}", ratio, FORWARD_BARS[ratio.name])
        for ratio in compare(functions, BASELINE, rounds)
    ]


@torch.inference_mode()
def decode_rows(batch: int, rounds: int, prompt: int = 512, new: int = 8) -> list[Row]:
    """Greedy steps with a growing cache, after a prompt."""
    tokens = torch.randint(50257, (batch, prompt))
    functions = {name: _decoder(build(name), tokens, new) for name in (BASELINE, *FORWARD_BARS)}
    return [
        Row.slower(f"decoding a token after {prompt}, batch {batch}, {ratio.name}", ratio, DECODE_BAR)
        for ratio in compare(functions, BASELINE, rounds)
    ]


def train_rows(rounds: int, batch: int = 8, length: int = 512) -> list[Row]:
    """Forward, backward and AdamW, with both position objectives."""
    tokens = torch.randint(50257, (batch, length))
    functions = {name: _step(build(name), tokens) for name in (BASELINE, "seqpe bias")}
    return [
        Row.slower(f"training step of {batch} x {length}, {ratio.name}", ratio, TRAIN_BAR)
        for ratio in compare(functions, BASELINE, rounds)
    ]


def memory_rows(names: list[str], length: int = LONG) -> list[Row]:
    """Peak memory of building a model and one forward pass with `logits_to_keep=1`."""
    baseline = _in_fresh_process(BASELINE, length)
    rows = []
    for name in names:
        ratio = _in_fresh_process(name, length) / baseline
        what = f"peak memory of a forward of {length:,} tokens, {name}"
        measured = f"{ratio:.3f}x {BASELINE} ({baseline / 1e9:.2f} GB)"
        rows.append(Row(what, measured, f"at most {MEMORY_BAR:.2f}x", ratio <= MEMORY_BAR))
    return rows


def _decoder(model: Any, tokens: torch.Tensor, new: int) -> Callable[[], object]:
    prefilled = model(tokens, use_cache=True, logits_to_keep=1).past_key_values

    def decode() -> None:
        cache = DynamicCache(config=model.config)
        for number, layer in enumerate(prefilled.layers):
            cache.update(layer.keys, layer.values, number)
        token = tokens[:, :1]
        for _ in range(new):
            token = model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)

    return decode


def _step(model: Any, tokens: torch.Tensor) -> Callable[[], object]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _in_fresh_process(name: str, length: int) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (name, length))


def _peak(name: str, length: int) -> float:
    torch.set_num_threads(2)

    @torch.inference_mode()
    def forward() -> None:
        build(name, positions=length)(torch.randint(50257, (1, length)), use_cache=False, logits_to_keep=1)

    return float(peak_memory_of(forward))
