"""Does a state dict fit a model? Every key that does not is named."""

from collections.abc import Mapping

from torch import Tensor, nn

from .errors import ConversionError


def state_problems(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Lists the keys of the model that the state lacks, its extra keys, and those of another shape.

    What the weights of an encoding are (`kind`) is the model's to say: no other format has it.
    """
    expected = model.state_dict()
    lacking = [name for name in expected if name not in state and not name.endswith(".kind")]
    problems = [f"missing: {name} {_shape(expected[name])}" for name in lacking]
    problems += [f"extra: {name} {_shape(state[name])}" for name in state if name not in expected]
    for name, tensor in state.items():
        if name in expected and tensor.shape != expected[name].shape:
            wanted = _shape(expected[name])
            problems.append(f"misshaped: {name} is {_shape(tensor)}, the model wants {wanted}")
    return problems


def load_exactly(
    model: nn.Module, state: Mapping[str, Tensor], source: str, others: list[str] | None = None
) -> None:
    """Loads a state dict that fits in every key and shape.

    Args:
        model: the model to fill.
        state: its weights, in the model's names.
        source: what the weights are called in the error.
        others: problems that were found before.

    Raises:
        ConversionError: it does not fit; all keys concerned are listed.
    """
    problems = [*(others or []), *state_problems(model, state)]
    if problems:
        raise ConversionError(
            f"{source} does not fit the model that its configuration describes; nothing was written. "
            "By our names of the keys:",
            problems,
        )
    model.load_state_dict(dict(state), strict=True)


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
