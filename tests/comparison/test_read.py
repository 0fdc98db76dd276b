"""Results are read completely, or refused."""

import csv
import math
import os
import shutil
from pathlib import Path

import pytest

from rope_jax.comparison.groups import PointKey
from rope_jax.comparison.read import find_sweeps, read_sweep
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.results.statistics import Sums
from rope_jax.sealed import seal

RESULTS = ("results.csv", "results.jsonl", "documents.csv", "summary.json")


def test_written_results_are_read_back(sweep_of):
    run = sweep_of("one", seed=3, steps=(50, 100))
    sweep = read_sweep(run / "evals/demo")
    assert (sweep.run, sweep.seed, sweep.label) == ("one", 3, "one/demo")
    assert sweep.windows == {50: 16, 100: 16}
    assert len(sweep.rows) == 2 * 2 * 4 * 2  # scalings, protocols, lengths, steps
    row = sweep.rows[-1]
    assert (row.name, row.factor, row.auto, row.stride) == ("yarn-4", 4.0, False, 64)
    assert (row.length, row.step, row.documents, row.reliable) == (64, 100, 24, True)
    sums = sweep.sums["yarn-4", "whole_window", 64, 100]
    assert isinstance(sums, Sums)
    assert sums.mean() == pytest.approx(row.nll, rel=1e-12)
    assert '"beta_fast":32' in sweep.settings["yarn-4"]


@pytest.mark.parametrize("is_byte", [True, False])
def test_bits_per_byte_of_earlier_versions_count_where_a_token_is_a_byte(sweep_of, is_byte):
    """They were of the bytes of all texts, and neither those scored nor an interval are known."""
    folder = sweep_of("one") / "evals/demo"
    for name, absent in (("results", ("bpb_low", "bpb_high")), ("documents", ("bytes",))):
        with (folder / f"{name}.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        for line in lines:
            for column in absent:
                del line[column]
            if name == "results":
                line["bpb"] = float(line["nll"]) / math.log(2) / (1 if is_byte else 2)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, lines[0], lineterminator="\n")
            table.writeheader()
            table.writerows(lines)
    sweep = read_sweep(folder)
    for row in sweep.rows:
        sums = sweep.sums[PointKey.of(row)]
        assert row.bpb == (row.nll / math.log(2) if is_byte else None)
        assert sums.bytes is (sums.weight if is_byte else None)


def test_the_baselines_sums_are_read_even_if_it_is_not_a_curve(sweep_of):
    sweep = read_sweep(sweep_of("one", own=None) / "evals/demo")
    assert {row.name for row in sweep.rows} == {"yarn-4"}
    assert {key for key in sweep.sums if key[0] == "trained"} == {
        ("trained", "same_tokens", 16, 100)
    }


def test_runs_that_differ_in_seed_and_folder_are_one_experiment(sweep_of):
    one, two, three = (
        read_sweep(sweep_of(*args, **more) / "evals/demo").experiment
        for args, more in (
            (("a",), {}),
            (("b",), {"seed": 1}),
            (("c",), {"model": "hidden_size: 32"}),
        )
    )
    assert one == two
    assert one != three


def test_results_of_an_earlier_version_have_no_column_map(sweep_of):
    path = sweep_of("one", steps=(50, 100)) / "evals/demo/results.csv"
    good = read_sweep(path.parent)
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line.pop("map") for line in lines} == {""}
    lines = [{"": "7"} | line for line in lines]  # as pandas writes its index
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    found = read_sweep(path.parent)
    assert found.rows == good.rows
    assert {(row.map, row.kind) for row in found.rows} == {("", "none"), ("", "yarn")}


def test_the_map_of_a_curve_is_read(sweep_of):
    path = sweep_of("one") / "evals/demo/results.csv"
    text = path.read_text()
    label = "leaky_rerope+window=12+k=1.5e+04"
    path.write_text(text.replace("yarn-4,yarn,,", f"yarn-4,yarn,{label},"))
    rows = [row for row in read_sweep(path.parent).rows if row.name == "yarn-4"]
    assert {(row.map, row.kind) for row in rows} == {(label, "leaky_rerope")}


