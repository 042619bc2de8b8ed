"""A tiny NaFlexViT on photographs of mixed sizes and shapes: SeqPE beside the positions that timm offers.

python docs/reproduction/mini_naflex/train.py --data-dir FOLDER --output runs/mini_naflex

FOLDER has train/CLASS/*.jpg and test/CLASS/*.jpg. Photographs keep their aspect ratio and are resized so that
they have at most as many patches of 8 x 8 pixels as a sequence may be long; photographs of all shapes share a
batch. Trained with 36 patches, tested with up to 324.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import ImageDataset, create_naflex_loader
from torch import nn
from torch.utils.data import Dataset

import seqpe_zoo  # noqa: F401 (tells timm of the encodings)
from seqpe_zoo.evaluation.report import Measurement, Report, markdown_table, typed_command

TRAINED, TESTED = 36, (36, 64, 144, 324)
SIZES: dict[str, Any] = {
    "patch_size": 8,
    "embed_dim": 64,
    "depth": 4,
    "num_heads": 4,
    "init_values": None,
    "class_token": True,
    "global_pool": "token",
    "reg_tokens": 0,
    "fc_norm": False,
    "pos_embed_grid_size": (6, 6),
}
SEQPE = {
    "integration": "sum",
    "num_digits": 2,
    "max_position": 60,
    "num_pivots": 24,
    "num_candidates": 24,
    "num_starts": 8,
    "num_transfer": 16,
    "dropout": 0.0,
}
MODELS: dict[str, dict[str, Any]] = {
    "SeqPE": {"pos_embed": "seqpe", "pos_embed_args": SEQPE},
    "RoPE (timm)": {"pos_embed": "none", "rope_type": "axial", "rope_temperature": 100.0},
    "learned (timm)": {"pos_embed": "learned"},
    "factorized (timm)": {"pos_embed": "factorized"},
}


class Photographs(Dataset):
    """A folder of photographs, decoded once."""

    def __init__(self, folder: Path) -> None:
        self.transform: Any = None
        self.examples = list(ImageDataset(folder))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.examples[index]
        return (self.transform(image) if self.transform else image), label


def make_loader(photographs: Photographs, length: int, seed: int, is_training: bool) -> Any:
    """Makes timm's own loader of patches with their rows and columns."""
    return create_naflex_loader(
        photographs,
        patch_size=SIZES["patch_size"],
        train_seq_lens=(length,),
        max_seq_len=length,
        batch_size=64,
        is_training=is_training,
        scale=(0.35, 1.0),
        color_jitter=None,
        interpolation="bicubic",
        num_workers=0,
        seed=seed,
        device=torch.device("cpu"),
    )


def train(model: nn.Module, photographs: Photographs, steps: int, seed: int) -> None:
    """AdamW with a warm-up and a cosine; the objectives of the encoding are part of the loss."""
    kept = model.no_weight_decay()
    positions = [p for name, p in model.named_parameters() if name.startswith("position_encoding.")]
    transformer = [p for name, p in model.named_parameters() if not name.startswith("position_encoding.")]
    plain = [p for name, p in model.named_parameters() if name in kept or p.ndim < 2]
    decayed = [p for p in transformer if all(p is not other for other in plain)]
    plain = [p for p in plain if all(p is not other for other in positions)]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.05, "lr": 2e-3},
            {"params": plain, "weight_decay": 0.0, "lr": 2e-3},
            {"params": positions, "weight_decay": 0.0, "lr": 6e-4},  # as in mini_photos
        ]
    )
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=60)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 60)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [60])
    loader, step = make_loader(photographs, TRAINED, seed, is_training=True), 0
    for epoch in range(steps):
        loader.dataset.set_epoch(epoch)
        for batch, labels in loader:
            loss = F.cross_entropy(model.train()(batch), labels, label_smoothing=0.1)
            if hasattr(model, "position_losses"):
                loss = loss + model.position_losses().weighted
            optimizer.zero_grad()
            loss.backward()
            for part in (transformer, positions):  # each by itself, as in the paper's release
                nn.utils.clip_grad_norm_(part, 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step == steps:
                return


@torch.inference_mode()
def accuracy(model: nn.Module, photographs: Photographs, length: int) -> float:
    """Percentage of photographs that are classified rightly, with up to `length` patches each."""
    loader = make_loader(photographs, length, seed=0, is_training=False)
    right = sum(int((model.eval()(batch).argmax(-1) == labels).sum()) for batch, labels in loader)
    return 100 * right / len(photographs)


def main() -> None:
    """Trains all models with all seeds, and writes their accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/mini_naflex"))
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    pictures = {split: Photographs(given.data_dir / split) for split in ("train", "test")}
    dataset = {"name": given.data_dir.name, "id": given.data_dir.name, "split": "test"}
    report, rows = Report(typed_command(), details={"steps": given.steps}), []
    for name in given.models:
        found: list[list[float]] = []
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            start = time.process_time()
            model = timm.create_model("naflexvit_base_patch16_gap", num_classes=10, **SIZES, **MODELS[name])
            train(model, pictures["train"], given.steps, seed)
            found.append([accuracy(model, pictures["test"], length) for length in TESTED])
            seconds = time.process_time() - start
            print(f"{name}, seed {seed}: {found[-1]} ({seconds:.0f} s)", flush=True)
            report.details.setdefault("seconds", {}).setdefault(name, []).append(round(seconds, 1))
        cells = []
        for length, values in zip(TESTED, zip(*found)):
            mean = statistics.fmean(values)
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            note = f"{name}, mean of {len(values)} seeds, standard deviation {spread:.2f}"
            setting = {"patches": length}
            report.measurements.append(
                Measurement(name, "image-classification", dataset, "accuracy", setting, mean, note)
            )
            cells.append(f"{mean:.1f} ± {spread:.1f}")
        rows.append([name, *cells])
        write(given.output, report, rows)


def write(folder: Path, report: Report, rows: list[list[str]]) -> None:
    """Writes `results.json` and `table.md`."""
    report.write(folder)
    table = markdown_table(["accuracy, by patches a photograph", *map(str, TESTED)], rows)
    title = f"# NaFlexViT on photographs of mixed sizes\n\nMeasured here by `{report.command}`.\n\n"
    (folder / "table.md").write_text(title + table, encoding="utf-8")


if __name__ == "__main__":
    main()
