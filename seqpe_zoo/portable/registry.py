"""All position encodings by name. A new one is a file `pe_<name>.py` and a line here."""

from typing import Any, Dict, List, Optional, Type

from .pe_alibi import ALiBi
from .pe_ape_learn import LearnedEmbedding
from .pe_ape_sin import SinusoidalEmbedding
from .pe_base import PositionEncoding, did_you_mean
from .pe_nope import NoPositionEncoding
from .pe_rope import Rotary
from .pe_rope2d_axial import RotaryAxial2D
from .pe_rope2d_mixed import RotaryMixed2D
from .pe_seqpe import SeqPE

POSITION_ENCODINGS: Dict[str, Type[PositionEncoding]] = {
    "nope": NoPositionEncoding,
    "ape_sin": SinusoidalEmbedding,
    "ape_learn": LearnedEmbedding,
    "rope": Rotary,
    "rope2d_axial": RotaryAxial2D,
    "rope2d_mixed": RotaryMixed2D,
    "alibi": ALiBi,
    "seqpe": SeqPE,
}


def position_encoding_class(name: str) -> Type[PositionEncoding]:
    """Returns the class of an encoding.

    Raises:
        ValueError: the name is unknown; lists the known ones.
    """
    if name not in POSITION_ENCODINGS:
        known, near = ", ".join(POSITION_ENCODINGS), did_you_mean(str(name), POSITION_ENCODINGS)
        raise ValueError(f"unknown position encoding {name!r}{near}; the known ones are: {known}")
    return POSITION_ENCODINGS[name]


def build_position_encoding(name: str, dim: int, **kwargs: Any) -> PositionEncoding:
    """Builds a position encoding for a transformer.

    Args:
        name: a name of `list_position_encodings()`.
        dim: width of the transformer.
        **kwargs: what the encoding must know of the transformer (`num_heads`, `num_layers`, `num_dims`,
            `train_shape`, `num_prefix`, `causal`) and the encoding's own options.

    Raises:
        ValueError: the name is unknown, or the encoding does not suit the transformer.
        TypeError: the encoding has no such option.
    """
    encoding = position_encoding_class(name)
    num_dims, causal = kwargs.get("num_dims", 1), kwargs.get("causal", False)
    unsuitable = encoding.unsuitable(num_dims, causal)
    if unsuitable:
        others = ", ".join(list_position_encodings(num_dims, causal))
        raise ValueError(f"position encoding {name!r} {unsuitable}; choose one of {others}")
    return encoding(dim, **kwargs)


def list_position_encodings(num_dims: Optional[int] = None, causal: bool = True) -> List[str]:
    """Lists the names of encodings, all or those for data of `num_dims` dimensions.

    Args:
        num_dims: 1 for text, 2 for images.
        causal: whether attention is causal; some encodings need that.
    """
    if num_dims is None:
        return list(POSITION_ENCODINGS)
    return [
        name for name, encoding in POSITION_ENCODINGS.items() if not encoding.unsuitable(num_dims, causal)
    ]
