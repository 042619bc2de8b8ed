"""Write tiny models into folders, as training would. Run in a process of its own.

`python tests/hub/stand_ins.py FOLDER` writes lm (remote code), vit (timm) and logits.json in it.
"""

import importlib
import json
import sys
import types
from pathlib import Path

CODE = Path(__file__).with_name("stand_in_code")


def write_lm(folder):
    import torch

    package = types.ModuleType("stand_in_code")
    package.__path__ = [str(CODE)]
    sys.modules["stand_in_code"] = package
    modeling = importlib.import_module("stand_in_code.modeling_standin")
    torch.manual_seed(0)
    config = modeling.StandInConfig()
    model = modeling.StandInForCausalLM(config).eval()
    model.save_pretrained(folder)
    add_to_config(
        folder,
        auto_map={
            "AutoConfig": "configuration_standin.StandInConfig",
            "AutoModelForCausalLM": "modeling_standin.StandInForCausalLM",
        },
    )
    with torch.no_grad():
        return model(torch.arange(16)[None]).logits.flatten()[:8].tolist()


def write_vit(folder):
    import timm
    import torch
    from timm.models import save_for_hf

    torch.manual_seed(0)
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **args).eval()
    model.pretrained_cfg.update(input_size=(3, 32, 32), num_classes=10)
    save_for_hf(model, folder, model_args=args, safe_serialization=True)
    with torch.no_grad():
        return model(torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)).flatten().tolist()


def add_to_config(folder, **values):
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    logits = {"lm": write_lm(place / "lm"), "vit": write_vit(place / "vit")}
    (place / "logits.json").write_text(json.dumps(logits))
