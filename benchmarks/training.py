"""What our trainer costs beside a loop written by hand, on the demo's text models.

Same model, data, batch size and optimizer. Both take turns in one process and the ratio is that of CPU times
within a round, without the first steps of each, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace

import torch
from torch import nn

from benchmarks.report import Row
from benchmarks.timing import Ratio
from seqpe_zoo.training.demo_jobs import DEMO_JOBS, demo_recipe
from seqpe_zoo.training.job import Job, build_trainer
from seqpe_zoo.training.launch import quiet_libraries
from seqpe_zoo.training.parameter_groups import build_parameter_groups, position_parameter_names
from seqpe_zoo.training.run_config import RUNS
from seqpe_zoo.training.strict_config import build_config
from seqpe_zoo.training.text_jobs import train_gpt2_job

BAR = 1.15


def build_job(name: str, steps: int) -> Job:
    """Builds a text model of the demo, to be trained for so many steps."""
    demo = next(job for job in DEMO_JOBS if job.name == name)
    recipe = demo_recipe(demo, tempfile.mkdtemp(), 1.0, 0)
    run = build_config(RUNS[recipe["task"]], recipe)
    quiet = replace(run.training, steps=steps, warmup_steps=1, save_every=10**9, log_every=10**6)
    return train_gpt2_job(replace(run, training=quiet))


def time_trainer(name: str, steps: int) -> float:
    """Returns the CPU seconds a step of our trainer, without the first ones."""
    stamps: list[float] = []
    job = build_job(name, steps)
    trainer, _, _ = build_trainer(job, listener=lambda *_: stamps.append(time.process_time()))
    trainer.args.save_strategy = "no"
    trainer.train()
    return (stamps[-1] - stamps[4]) / (len(stamps) - 5)


def time_loop(name: str, steps: int) -> float:
    """Returns the CPU seconds a step of a loop by hand, without the first ones."""
    job = build_job(name, steps)
    model, config = job.model.train(), job.config
    optimizer = torch.optim.AdamW(build_parameter_groups(model, config.learning_rate, config.weight_decay))
    of_positions = position_parameter_names(model)
    position = [p for name, p in model.named_parameters() if name in of_positions]
    host = [p for name, p in model.named_parameters() if name not in of_positions]
    order = torch.randperm(len(job.train)).tolist()
    stamps = []
    for step in range(steps):
        places = order[step * config.batch_size : (step + 1) * config.batch_size]
        loss = model(**job.collate([job.train[place] for place in places])).loss
        loss.backward()
        for group in (position, host):
            if group:
                nn.utils.clip_grad_norm_(group, config.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        stamps.append(time.process_time())
    return (stamps[-1] - stamps[4]) / (len(stamps) - 5)


def run(full: bool) -> list[Row]:
    """Measures both, in a full run only; a section of `benchmarks.run`."""
    if not full:
        return []
    quiet_libraries()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rounds, steps = 5, 60
    rows = []
    for name, words in (("text_seqpe", "tiny GPT-2 with SeqPE"), ("text_rope", "tiny GPT-2 with RoPE")):
        ratios, times = [], []
        for number in range(rounds):
            if number % 2:
                trainer, loop = time_trainer(name, steps), time_loop(name, steps)
            else:
                loop, trainer = time_loop(name, steps), time_trainer(name, steps)
            ratios.append(trainer / loop)
            times.append(trainer)
        median = statistics.median(ratios)
        ratio = Ratio(
            name, "a loop by hand", median, min(ratios), max(ratios), statistics.median(times), rounds
        )
        rows.append(Row.slower(f"a training step of our trainer, {words}", ratio, BAR))
    torch.set_num_threads(threads)
    return rows
