"""Run the hub commands and insist that they import no torch, timm or transformers; only `stage` may.

`python tests/hub/light.py push ...` behaves as `seqpe-zoo push ...`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from seqpe_zoo.hub.commands import main

if __name__ == "__main__":
    code = main()
    heavy = {"torch", "timm", "transformers"} & set(sys.modules)
    assert not heavy or "stage" in sys.argv, f"hub commands must not import {heavy} in their own process"
    raise SystemExit(code)
