"""`seqpe-zoo fit-positions`: fits a position encoder once, for all models that are to start from it.

The file holds weights of the encoder alone, so one file serves every host of the same width, with any
integration. It is loaded into a model before training and is part of the model's checkpoint from then on:
configurations know nothing of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.errors import DataError
from ..evaluation.model_loading import find_position_encoding
from ..portable.encoder import fit_to_sinusoids
from ..portable.seqpe import SeqPE

FIT_STEPS = 1000


def fit_positions(
    output: Path, dim: int, num_dims: int = 1, steps: int = FIT_STEPS, seed: int = 0, **options: Any
) -> float:
    """Fits an encoder to sines and cosines of its positions and writes it, as safetensors.

    Args:
        output: the file.
        dim: width of the models that will use it.
        num_dims: 1 for text, 2 for images.
        steps: of the fit.
        seed: of weights and positions.
        **options: of SeqPE, as `num_digits=2`; the models must have the same digits and encoder sizes.

    Returns:
        The mean squared error at the end.

    Raises:
        DataError: the file cannot be written there; told before the fit.
    """
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    encoding = SeqPE(dim=dim, num_dims=num_dims, **options)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write {output}: {error.strerror}; give another file") from error
    if output.is_dir():
        raise DataError(f"{output} is a folder; give a file")
    generator = torch.Generator().manual_seed(seed)
    error = fit_to_sinusoids(encoding.encoder, encoding.options.max_position, steps, generator)
    facts = {
        "dim": dim,
        "num_dims": num_dims,
        "max_position": encoding.options.max_position,
        "steps": steps,
        "seed": seed,
    }
    weights = {name: value.contiguous() for name, value in encoding.encoder.state_dict().items()}
    save_file(weights, output, {"seqpe_zoo_encoder": json.dumps({**facts, **options, "error": error})})
    return error


def load_position_encoder(model: nn.Module, path: Path) -> None:
    """Puts a fitted encoder into a model with SeqPE, before it is trained.

    Raises:
        DataError: the model has no SeqPE, or one of other sizes than the file.
    """
    from safetensors.torch import load_file

    encoding = find_position_encoding(model)
    if encoding is None or encoding.name != "seqpe":
        raise DataError("a fitted encoder is for SeqPE; give the model that encoding first")
    try:
        encoding.encoder.load_state_dict(load_file(path))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise DataError(
            f"{path} was fitted for an encoder of other sizes: {reason}; fit one with the dim, num_dims, "
            "num_digits, base and encoder options of this model"
        ) from error
    encoding.is_fitted = True
    encoding.clear_cache()
