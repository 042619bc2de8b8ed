"""`python -m tests.loopback_hub --root DIR --port N`."""

from .server import main

if __name__ == "__main__":
    raise SystemExit(main())
