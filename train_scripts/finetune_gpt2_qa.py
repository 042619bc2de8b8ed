r"""Fine-tune a language model on multi-document questions (paper, section 4.2), measure it at 1K to 8K.

The questions are made from SQuAD-format JSON with the prompt of the paper's appendix.
On one machine:
    python train_scripts/finetune_gpt2_qa.py train_scripts/recipes/gpt2_seqpe_qa.yaml \
        model.checkpoint=FOLDER data.train=train-v1.1.json data.validation=dev-v1.1.json
As the paper, on 4 GPUs:
    accelerate launch --num_processes 4 train_scripts/finetune_gpt2_qa.py \
        train_scripts/recipes/gpt2_seqpe_qa.yaml model.checkpoint=FOLDER
"""

from seqpe_zoo.training.launch import run_script

if __name__ == "__main__":
    raise SystemExit(run_script("finetune_gpt2_qa", __doc__))
