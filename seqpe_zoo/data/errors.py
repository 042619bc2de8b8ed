"""The one error of this room: data that is missing, empty or of another form than expected."""


class DataError(ValueError):
    """Says what was given, what was expected and what to do; commands print it without a traceback."""
