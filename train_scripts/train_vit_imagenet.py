r"""Train a ViT with a position encoding on ImageNet-1k (paper, section 4.3), or on other pictures.

On a laptop, on the digits that scikit-learn brings, to see that everything works:
    python train_scripts/train_vit_imagenet.py train_scripts/recipes/vit_pico_digits.yaml
As the paper, on 4 GPUs; data.source is a folder train/CLASS/*, validation/CLASS/*, tar files, or a name of
timm's readers as hfds/ILSVRC/imagenet-1k or wds/...:
    accelerate launch --num_processes 4 train_scripts/train_vit_imagenet.py \
        train_scripts/recipes/vit_s16_seqpe.yaml data.source=FOLDER

Begin with --dry-run to learn what a run will cost; continue a killed one with --resume.
"""

from seqpe_zoo.training.launch import run_script

if __name__ == "__main__":
    raise SystemExit(run_script("train_vit", __doc__))
