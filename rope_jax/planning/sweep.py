"""What a sweep takes: its measurements, and the memory of a window at each length."""

import itertools

import jax
from rich.console import Console

from rope_jax.config.sharding_checks import differ_by_head
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import print_overview, print_wrapped
from rope_jax.devices.hardware import device_line
from rope_jax.devices.memory import device_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.devices.targets import Target
from rope_jax.evaluation.plan import sweep_lengths
from rope_jax.model.cost import window_flops
from rope_jax.model.decoder import language_model
from rope_jax.model.resolve import for_platform, numbers_in_words
from rope_jax.planning.reading import plan_readings
from rope_jax.planning.tables import TIME_NOTES, time_table
from rope_jax.sweeps.compatibility import (
    check_run_entries,
    check_texts,
    for_encoding,
    with_attention,
)
from rope_jax.sweeps.memory import check_window, describe_memory, memory_table
from rope_jax.sweeps.model import memory_plan, mesh_for


def plan_sweep(
    training: Config,
    config: SweepConfig,
    vocab_size: int,
    console: Console,
    target: Target | None = None,
) -> None:
    """Print what a sweep of a run takes; neither weights nor texts are read.

    training: the run's config, whose last stage is taken for that of the checkpoint.
    vocab_size: the tokenizer's.
    target: the devices to plan for; None: this machine's.

    UserError: the sweep does not suit the run, or does not fit on this machine.
    """
    if config.attention is not None:
        training = with_attention(training, config.attention)
    config = for_encoding(training, config)
    check_run_entries(training, config)
    check_texts(training, config)
    devices = None if target is None else target.devices()
    whole_heads = differ_by_head(entry.map for entry in config.scalings)
    mesh = mesh_for(training, None if target is None else target.count, whole_heads=whole_heads)
    placement = Placement(mesh, devices)
    training = for_platform(training, placement.platform)
    window = training.stages[-1].seq_len
    lengths = sweep_lengths(config, window)
    longest = training.encoding.longest
    read = [length for length in lengths if longest is None or length <= longest]
    model = language_model(training, vocab_size)
    placement.check_vocabulary(model.vocab_size)
    like = placement.shard_state(jax.eval_shape(lambda: model.init(0)))
    available = device_bytes(placement.device)
    memory, allowed = memory_plan(model, placement, like), config.memory_gib
    table = memory_table(memory, read, available, allowed) if read else None
    entries = [entry.label for entry in config.scalings]
    # each length of each entry reads the block with the text in front of it once
    tokens = len(entries) * sum(read)
    flops = len(entries) * sum(window_flops(training.model, vocab_size, n, n) for n in read)
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
        "devices": device_line(numbers_in_words(training.model), devices),
    }
    if target is not None:
        facts["target"] = f"{target.text}; {target.chip.source}"
    if table is None and read:
        facts["memory"] = describe_memory(memory, read[-1], available, allowed)
    print_overview(console, f"plan of the sweep {config.name} of {training.name}", facts)
    if table is not None:
        console.print(table)
    if not read:
        return
    imported = training.imported is not None
    check_window(memory, read, available, allowed, imported=imported)
    if target is not None:
        shared = placement.sharing_windows(memory.sharing(read[-1], available, allowed).context)
        with console.status("compiling"):
            programs = plan_readings(training, config, model, shared, like, target, read[-1])
        console.print(time_table(f"a batch of {read[-1]:,} tokens", programs, target.chip.flops))
        for note in TIME_NOTES:
            print_wrapped(console, note)
