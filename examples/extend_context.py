"""Train tiny language models on 64 tokens, and measure their perplexity on texts sixteen times as long.

python examples/extend_context.py          (600 steps each, a few minutes on one CPU core)
python examples/extend_context.py 20
"""

import sys

import torch
from torch import Tensor

from seqpe_zoo.data.stdlib_text import load_stdlib_text
from seqpe_zoo.evaluation.perplexity import evaluate_perplexity
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel

LENGTH, LENGTHS = 64, (64, 128, 256, 512, 1024)
TEXT = load_stdlib_text(2_000_000, 8_192)  # bytes of Python's own source: put your own tokens here
ENCODINGS = {
    "rope": {},
    "alibi": {},
    "seqpe": {"num_digits": 4, "max_position": 2000, "bias_scale": 4.0, "dropout": 0.0, "num_pivots": 8},
}


def build(name: str, options: dict[str, object]) -> SeqPEGPT2LMHeadModel:
    """Builds a GPT-2 of 0.2 million parameters that reads bytes."""
    torch.manual_seed(0)
    return SeqPEGPT2LMHeadModel(
        SeqPEGPT2Config(
            vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, initializer_range=0.08,
            bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            position_encoding=name, position_encoding_args=options,
        )
    )  # fmt: skip


def train(model: SeqPEGPT2LMHeadModel, text: Tensor, steps: int) -> None:
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
    for name, options in ENCODINGS.items():
        model = build(name, options)
        train(model, TEXT.train, steps=int(sys.argv[1]) if len(sys.argv) > 1 else 600)
        results = evaluate_perplexity(model, TEXT.held_out, LENGTHS)
        print(name, *(f"{result.length}: {result.perplexity:.2f}" for result in results))
