"""What a sweep takes: its measurements, and the memory of a window at each length."""

import itertools

import jax
from rich.console import Console

from rope_jax.attention import check_backend
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import print_overview
from rope_jax.devices.hardware import device_line
from rope_jax.devices.memory import device_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.evaluation.plan import sweep_lengths
from rope_jax.model.cost import flops_per_token
from rope_jax.model.decoder import language_model
from rope_jax.sweeps.fit import check_run_entries, check_texts, for_encoding, with_attention
from rope_jax.sweeps.memory import MemoryPlan, check_window, describe_memory, memory_table
from rope_jax.sweeps.model import mesh_for

# Model FLOPs of a training token over those of a token that is only read: no backward pass.
_TRAINING_OVER_READING = 3


def plan_sweep(training: Config, config: SweepConfig, vocab_size: int, console: Console) -> None:
    """Print what a sweep of a run takes; neither weights nor texts are read.

    training: the run's config, whose last stage is taken for that of the checkpoint.
    vocab_size: the tokenizer's.

    UserError: the sweep does not suit the run, or does not fit on this machine.
    """
    if config.attention is not None:
        training = with_attention(training, config.attention)
    config = for_encoding(training, config)
    check_run_entries(training, config)
    check_texts(training, config)
    check_backend(training.model)
    window = training.stages[-1].seq_len
    lengths = sweep_lengths(config, window)
    longest = training.encoding.longest
    read = [length for length in lengths if longest is None or length <= longest]
    model = language_model(training, vocab_size)
    like = Placement(mesh_for(training)).shard_state(jax.eval_shape(lambda: model.init(0)))
    memory, available = MemoryPlan(training.model, model.vocab_size, like), device_bytes()
    table = memory_table(memory, read, available) if read else None
    entries = [entry.label for entry in config.scalings]
    # each length of each entry reads the block with the text in front of it once
    tokens = len(entries) * sum(read)
    flops = sum(
        len(entries) * n * flops_per_token(training.model, vocab_size, n) / _TRAINING_OVER_READING
        for n in read
    )
    count = len(list(itertools.product(entries, config.protocols, read)))
    facts = {
        "window": f"{window:,} tokens",
        "lengths": ", ".join(f"{n:,}" for n in read),
        "scalings": ", ".join(entries),
        "protocols": ", ".join(config.protocols),
        "measurements": f"{count:,} per checkpoint: every scaling at every length, by protocol",
        "compute": f"{tokens:,} tokens and {flops:.3g} FLOPs per scored block, with same_tokens",
        "blocks": f"max_blocks {config.max_blocks}, in each of at most {config.max_documents} "
        "documents",
        "devices": device_line(training.model.dtype),
    }
    if table is None and read:
        facts["memory"] = describe_memory(memory, read[-1], available)
    print_overview(console, f"plan of the sweep {config.name} of {training.name}", facts)
    if table is not None:
        console.print(table)
    if read:
        imported = training.imported is not None
        check_window(memory, read, available, config.memory_gib, imported=imported)
