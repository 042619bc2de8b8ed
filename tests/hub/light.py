"""Run the hub commands without `seqpe_zoo/__init__.py`, which imports torch: a push does not.

`python tests/hub/light.py push ...` behaves as `seqpe-zoo push ...` and starts in a fraction of a second.
"""

import sys
import types
from pathlib import Path

package = types.ModuleType("seqpe_zoo")
package.__path__ = [str(Path(__file__).parents[2] / "seqpe_zoo")]
sys.modules["seqpe_zoo"] = package

from seqpe_zoo.hub.commands import main  # noqa: E402 (the package above must come first)

if __name__ == "__main__":
    code = main()
    heavy = {"torch", "timm", "transformers"} & set(sys.modules)
    assert not heavy, f"hub commands must not import {heavy} in their own process"
    raise SystemExit(code)
