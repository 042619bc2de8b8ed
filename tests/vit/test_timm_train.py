"""The example that runs timm's train.py: the objectives are in its loss."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "timm_train.py"

TRAIN = """
import sys

import torch
from timm.models import create_model
from timm.task import ClassificationTask

torch.manual_seed(0)
model = create_model(
    "vit_tiny_patch16_224",
    pos_embed=sys.argv[1],
    img_size=32,
    embed_dim=32,
    depth=2,
    num_heads=2,
    num_classes=3,
)
task = ClassificationTask(model, torch.nn.CrossEntropyLoss())
task.train()
for _ in range(2):
    result = task(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]))
    result["loss"].backward()
plain = torch.nn.functional.cross_entropy(result["output"], torch.tensor([0, 1, 2, 0]))
print("objectives", float(result["loss"].detach() - plain.detach()))
"""


def objectives_of_a_run(folder: Path, name: str) -> float:
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, str(EXAMPLE), str(folder / "train.py"), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split("objectives")[1])


def test_objectives_are_in_the_loss(tmp_path: Path) -> None:
    assert objectives_of_a_run(tmp_path, "seqpe") > 0.01


def test_encodings_without_objectives_add_nothing(tmp_path: Path) -> None:
    assert objectives_of_a_run(tmp_path, "rope2d_axial") == 0
