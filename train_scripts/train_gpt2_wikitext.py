"""Train GPT-2 with a position encoding on WikiText-103 (paper, section 4.1), or on other text.

On a laptop, to see that everything works:
    python train_scripts/train_gpt2_wikitext.py train_scripts/recipes/gpt2_tiny_stdlib.yaml
As the paper, on 4 GPUs:
    accelerate launch --num_processes 4 train_scripts/train_gpt2_wikitext.py
    train_scripts/recipes/gpt2_seqpe.yaml

Any value of the recipe can be changed on the command line: data.source=FOLDER training.batch_size=16.
Begin with --dry-run to learn what a run will cost; continue a killed one with --resume.
"""

from seqpe_zoo.training.launch import run_script

if __name__ == "__main__":
    raise SystemExit(run_script("train_gpt2", __doc__))
