"""Weights that accelerate has moved out of memory."""

from torch import nn


def keep_in_memory(encoding: nn.Module) -> None:
    """Loads the weights of a position encoding that accelerate keeps elsewhere, for good.

    It would load them for each call of `forward`; encodings are called by other methods too, and keep tables.
    """
    if not any(parameter.is_meta for parameter in encoding.parameters()):
        return
    for part in encoding.modules():
        hook = getattr(part, "_hf_hook", None)
        for single in getattr(hook, "hooks", [hook]):
            if getattr(single, "offload", False):
                single.pre_forward(part)
                single.offload = False
