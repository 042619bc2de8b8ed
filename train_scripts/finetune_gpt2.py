r"""Fine-tune any language model, from the Hub or a folder, on your own text files.

On one machine; FOLDER holds train.txt and valid.txt (or folders of that name):
    python train_scripts/finetune_gpt2.py train_scripts/recipes/finetune_gpt2.yaml \
        model.checkpoint=ORG/NAME data.source=FOLDER
On several GPUs, with a longer context:
    accelerate launch --num_processes 4 train_scripts/finetune_gpt2.py
    train_scripts/recipes/finetune_gpt2.yaml \\ model.checkpoint=ORG/NAME data.source=FOLDER data.length=1024
"""

from seqpe_zoo.training.launch import run_script

if __name__ == "__main__":
    raise SystemExit(run_script("finetune_gpt2", __doc__))
