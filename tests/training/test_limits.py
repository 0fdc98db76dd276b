"""A config that is too large is refused before any work, naming the key that would help."""

from types import SimpleNamespace

import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.training import Config
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.training import limits
from rope_jax.training.limits import check_size


def config(stage=None, **model):
    return Config.model_validate(
        {
            "name": "size",
            "model": model,
            "optim": {"warmup_steps": 1},
            "stages": [
                {"steps": 5, "seq_len": 16, "batch_size": 2},
                {"steps": 5, "seq_len": 128, "batch_size": 16} | (stage or {}),
            ],
        }
    )


@pytest.fixture
def check(monkeypatch):
    """Return a function that checks a config against a size of memory and a number of devices."""

    def check(config_, gib=16.0, devices=1, fsdp=1):
        monkeypatch.setattr(limits, "device_bytes", lambda: gib * 2**30)
        placement = Placement(MeshConfig())
        placement.mesh, placement.fsdp = SimpleNamespace(size=devices), fsdp
        check_size(config_, 257, placement)

    return check


LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    ("config_", "message"),
    [
        (config({"batch_size": LARGEST}), r"stages\[1\]: 2,147,483,647 × 128 tokens at a time"),
        (config({"batch_size": LARGEST}), r"lower stages\.1\.batch_size$"),
        (config({"batch_size": 2**15}), r"raise stages\.1\.grad_accumulation, or lower its batch"),
        (
            config({"batch_size": 2**17, "grad_accumulation": 2**10}),
            r"^stages\[1\]: 131,072 × 128 tokens at a time in validation take at least 32.* "
            r"lower stages\.1\.batch_size$",
        ),
        (config({"batch_size": 1, "seq_len": 2**17}), r"; model\.attention=blockwise takes less$"),
        (
            config({"batch_size": 1, "seq_len": 2**20}, attention="blockwise"),
            r"; model\.remat=true with model\.layers=scanned takes less$",
        ),
        (
            config({"batch_size": 1, "seq_len": 2**30}, attention="blockwise", remat=True),
            r"; lower stages\.1\.seq_len or make the model smaller$",
        ),
        (
            config(num_hidden_layers=10_000, layers="scanned"),
            r"^model: .* take at least 29\.\d GiB",
        ),
        (config(hidden_size=2**16), r"^model: its parameters, .*lower hidden_size"),
        (config(intermediate_size=LARGEST), r"^model: its parameters, .*intermediate_size"),
        (
            config(
                {"seq_len": 16, "batch_size": 2},
                num_hidden_layers=10_000,
                hidden_size=8,
                intermediate_size=8,
            ),
            r"^model\.num_hidden_layers: 10,000 unrolled .*; set model\.layers=scanned",
        ),
    ],
)
def test_a_config_too_large_is_refused_on_paper(check, config_, message):
    with pytest.raises(UserError, match=message):
        check(config_)


def test_the_demo_fits_into_half_a_gibibyte(check):
    check(config(), gib=0.5)


def test_many_scanned_layers_are_one_program(check):
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 10_000}
    check(config({"seq_len": 16, "batch_size": 2}, layers="scanned", **small))


def test_more_devices_hold_a_larger_model(check):
    large = config({"batch_size": 32}, num_hidden_layers=10_000, layers="scanned")
    with pytest.raises(UserError, match=r"split it with mesh\.fsdp"):
        check(large, devices=32)
    check(large, devices=32, fsdp=32)


def test_a_config_changed_as_advised_is_accepted(check):
    batch = {"batch_size": 2**15}
    with pytest.raises(UserError, match=r"raise stages\.1\.grad_accumulation"):
        check(config(batch))
    check(config(batch | {"grad_accumulation": 2**10}))
    check(config({"batch_size": 1, "seq_len": 2**17}, attention="blockwise"))
    check(
        config(
            {"batch_size": 1, "seq_len": 2**20}, attention="blockwise", remat=True, layers="scanned"
        )
    )
