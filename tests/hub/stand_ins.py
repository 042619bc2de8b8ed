"""Write tiny models into folders, as training would. Run in a process of its own.

`python tests/hub/stand_ins.py FOLDER` writes lm and llama (transformers), vit (timm) and logits.json in it.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import timm
import torch
from timm.models import save_for_hf
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

import seqpe_zoo


def write_lm(folder):
    torch.manual_seed(0)
    size = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    config = AutoConfig.for_model("seqpe_gpt2", position_encoding="seqpe", **size, **tokens)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    with torch.no_grad():
        return model(torch.arange(16)[None]).logits.flatten()[:8].tolist()


def write_llama(folder):
    """Write a model of transformers with another position encoding."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, bos_token_id=0, eos_token_id=0, **size)
    equipped = seqpe_zoo.with_position_encoding(config, "seqpe", integration="bias")
    AutoModelForCausalLM.from_config(equipped).save_pretrained(folder)


def write_vit(folder):
    torch.manual_seed(0)
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model("vit_small_patch16_seqpe_224", num_classes=10, **args).eval()
    model.pretrained_cfg.update(input_size=(3, 32, 32), num_classes=10)
    save_for_hf(model, folder, model_args=args, safe_serialization=True)
    with torch.no_grad():
        return model(torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)).flatten().tolist()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_llama(place / "llama")
    logits = {"lm": write_lm(place / "lm"), "vit": write_vit(place / "vit")}
    (place / "logits.json").write_text(json.dumps(logits))
