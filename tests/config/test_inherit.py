"""What a config with `init_from` inherits from another run, and what it may not change."""

import json
from pathlib import Path

import pytest

from rope_jax.config.inherit import load_training, training_config
from rope_jax.config.inspection import ScalingConfig, load_inspection
from rope_jax.config.load import dump
from rope_jax.config.tokenizer import FileTokenizerConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.positions.encodings import FIREEncoding
from rope_jax.rope.strategies import NoScaling, PIScaling, YaRNScaling

SOURCE = {
    "name": "demo",
    "model": {"hidden_size": 96, "intermediate_size": 200, "num_attention_heads": 6},
    "rope": {
        "base": 20000.0,
        "rotary_dim": 8,
        "layout": "interleaved",
        "layer_pattern": [{}, {"base": 1000.0}],
    },
    "data": {"type": "text", "files": ["a", "b"], "test_fraction": 0.3},
    "optim": {"warmup_steps": 2},
    "stages": [
        {"steps": 10, "seq_len": 64, "batch_size": 2},
        {"steps": 5, "seq_len": 256, "batch_size": 2, "scaling": {"type": "pi", "factor": 4.0}},
    ],
}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Return a function that makes runs/demo in the working directory: config and checkpoints."""
    monkeypatch.chdir(tmp_path)

    def source(steps=(5, 10, 15), **settings):
        run = Path("runs/demo")
        for step in steps:
            (run / "checkpoints" / str(step)).mkdir(parents=True)
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.yaml").write_text(dump(TrainingConfig.model_validate(SOURCE | settings)))
        return run

    return source


def extended(start="runs/demo", **settings):
    """Return the config of a run at 1,024 tokens that starts from runs/demo."""
    raw = {
        "name": "more",
        "init_from": start,
        "optim": {"warmup_steps": 0},
        "stages": [{"steps": 3, "seq_len": 1024, "batch_size": 1}],
    }
    return training_config(raw | settings, "C.yaml")


def refusal(start="runs/demo", **settings):
    with pytest.raises(UserError) as caught:
        extended(start, **settings)
    return str(caught.value)


def test_what_is_left_out_is_inherited(source):
    source()
    config = extended()
    old = TrainingConfig.model_validate(SOURCE)
    assert config.init_from.model_dump() == {"run": "runs/demo", "step": 15, "optimizer": False}
    assert (config.model, config.data) == (old.model, old.data)
    assert config.rope == old.rope.model_copy(
        update={"train_length": 64, "scaling": PIScaling(factor=4)}
    )
    assert config.geometry == old.geometry  # L is the source's, not the 1,024 of the new stage
    assert config.stage_scaling(0) == PIScaling(factor=4)
    assert config.optim.warmup_steps == 0
    assert config.seed == 0


def test_the_tokenizer_is_the_copy_that_the_source_keeps(source):
    source(tokenizer={"type": "file", "path": "elsewhere/tokenizer.json", "bos": "<s>"})
    copy = "runs/demo/tokenizer.json"
    assert extended().tokenizer == FileTokenizerConfig(path=copy, bos="<s>")
    stated = {"type": "file", "path": "other.json"}  # its content is compared later
    assert extended(tokenizer=stated).tokenizer == FileTokenizerConfig(path="other.json")
    assert refusal(tokenizer={"type": "bytes"}).endswith(
        "tokenizer.type is 'bpe or file' there and 'bytes' here; leave these keys out, so that "
        "they are inherited"
    )


def test_the_scaling_is_that_of_the_checkpoints_stage(source):
    source()
    assert extended("runs/demo@10").rope.scaling == NoScaling()
    assert extended("runs/demo@15").rope.scaling == PIScaling(factor=4)
    assert extended({"run": "runs/demo", "step": 5}).init_from.step == 5


def test_what_is_stated_goes_before_what_is_inherited(source):
    source()
    scaling = {"type": "yarn", "factor": 16.0}
    config = extended(
        model={"attention": "blockwise", "dtype": "bfloat16", "remat": "layer"},
        rope={"base": 5e5, "scaling": scaling, "train_length": 128, "layer_pattern": []},
        data={"validation_fraction": 0.2},
    )
    assert (config.model.attention, config.model.hidden_size) == ("blockwise", 96)
    assert config.rope.scaling == YaRNScaling(factor=16)
    assert (config.rope.base, config.rope.train_length, config.rope.rotary_dim) == (5e5, 128, 8)
    assert (config.data.files, config.data.validation_fraction) == (["a", "b"], 0.2)
    other = extended(data={"type": "jsonl", "files": ["c"]}).data
    assert (other.type, other.test_fraction) == ("jsonl", 0.1)  # not that of the other type


def test_a_position_map_is_inherited(source):
    source(rope={"map": {"type": "leaky_rerope"}})
    assert extended().stage_map(0).window == 48  # 3/4 of the source's 64


def test_defaults_that_followed_from_the_sources_lengths_are_inherited(source):
    source(model={"attention": "xla", "position": {"type": "fire"}}, rope={}, stages=[
        {"steps": 15, "seq_len": 64, "batch_size": 2}])  # fmt: skip
    config = extended()
    assert config.model.position == FIREEncoding(threshold=16)  # a quarter of 64, not of 1,024
    assert config.rope.train_length is None


def test_the_resolved_config_needs_no_source(source, tmp_path):
    run = source()
    config = extended(sweep={"lengths": [32, 64]})
    assert config.sweep.window == 256  # the length of the checkpoint's stage
    text = dump(config)
    (tmp_path / "again.yaml").write_text(text)
    (tmp_path / "older.yaml").write_text(text.replace("  eos: null\n", ""))  # of a version before
    assert "eos" not in (tmp_path / "older.yaml").read_text()
    run.rename("runs/gone")
    assert load_training(tmp_path / "again.yaml") == config
    assert load_training(tmp_path / "older.yaml") == config
    assert load_training(tmp_path / "again.yaml", ["seed=3"]).seed == 3


def test_scripts_that_show_a_training_config_inherit_as_well(source, tmp_path):
    source()
    stages = "stages: [{steps: 200, seq_len: 1024, batch_size: 1}]"
    (tmp_path / "more.yaml").write_text(f"name: more\ninit_from: runs/demo@15\n{stages}\n")
    _, training = load_inspection(ScalingConfig, tmp_path / "more.yaml", ["length=2048"])
    assert training is not None
    assert training.geometry.train_length == 64
    assert training.stage_scaling(0) == PIScaling(factor=4)


def write_fit(path, scaling, **map_):
    """Write a strategy file; without map_ it has no map."""
    fitted = {"type": "fitted", "train_length": 128, "scale_s": [[1.5]], "scale_p": [[0.5]]}
    path.parent.mkdir(parents=True)
    strategy = {"scaling": scaling} | ({"map": fitted | map_} if map_ else {})
    path.write_text(json.dumps(strategy))


def test_a_strategy_file_replaces_the_inherited_scaling_and_map(source):
    source(rope={"train_length": 128, "map": {"type": "rerope", "window": 32}})
    path = Path("runs/demo/fits/far/strategy.json")
    write_fit(path, {"type": "yarn", "factor": 2.0})
    config = extended(rope={"strategy": str(path)})
    assert config.stage_scaling(0) == YaRNScaling(factor=2.0)
    assert config.rope.map is None
    assert config.rope.strategy is None  # a dumped config does not need the file


# What is refused


def test_a_model_that_differs_is_refused_by_field(source):
    source()
    assert refusal(model={"hidden_size": 48, "qk_norm": True}, rope={"rotary_dim": 4}) == (
        "C.yaml: init_from: the model of runs/demo differs: model.hidden_size is 96 there and 48 "
        "here; model.head_dim is 16 there and 8 here; model.qk_norm is false there and true here; "
        "rope.rotary_dim is 8 there and 4 here; leave these keys out, so that they are inherited"
    )
    assert "rope.layout is 'interleaved' there and 'half' here" in refusal(rope={"layout": "half"})
    assert "model.attention is 'softmax' there and 'linear' here" in refusal(
        model={"attention": "linear"}
    )
    # said before the inherited section `rope`, which means nothing to ALiBi, is refused
    assert "model.position.type is 'rope' there and 'alibi' here" in refusal(
        model={"position": {"type": "alibi"}}
    )


def test_fields_that_are_equal_in_effect_do_not_differ(source):
    source()
    model = {"num_key_value_heads": 6, "head_dim": 16, "initializer_range": 0.5}
    assert extended(model=model).model.head_dim == 16


def test_the_type_of_the_weights_is_not_inherited(source):
    source(model=SOURCE["model"] | {"param_dtype": "bfloat16", "dtype": "bfloat16"})
    assert (extended().model.param_dtype, extended().model.dtype) == ("float32", "bfloat16")
    assert extended(model={"param_dtype": "bfloat16"}).model.param_dtype == "bfloat16"


def test_a_table_of_positions_cannot_become_longer(source):
    source(
        model={"position": {"type": "learned"}},
        rope={},
        stages=[{"steps": 15, "seq_len": 64, "batch_size": 2}],
    )
    assert "model.position.length: 64 positions are too few for stages.0;" in refusal()
    assert "model.position.length is 64 there and 1024 here" in refusal(
        model={"position": {"type": "learned", "length": 1024}}
    )
