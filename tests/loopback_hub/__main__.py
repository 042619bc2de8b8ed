"""`python -m tests.loopback_hub --port N --root DIR`: the loopback hub of seqpe_zoo.hub.loopback."""

from seqpe_zoo.hub.loopback.server import main

if __name__ == "__main__":
    raise SystemExit(main())
