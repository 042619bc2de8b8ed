"""What the tests of the language model share: every encoding that serves text, and small models of each."""

from typing import Any

import torch

from seqpe_zoo import SeqPEGPT2Config, SeqPEGPT2LMHeadModel, list_position_encodings
from seqpe_zoo.portable.seqpe import INTEGRATIONS

ENCODINGS: dict[str, dict[str, Any]] = {
    name: {"position_encoding": name} for name in list_position_encodings(1) if name != "seqpe"
}
for integration in INTEGRATIONS:
    for projection in ("shared", "per_layer"):
        if integration == "input" and projection == "per_layer":
            continue
        ENCODINGS[f"seqpe_{integration}_{projection}"] = {
            "position_encoding": "seqpe",
            "position_encoding_args": {"integration": integration, "projection": projection},
        }
narrow = {"integration": "bias", "position_dim": 4}
ENCODINGS["seqpe_bias_narrow"] = {"position_encoding": "seqpe", "position_encoding_args": narrow}
# What `seqpe-zoo train` builds has GPT-2's activation by its quicker name.
ENCODINGS["seqpe_bias_shared"]["activation_function"] = "gelu_pytorch_tanh"

ROADS = ["nope", "ape_sin", "ape_learn", "rope", "alibi", "seqpe_mul_shared", "seqpe_bias_shared"]
"""One encoding for each way positions enter the model; for checks that are too slow for all."""


def tiny_config(case: str, **changes: Any) -> SeqPEGPT2Config:
    """The tiny preset with an encoding of `ENCODINGS`."""
    return SeqPEGPT2Config.tiny(**{**ENCODINGS[case], **changes})


def tiny_model(case: str, **changes: Any) -> SeqPEGPT2LMHeadModel:
    """A tiny model in evaluation mode whose weights are large enough for positions to matter."""
    torch.manual_seed(7)
    model = SeqPEGPT2LMHeadModel(tiny_config(case, **changes)).eval()
    enlarge_weights(model)
    return model


@torch.no_grad()
def enlarge_weights(model: torch.nn.Module, std: float = 0.15) -> None:
    """Adds noise to all weights: at their start the vectors of SeqPE hardly differ."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * std)


def random_tokens(rows: int, length: int, vocab_size: int = 128) -> torch.Tensor:
    """Tokens without the padding token 0."""
    return torch.randint(1, vocab_size, (rows, length))


def pad_left(tokens: torch.Tensor, padding: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Puts zeros before each row, cutting its end to keep the length; returns tokens and mask."""
    rows = []
    for row, zeros in zip(tokens, padding, strict=True):
        rows.append(torch.cat([torch.zeros(zeros, dtype=torch.long), row[: tokens.shape[1] - zeros]]))
    padded = torch.stack(rows)
    return padded, (padded != 0).long()
