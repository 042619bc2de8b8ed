"""Runs timm's train.py with the objectives of the position encoding added to its loss.

Take train.py and validate.py from timm's repository, at the version that is installed; arguments are theirs.

python examples/timm_train.py train.py --data-dir DATA --model vit_small_patch16_224 \
    --model-kwargs pos_embed=seqpe "pos_embed_args={'integration':'bias'}"
python examples/timm_train.py validate.py --data-dir DATA --model vit_small_patch16_224 \
    --model-kwargs pos_embed=seqpe "pos_embed_args={'integration':'bias'}" --checkpoint FILE
"""

import runpy
import sys

import timm.task
from timm.utils import unwrap_model
from torch import Tensor

import seqpe_zoo  # noqa: F401 (tells timm of the encodings)


class ClassificationTask(timm.task.ClassificationTask):
    """timm's task, with the objectives of the model in its loss."""

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """As in timm."""
        result = super().forward(input, target)
        losses = unwrap_model(self.trainable_module).position_losses()
        return {**result, "loss": result["loss"] + losses.weighted}


if __name__ == "__main__":
    timm.task.ClassificationTask = ClassificationTask
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
