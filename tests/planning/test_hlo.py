"""Exchanges read from compiled programs, against counts and bytes by hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rope_jax.planning.hlo import exchanges

ROOT = Path(__file__).parents[2]

LOOP = """\
HloModule step

%condition (p: (s32[], f32[8,4])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[8,4]{1,0}) parameter(0)
  %limit = s32[]{:T(128)} constant(12)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}

%fused (p: f32[2,4]) -> f32[8,4] {
  ROOT %gather = f32[8,4]{1,0} all-gather(%p), channel_id=1, replica_groups=GROUPS, dimensions={0}
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %part = f32[2,4]{1,0} get-tuple-element(%p), index=1
  %whole = f32[8,4]{1,0} fusion(%part), kind=kCustom, calls=%fused, metadata={op_name="x"}
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %whole)
}

ENTRY %main (x: f32[8,4]) -> f32[] {
  %loop = (s32[], f32[8,4]{1,0}) while(%init), condition=%condition, body=%bodyTRIPS
  ROOT %all = f32[2,4]{1,0} reduce-scatter(%y), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%sum
}
"""  # noqa: E501


def program(groups: str = "{{0,1},{2,3}}", trips: str = "") -> str:
    return LOOP.replace("GROUPS", groups).replace("TRIPS", trips)


def test_what_is_in_a_loop_counts_as_often_as_the_loop_runs():
    found = exchanges(program(), 4)
    # half of 8 × 4 float32; 2 × 4 of them to each of three others
    assert found.by_kind() == {"all-gather": (12, 12 * 64), "reduce-scatter": (1, 3 * 32)}
    assert not found.at_least


def test_the_compilers_own_count_of_a_loop_comes_first():
    trips = ', backend_config={"known_trip_count":{"n":"5"}}'
    assert exchanges(program(trips=trips), 4).by_kind()["all-gather"] == (5, 5 * 64)


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    found = exchanges(program().replace("constant(12)", "parameter(1)"), 4)
    assert found.by_kind()["all-gather"] == (1, 64)
    assert found.at_least


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ("{{0,2},{1,3}}", (0, 2)),
        ("[2,2]<=[4]", (0, 1)),
        ("[2,2]<=[2,2]T(1,0)", (0, 2)),
        ("mesh['a'=2,'b'=2] {'b'}", (0, 1)),
        ("mesh['a'=2,'b'=2] {'a'}", (0, 2)),
        ("mesh['a'=2,'b'=2] {'a','b'}", (0, 1, 2, 3)),
        ("{}", (0, 1, 2, 3)),
    ],
)
def test_groups_are_read_in_every_way_that_they_are_written(groups, first):
    (gather, _) = exchanges(program(groups), 4).each
    assert gather.group == first
    assert gather.bytes == 128 * (len(first) - 1) / len(first)


def test_a_group_of_one_device_exchanges_nothing():
    assert list(exchanges(program("{{0},{1},{2},{3}}"), 4).by_kind()) == ["reduce-scatter"]


@pytest.mark.parametrize(
    ("line", "kind", "sent"),
    [
        ("f32[100]{0} all-reduce-start(%x)", "all-reduce", 2 * 400 * 3 / 4),
        ("(f32[25]{0}, f32[100]{0}) all-gather-start(%x)", "all-gather", 300),
        ("((f32[25]{0}, bf16[25]{0}), (f32[100]{0}, bf16[100]{0})) all-gather-start(%x, %y)",
         "all-gather", 450),
        ("((f32[100]{0}), f32[25]{0}) reduce-scatter-start(%x)", "reduce-scatter", 300),
        ("(f32[], f32[10]{0}) all-reduce(%x, %y)", "all-reduce", 2 * 44 * 3 / 4),
        ("bf16[4,25]{1,0} all-to-all(%x)", "all-to-all", 150),
        ("(f32[100]{0}, f32[100]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x)",
         "collective-permute", 400),
        ("f32[100]{0} collective-permute(%x)", "collective-permute", 400),
    ],
)  # fmt: skip
def test_bytes_are_those_that_a_device_of_a_ring_sends(line, kind, sent):
    text = "ENTRY %main (x: f32[100]) -> f32[100] {\n"
    text += f"  %y = {line}, replica_groups={{{{0,1,2,3}}}}\n  %z = f32[100] {kind}-done(%y)\n}}\n"
    assert exchanges(text, 4).by_kind() == {kind: (1, pytest.approx(sent, abs=4))}


def test_an_asynchronous_exchange_of_a_tpu_counts_where_it_starts():
    gather = '  %g = f32[100] all-gather(%p), replica_groups={{0,1}}, frontend_attributes={chain_id="3"}\n'  # noqa: E501
    call = "  ROOT %c = f32[] custom-call(%g), custom_call_target="
    text = "".join(
        f"%{name} (p: f32[50]) -> f32[100] {{\n{gather}{end}}}\n\n"
        for name, end in (
            ("start", f'{call}"AsyncCollectiveStart"\n'),
            ("async_collective_fusion.1", "  ROOT %t = f32[] tuple(%g)\n"),
            ("done", f'{call}"AsyncCollectiveDone"\n'),
        )
    )
    text += "ENTRY %main (x: f32[50]) -> f32[100] {\n"
    for name in ("start", "async_collective_fusion.1", "done"):
        text += f"  %y = f32[100] fusion(%x), kind=kCustom, calls=%{name}\n"
    assert exchanges(text + "}\n", 2).by_kind() == {"all-gather": (1, 200)}


PROGRAM = """
import jax
import jax.numpy as jnp
from rope_jax.config.load import validate
from rope_jax.config.training import Config
from rope_jax.devices.mesh import Placement
from rope_jax.planning.hlo import exchanges
from rope_jax.training.program import Program

raw = {
    "name": "x",
    "model": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
              "num_attention_heads": 4, "layers": "scanned", "tie_word_embeddings": False},
    "mesh": {"fsdp": 4},
    "stages": [{"steps": 20, "seq_len": 64, "batch_size": 4}],
}
config = validate(Config, raw, "x")
program = Program(config, 256, Placement(config.mesh))
text = program.stage(0).compiled_step.as_text()
kernels = 3 * (4 * 32 * 32 + 3 * 32 * 64) + 2 * 32 * 256
found = exchanges(text, 4)
print(found.at_least, *(sum(of[1] for kind, of in found.by_kind().items() if kind in kinds)
      / (4 * kernels * 3 / 4) for kinds in (("all-gather",), ("reduce-scatter", "all-reduce"))))
"""


@pytest.mark.usefixtures("commands_compile_quickly")
def test_a_step_with_fsdp_gathers_every_kernel_twice_and_reduces_its_gradient_once():
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    at_least, gathered, reduced = done.stdout.split()
    assert at_least == "False"
    # embedding and head: outside the layers, gathered once
    outside = 2 * 32 * 256 / (3 * (4 * 32 * 32 + 3 * 32 * 64) + 2 * 32 * 256)
    assert float(gathered) == pytest.approx(2 - outside, rel=0.02)
    assert float(reduced) == pytest.approx(1, rel=0.02)
