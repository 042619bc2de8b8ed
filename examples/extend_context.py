"""Train tiny Llamas on 64 tokens, and measure their perplexity on texts sixteen times as long.

python examples/extend_context.py          (600 steps each, a few minutes on one CPU core)
python examples/extend_context.py 20
"""

import sys
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from seqpe_zoo import with_position_encoding
from seqpe_zoo.data.stdlib_text import load_stdlib_text
from seqpe_zoo.evaluation.perplexity import evaluate_perplexity

LENGTH, LENGTHS = 64, (64, 128, 256, 512, 1024)
TEXT = load_stdlib_text(2_000_000, 8_192)  # bytes of Python's own source: put your own tokens here
SEQPE = {"num_digits": 4, "max_position": 2000, "dropout": 0.0, "num_pivots": 64, "num_candidates": 24,
         "num_starts": 8, "num_transfer": 24}  # fmt: skip


def build(name: str) -> Any:
    """Builds a Llama of 0.2 million parameters that reads bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    if name == "alibi":
        config = with_position_encoding(config, "alibi")
    if "seqpe" in name:  # in place of the rotation, or beside it
        config = with_position_encoding(config, "seqpe", keep_native=name == "rope+seqpe", **SEQPE)
    return AutoModelForCausalLM.from_config(config)


def train(model: Any, text: Tensor, steps: int) -> None:
    """Trains on random pieces; the loss of the model has the position objectives in it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH, (32, 1))
        tokens = text[starts + torch.arange(LENGTH)]
        loss = model.train()(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


if __name__ == "__main__":
    for name in ("rope", "alibi", "seqpe", "rope+seqpe"):
        model = build(name)
        train(model, TEXT.train, steps=int(sys.argv[1]) if len(sys.argv) > 1 else 600)
        results = evaluate_perplexity(model, TEXT.held_out, LENGTHS)
        print(name, *(f"{result.length}: {result.perplexity:.2f}" for result in results))
