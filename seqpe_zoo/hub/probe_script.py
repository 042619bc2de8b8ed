"""Load a model as its users will, run it once, print the outcome as JSON. Runs alone, in a fresh process.

The request on the command line names the libraries. With `with_package` seqpe_zoo is imported first. Without
it, transformers goes first and must do with the code beside the weights, for seqpe_zoo cannot be imported;
timm may import it when it does not know the architecture, because no code travels for timm. A request with
`blocks` runs these snippets of a card instead.
"""

import json
import math
import sys
from pathlib import Path

import torch


class Forbidden:
    """Makes seqpe_zoo impossible to import, installed or not."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] == "seqpe_zoo":
            raise ModuleNotFoundError(f"No module named {fullname!r} (hidden by the check)", name=fullname)
        return


def import_package(request):
    """Import seqpe_zoo from where the caller has it."""
    if request["package_path"] not in sys.path:
        sys.path.insert(0, request["package_path"])
    __import__("seqpe_zoo")


def token_input(vocab_size, length):
    """Return token ids that are the same everywhere."""
    return torch.tensor([[(7 * i * i + 3 * i + 1) % vocab_size for i in range(length)]])


def image_input(shape):
    """Return an image that is the same everywhere, values in [-1, 1]."""
    count = math.prod(shape)
    return torch.sin(torch.arange(count, dtype=torch.float64) * 0.1).to(torch.float32).reshape(1, *shape)


def summarise(logits):
    """Return the shape and 64 evenly spaced values of a tensor: the fingerprint."""
    flat = logits.detach().to(torch.float64).flatten()
    picks = torch.linspace(0, flat.numel() - 1, min(64, flat.numel())).round().long()
    return {
        "shape": list(logits.shape),
        "sample": [float(f"{value:.9g}") for value in flat[picks].tolist()],
        "mean": float(f"{flat.mean().item():.9g}"),
        "absmax": float(f"{flat.abs().max().item():.9g}"),
        "finite": bool(torch.isfinite(flat).all()),
    }


def load_timm(request):
    """Return (model, inputs, problems) from timm."""
    import timm

    config, place, revision = request["config"], request["place"], request["revision"]
    if not timm.is_model(config["architecture"]) or "pos_embed" in (config.get("model_args") or {}):
        import_package(request)
    place = f"hf-hub:{place}@{revision}" if revision else f"local-dir:{place}"
    model = timm.create_model(place, pretrained=True).eval()
    shape = (model.pretrained_cfg or {}).get("input_size") or (3, 224, 224)
    return model, image_input(tuple(shape)), []


def auto_class(config):
    """Return the transformers class that loads what was saved, by the first name of `architectures`."""
    import transformers

    saved = (getattr(config, "architectures", None) or [""])[0]
    for name, place in (getattr(config, "auto_map", None) or {}).items():
        if name != "AutoConfig" and str(place).rpartition(".")[2] == saved:
            return getattr(transformers, name)
    return getattr(transformers, saved, transformers.AutoModel)


def load_transformers(request):
    """Return (model, inputs, problems) from transformers."""
    from transformers import AutoConfig

    place, options = request["place"], {"trust_remote_code": True}
    if request["revision"]:
        options.update(revision=request["revision"], code_revision=request["revision"])
    config = AutoConfig.from_pretrained(place, **options)
    model, report = auto_class(config).from_pretrained(place, output_loading_info=True, **options)
    problems = []
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if names := sorted(map(str, report.get(kind) or ())):
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            problems.append(f"{kind.replace('_', ' ')}: {names[:8]}{more}")
    if getattr(config, "vocab_size", None) and not hasattr(config, "image_size"):
        limit = getattr(config, "n_positions", None) or getattr(config, "max_position_embeddings", None) or 24
        return model.eval(), token_input(config.vocab_size, min(24, limit)), problems
    size = getattr(config, "image_size", None) or 224
    size = (size, size) if isinstance(size, int) else tuple(size)
    return model.eval(), image_input((getattr(config, "num_channels", 3) or 3, *size)), problems


def saved_tensors(model):
    """Return the model's tensors by their names in memory and, with transformers, in its files."""
    state = model.state_dict()
    if "transformers" in sys.modules and hasattr(model, "save_pretrained"):
        from transformers.core_model_loading import revert_weight_conversion

        state = {**state, **revert_weight_conversion(model, dict(state))}
    return state


def compare_tensors(model, folder):
    """Return how the loaded tensors differ from the safetensors files in a folder, bit by bit."""
    from safetensors import safe_open

    state, problems, compared = saved_tensors(model), [], 0
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                # Either name may have a word more in front: timm's are behind `vit.` in the file.
                found = [key for key in (name, name.partition(".")[2]) if key in state][:1]
                found = found or [key for key in state if key.partition(".")[2] == name]
                if len(found) != 1:
                    problems.append(f"tensor {name} is in the file but not in the loaded model")
                elif not torch.equal(state[found[0]], file.get_tensor(name)):
                    problems.append(f"tensor {name} differs from the file")
                else:
                    compared += 1
    return problems[:8], compared


def look_at(library, request):
    """Return what a user of this library would see."""
    torch.manual_seed(0)
    answer = {"library": library, "problems": []}
    try:
        load = load_timm if library == "timm" else load_transformers
        model, inputs, answer["problems"] = load(request)
        if request["weights"]:
            problems, answer["tensors_equal"] = compare_tensors(model, request["weights"])
            answer["problems"] += problems
        with torch.no_grad():
            output = model(inputs)
        logits = output if isinstance(output, torch.Tensor) else output[0]
        answer["class"], answer["fingerprint"] = type(model).__name__, summarise(logits)
        if not answer["fingerprint"]["finite"]:
            answer["problems"].append("the logits are not finite")
    except Exception as error:  # noqa: BLE001 (whatever a user would see is the answer)
        answer["problems"].append(f"{type(error).__name__}: {str(error)[:1500]}")
    return answer


def look_at_all(request):
    """Give what users of each library would see."""
    if request["with_package"]:
        import_package(request)
    for library in sorted(request["libraries"], reverse=True):  # transformers first
        hidden = [Forbidden()] if library == "transformers" and not request["with_package"] else []
        sys.meta_path[:0] = hidden
        yield look_at(library, request)
        for finder in hidden:  # others may have been put before it
            sys.meta_path.remove(finder)


def run_snippets(request):
    """Execute numbered blocks and give what failed."""
    if request["with_package"]:
        sys.path.insert(0, request["package_path"])
    else:
        sys.meta_path.insert(0, Forbidden())
    for number, code in request["blocks"]:
        problem = None
        try:
            exec(compile(code, f"<snippet {number}>", "exec"), {"__name__": "__main__"})
        except BaseException as error:  # noqa: BLE001 (whatever a reader would see is the answer)
            problem = f"{type(error).__name__}: {error}"[:1500]
        yield {"block": number, "problem": problem}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    for line in run_snippets(asked) if "blocks" in asked else look_at_all(asked):
        sys.stdout.write("\nPROBE " + json.dumps(line) + "\n")
        sys.stdout.flush()
