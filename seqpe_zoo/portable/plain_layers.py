"""Whether a layer does what its class says and nobody looks on, so that others may do it in another way."""

from torch import nn


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether a layer is a product and a bias, and does nothing else when it is called.

    Quantised or sharded weights are of types of their own; accelerate replaces `forward` where it has moved
    weights away.
    """
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:
        return False
    return type(layer.weight) is nn.Parameter and type(layer.bias) is nn.Parameter


def is_watched(layer: nn.Module) -> bool:
    """Whether a hook looks at what goes through a layer."""
    return bool(
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )
