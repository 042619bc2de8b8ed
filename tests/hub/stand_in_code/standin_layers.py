"""A sibling file, found by following imports."""

PORTABLE_VERSION = "1"


def bend(x):
    """Return the hyperbolic tangent."""
    return x.tanh()
