"""`python -m seqpe_zoo.hub.loopback --root DIR --port N`."""

from .server import main

if __name__ == "__main__":
    raise SystemExit(main())
