"""How a conversion fails: in words for the user, with every problem named, and with nothing written."""

from collections.abc import Sequence

from ..data.errors import DataError


class ConversionError(DataError):
    """The source cannot be converted.

    Args:
        message: one sentence.
        problems: what is wrong, an entry each; shown as a list below the sentence.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        self.problems = list(problems)
        super().__init__("\n  ".join([message, *self.problems]))