def test_a_sweep_is_found_by_any_path_to_it(sweep_of, monkeypatch, tmp_path):
    run = sweep_of("one")
    plain = read_sweep(run / "evals/demo")
    (tmp_path / "link").symlink_to(run / "evals/demo")
    monkeypatch.chdir(run / "evals/demo")
    for way in (".", "../demo", "../../../one/evals/demo/", "../../../link"):
        (folder,) = find_sweeps([Path(way)], None)
        sweep = read_sweep(folder)
        assert (sweep.label, sweep.experiment) == ("one/demo", plain.experiment)


@pytest.mark.parametrize("name", ["results.csv", "documents.csv", "summary.json", "sweep.yaml"])
def test_a_truncated_file_is_refused_or_reads_the_same(sweep_of, name):
    """Wherever a file is cut off, it is refused by name, or the results are unchanged."""
    folder = swept(sweep_of, steps=(50, 100))
    whole = (folder / name).read_bytes()
    good = read_sweep(folder)
    for end in [0, 1, *range(7, len(whole), max(1, len(whole) // 150)), len(whole) - 2]:
        (folder / name).write_bytes(whole[:end])
        said = ""
        try:
            found = read_sweep(folder)
        except UserError as error:
            said = str(error)
        if said:
            assert str(folder) in said
            assert "\n" not in said
        else:  # the part cut off is never read
            assert name == "sweep.yaml"
            assert found.rows == good.rows
            assert found.windows == good.windows
    (folder / name).unlink()
    with pytest.raises(UserError, match=name):
        read_sweep(folder)


def test_missing_documents_are_noticed_without_checksums(sweep_of):
    path = sweep_of("one") / "evals/demo/documents.csv"
    lines = path.read_text().splitlines(keepends=True)
    for gone in (1, len(lines) // 2, len(lines) - 1):
        path.write_text("".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(UserError, match=r"disagree"):
            read_sweep(path.parent)
    path.write_text("".join(lines[: len(lines) // 2]))
    with pytest.raises(UserError, match=r"disagree"):
        read_sweep(path.parent)


def test_a_damaged_line_is_named(sweep_of):
    folder = sweep_of("one") / "evals/demo"
    text = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(text.replace("same_tokens,8,5,8", "same_tokens,x,5,8", 1))
    with pytest.raises(UserError, match=r"results.csv: line 2: length: should be a valid int"):
        read_sweep(folder)
    (folder / "results.csv").write_text(text.replace(",corpus,", ",", 1))
    with pytest.raises(
        UserError, match=r"has no column corpus; it is damaged or was made by another"
    ):
        read_sweep(folder)


def swept(sweep_of, **settings) -> Path:
    """Return a sweep's folder with its checksums, as a sweep leaves it."""
    folder = sweep_of("one", **settings) / "evals/demo"
    seal(folder, RESULTS)
    return folder


@pytest.mark.parametrize("name", ["results.csv", "documents.csv", "summary.json"])
def test_any_damage_to_a_file_with_a_checksum_is_refused(sweep_of, name):
    folder = swept(sweep_of)
    read_sweep(folder)
    content = (folder / name).read_bytes()
    for place in range(0, len(content), max(1, len(content) // 60)):
        flipped = bytearray(content)
        flipped[place] ^= 1
        (folder / name).write_bytes(flipped)
        with pytest.raises(UserError, match=rf"{name}: is not what was written \(its checksum"):
            read_sweep(folder)


def test_users_may_edit_what_has_no_checksum_and_earlier_sweeps_have_none(sweep_of):
    folder = swept(sweep_of)
    (folder / "notes.txt").write_text("mine")
    with (folder / "sweep.yaml").open("a") as file:
        file.write("# mine\n")
    good = read_sweep(folder)
    (folder / "SHA256SUMS").unlink()
    assert read_sweep(folder).rows == good.rows


@pytest.mark.parametrize("content", ["", "junk\n", "\0", "0" * 64 + "  other\n", "é"])
def test_damaged_checksums_are_refused(sweep_of, content):
    folder = swept(sweep_of)
    (folder / "SHA256SUMS").write_text(content)
    with pytest.raises(UserError, match="SHA256SUMS"):
        read_sweep(folder)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("same_tokens,8,5,8", "same_tokens,x,5,8", "length: should be a valid integer"),
        ("same_tokens,8,5,8", "same_tokens,,5,8", "length: should be a valid integer"),
        ("same_tokens,8", "junk,8", "protocol should be same_tokens, whole_window"),
        (",one,0,", f",{'o' * 200_000},0,", "field larger than field limit"),
        (",one,0,", ",one,0,1,2,", "is incomplete"),
        (",False,", ",maybe,", "auto: should be a valid boolean, .* not 'maybe'"),
    ],
)
def test_a_value_that_no_sweep_writes_is_refused(sweep_of, old, new, says):
    path = sweep_of("one") / "evals/demo/results.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=says) as caught:
        read_sweep(path.parent)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_config_with_keys_of_several_types_leaves_its_run_unpooled(sweep_of):
    folder = sweep_of("one") / "evals/demo"
    with (folder.parent.parent / "config.yaml").open("a") as file:
        file.write("1: 2\n")
    assert read_sweep(folder).experiment is None


@pytest.mark.parametrize(
    "content",
    [
        "junk",
        "null",
        "[]",
        '{"run": "one"}',
        '{"run": "one", "step": 100, "window": 16, "nll_at_window": 1.0, "earlier": 3}',
    ],
)
def test_a_foreign_summary_is_refused(sweep_of, content):
    path = sweep_of("one") / "evals/demo/summary.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"summary\.json: missing or damaged; sweep again"):
        read_sweep(path.parent)


@pytest.mark.parametrize("name", ["results.csv", "documents.csv", "summary.json", "sweep.yaml"])
def test_a_pipe_a_folder_and_a_loop_in_place_of_a_file_are_refused(sweep_of, name):
    path = sweep_of("one") / "evals/demo" / name
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)):
        path.unlink(missing_ok=True)
        make(path)
        with pytest.raises(UserError, match=name):
            read_sweep(path.parent)
        if path.is_dir():
            path.rmdir()


def test_huge_files_are_refused_at_once(sweep_of):
    path = sweep_of("one") / "evals/demo/results.csv"
    os.truncate(path, 2**33)  # of which nothing is stored
    with pytest.raises(UserError, match=r"results.csv: cannot be read \(larger than 268,435,456"):
        read_sweep(path.parent)


def test_a_config_that_is_edited_after_the_sweep_changes_nothing(sweep_of):
    run = sweep_of("one", own=None)
    folder, config = run / "evals/demo", run / "config.yaml"
    shutil.copy(config, folder / "run.yaml")
    names = ("results.csv", "results.jsonl", "documents.csv", "summary.json", "run.yaml")
    seal(folder, names)
    before = read_sweep(folder)
    config.write_text(config.read_text().replace("hidden_size: 16", "hidden_size: 17"))
    assert read_sweep(folder).experiment == before.experiment
    config.write_text("seed: 1x")
    assert read_sweep(folder).baselines == before.baselines
    (folder / "run.yaml").write_text(config.read_text())
    with pytest.raises(UserError, match=r"run\.yaml: is not what was written"):
        read_sweep(folder)


def test_automatic_names_of_earlier_versions_are_still_those_of_their_curves(sweep_of):
    """Query scales had no part in them, and a map's name began with the scaling's."""
    folder = sweep_of() / "evals" / "demo"
    path = folder / "sweep.yaml"
    text = path.read_text()
    yarn = text.index("type: yarn")
    edited = text[:yarn] + text[yarn:].replace("query_scale: null", "query_scale: {type: logn}", 1)
    assert edited != text
    path.write_text(edited)
    assert set(read_sweep(folder).settings) == {"trained", "yarn-4"}
    rerope = SweepConfig.model_validate({"scalings": [{"type": "none", "map": {"type": "rerope"}}]})
    assert rerope.scalings[0].label == "rerope"
    assert rerope.scalings[0].earlier_label == "none-rerope"
