r"""Fine-tune any image classifier, from the Hub or a folder, of timm or transformers, on your own pictures.

On one machine; pictures lie in FOLDER/train/CLASS/* and FOLDER/validation/CLASS/*:
    python train_scripts/finetune_vit.py train_scripts/recipes/finetune_vit.yaml \
        model.checkpoint=ORG/NAME data.source=FOLDER
On several GPUs, at another resolution, with the position encoder as it is:
    accelerate launch --num_processes 4 train_scripts/finetune_vit.py train_scripts/recipes/finetune_vit.yaml
    \\ model.checkpoint=ORG/NAME data.source=FOLDER data.resolution=384 training.freeze_position_encoder=true
"""

from seqpe_zoo.training.launch import run_script

if __name__ == "__main__":
    raise SystemExit(run_script("finetune_vit", __doc__))
