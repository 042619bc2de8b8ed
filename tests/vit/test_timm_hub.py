"""timm's push_to_hf_hub and `hf-hub:` with the real client, against the loopback hub."""

import json
import subprocess
import sys
from pathlib import Path

from tests.hub.helpers import LoopbackHub, hub_environment

ROUND_TRIP = """
import json

import timm
import torch
from timm.models import push_to_hf_hub

import seqpe_zoo

SIZES = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5, "patch_size": 8}
FAMILIES = {
    "vit_tiny_patch16_224": {"img_size": 32},
    "naflexvit_base_patch16_gap": {},
    "vit_small_patch16_rope_224": {"img_size": 32, "keep_native": True},
}
seen = {}
for number, (family, extra) in enumerate(FAMILIES.items()):
    options = {"pos_embed_args": {"integration": "bias"}, **extra}
    model = timm.create_model(family, pos_embed="seqpe", **options, **SIZES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    sizes = {**SIZES, **({"img_size": 32} if "img_size" in extra else {})}
    push_to_hf_hub(model, f"zoo/timm{number}", model_args=sizes)  # says nothing of the position encoding
    loaded = timm.create_model(f"hf-hub:zoo/timm{number}", pretrained=True).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        seen[family] = [torch.equal(loaded(x), model(x)), loaded.position_encoding.integration]
    try:
        other = {"integration": "mul"}
        repo = f"hf-hub:zoo/timm{number}"
        timm.create_model(repo, pretrained=True, pos_embed="seqpe", pos_embed_args=other)
    except RuntimeError as error:
        seen[family].append("weights are of position encoding 'seqpe" in str(error))
print(json.dumps(seen))
"""


def test_pushed_models_come_back_equal_with_nothing_else_said(tmp_path: Path) -> None:
    hub = LoopbackHub.start(tmp_path / "root", tmp_path / "home")
    try:
        environment = hub_environment(tmp_path / "home", hub.url)
        done = subprocess.run(
            [sys.executable, "-c", ROUND_TRIP], env=environment, capture_output=True, text=True
        )
    finally:
        hub.stop()
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert len(seen) == 3
    assert all(found == [True, "bias", True] for found in seen.values()), seen
