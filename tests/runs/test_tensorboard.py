"""What `make tensorboard` prints."""

from rope_jax.runs.tensorboard import describe_tensorboard


def event_folders(folder, names):
    for name in names:
        place = folder / name
        place.mkdir(parents=True)
        (place / "events.out.tfevents.1").touch()


def test_it_says_what_to_open_and_how_to_show_one_run(tmp_path):
    assert describe_tensorboard(tmp_path)[-1] == f"{tmp_path} holds nothing to show yet"
    event_folders(tmp_path, [f"run/evals/{s}/{n}" for s in "ab" for n in range(21)])
    (tmp_path / "run/evals/a/0/events.out.tfevents.2").touch()  # of the same run
    start, charts, shown, warning = describe_tensorboard(tmp_path)
    assert start == "Open http://localhost:6006/?smoothing=0"
    assert charts.endswith("http://localhost:6006/?smoothing=0#custom_scalars&_smoothingWeight=0")
    one = f"make tensorboard RUNS={tmp_path}/NAME"
    assert shown == f"Shown: all of {tmp_path}; for one run: {one}"
    assert f"where there are more than 40, and {tmp_path} has 42: tick those to see" in warning
    (tmp_path / "run" / "config.yaml").touch()
    assert (
        describe_tensorboard(tmp_path / "run")[2] == f"Shown: the run {tmp_path}/run and its sweeps"
    )
