import textwrap
from pathlib import Path

import pytest

from analysis.study.axes import AXES, inference_times_ms, must_be_one_of
from analysis.study.study_folder import StudyFolder, initial_manifest
from analysis.study.study_plan import StudyPlan, axis_values, cells, ordered_groups, read_plan, run_seed
from shared.config import ConfigError
from shared.registry import Entry, PluginTable
from tests.support.simulated_study import plan_file, plan_of

STUDIES = Path(__file__).parents[3] / "configs" / "studies"
MODELS = STUDIES.parents[1] / "models"
GUIDE = STUDIES.parents[1] / "docs" / "guides" / "studies.md"


def test_a_study_without_axes_has_one_cell_with_the_default_values(tmp_path: Path) -> None:
    """Other defaults would change the meaning of existing files."""
    (cell,) = cells(plan_of(tmp_path))
    values = {axis: value for axis, value in cell.columns().items() if axis in AXES}
    assert values == {
        "model": "road-small",
        "engine": None,
        "format": "own",
        "precision": None,
        "device": "cpu",
        "transport": "mqtt",
        "codec": "jpeg",
        "resolution": "1936x1216",
        "resize_at": None,
        "batch": 1,
        "scenario": "single_stream",
        "vehicles": 1,
        "workers": 1,
        "frames": None,
        "link": "none",
        "gate": "none",
        "local_model": "none",
        "cascade": "none",
        "tuning": None,
        "fixed_inference_ms": None,
        "dispatch": None,
        "present": "none",
    }


def test_cells_are_all_combinations_and_named_by_their_varied_values(tmp_path: Path) -> None:
    """The name is used for folders and in reports; it must be short and unique."""
    axes = {"format": ["frozen_graph", "saved_model"], "vehicles": [1, 4], "link": ["none", "4g"], "batch": 2}
    names = [cell.name for cell in cells(plan_of(tmp_path, axes=axes))]
    assert names == [
        "frozen_graph.1-vehicle.no-link",
        "frozen_graph.1-vehicle.4g",
        "frozen_graph.4-vehicles.no-link",
        "frozen_graph.4-vehicles.4g",
        "saved_model.1-vehicle.no-link",
        "saved_model.1-vehicle.4g",
        "saved_model.4-vehicles.no-link",
        "saved_model.4-vehicles.4g",
    ]


def test_cells_with_a_gate_and_a_cascade_are_named_by_them(tmp_path: Path) -> None:
    """The value none alone would not show what is missing."""
    axes = {"gate": ["none", "mse-30"], "local_model": "road-small", "cascade": ["none", "tuned", "0.1-0.9"]}
    planned = cells(plan_of(tmp_path, axes=axes | {"fixed_inference_ms": [None, 100]}))
    assert [cell.name for cell in planned[:6]] == [
        "no-gate.no-cascade.default-fixed_inference_ms",
        "no-gate.no-cascade.100-ms",
        "no-gate.cascade.default-fixed_inference_ms",
        "no-gate.cascade.100-ms",
        "no-gate.cascade-0.1-0.9.default-fixed_inference_ms",
        "no-gate.cascade-0.1-0.9.100-ms",
    ]
    assert planned[6].name == "mse-30.no-cascade.default-fixed_inference_ms"


def test_unequal_workers_have_one_time_each(tmp_path: Path) -> None:
    """Dispatch matters most when the workers are unequal; equal ones have one time together."""
    axes = {"workers": 3, "fixed_inference_ms": [100, "100/100/500"], "dispatch": ["load", "group"]}
    planned = cells(plan_of(tmp_path, axes=axes))
    assert [cell.name for cell in planned] == [
        "100-ms.load", "100-ms.group", "100-100-500-ms.load", "100-100-500-ms.group",
    ]  # fmt: skip
    times = [cell.fixed_inference_ms for cell in planned if cell.fixed_inference_ms]
    assert {inference_times_ms(each, 3) for each in times} == {(100.0, 100.0, 100.0), (100.0, 100.0, 500.0)}
    assert len({cell.setup for cell in planned}) == 2  # Both ways of dispatch share the workers of a block.


def test_each_repetition_plays_the_next_drive(tmp_path: Path) -> None:
    """All cells of a block see the same drive, so that its traffic does not look like an effect of an axis."""
    plan = plan_of(tmp_path, repetitions=4, drive_seeds=[11, 22])
    assert [plan.drive_seed(repetition) for repetition in (1, 2, 3, 4)] == [11, 22, 11, 22]


def test_exclude_removes_and_include_adds_combinations(tmp_path: Path) -> None:
    """A combination that is already there is not added twice."""
    planned = cells(
        plan_of(
            tmp_path,
            axes={"codec": ["jpeg", "raw"], "vehicles": [1, 4]},
            exclude=[{"codec": "raw", "vehicles": 4}],
            include=[{"codec": ["zstd", "jpeg"], "vehicles": 1}],
        )
    )
    assert [cell.name for cell in planned] == ["jpeg.1-vehicle", "jpeg.4-vehicles", "raw.1-vehicle", "zstd.1-vehicle"]


def test_an_axis_knows_the_plug_ins_of_other_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study compares somebody's own codec with the built-in ones."""
    (tmp_path / "webp-1.2.dist-info").mkdir()
    (tmp_path / "webp-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: webp\nVersion: 1.2\n")
    (tmp_path / "webp-1.2.dist-info" / "entry_points.txt").write_text("[tests.axes]\nimage.webp = webp:Codec\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = PluginTable("codec", "tests.axes", Entry, {"raw": Entry("fractions:Fraction", "edge")}, prefix="image.")
    check = must_be_one_of("codec", table)
    assert check("webp") == "webp"
    with pytest.raises(ValueError, match="no codec 'gif': there are raw, webp"):
        check("gif")


def test_a_capacity_search_is_not_repeated_for_each_number_of_vehicles(tmp_path: Path) -> None:
    """The search itself finds the number of vehicles."""
    planned = cells(plan_of(tmp_path, axes={"scenario": ["server", "capacity"], "vehicles": [1, 4]}))
    assert [cell.name for cell in planned] == ["server.1-vehicle", "server.4-vehicles", "capacity.1-vehicle"]


def test_a_link_is_a_profile_or_a_map_and_its_settings_are_columns(tmp_path: Path) -> None:
    """The table of runs describes the link completely."""
    slow = {"name": "slow", "delay_ms": 50, "bandwidth_mbps": 2}
    none, made = cells(plan_of(tmp_path, axes={"link": ["none", slow]}))
    assert not none.link.has_effect
    assert made.link.has_effect
    columns = made.columns()
    assert (columns["link"], columns["link_delay_ms"], columns["link_bandwidth_mbps"]) == ("slow", 50.0, 2.0)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"axes": {"codecs": "jpeg"}}, "axes.codecs: unknown key: did you mean codec?"),
        ({"axes": {"transport": "http"}}, "axes.transport.0: no transport 'http': there are mqtt, grpc, tfs-grpc"),
        (
            {"axes": {"transport": ["mqtt", "grpc"], "workers": 2, "link": "4g"}},
            "link 4g with 2 workers and transport grpc: a link leads to a single address",
        ),
        ({"axes": {"engine": ["onnx"]}}, "no engine 'onnx': there are tensorflow, onnxruntime"),
        ({"axes": {"codec": "jpeg-101"}}, "there are raw, jpeg, png, lz4, zstd, and jpeg-1 to jpeg-100"),
        ({"axes": {"device": "tpu"}}, "axes.device.0: no device 'tpu': use cpu, gpu or gpu:N"),
        ({"axes": {"resolution": "101x100"}}, "write WIDTHxHEIGHT, both even and at least 32, such as 1936x1216"),
        ({"axes": {"scenario": "sever"}}, "no scenario 'sever': there are cold_start, same_image"),
        ({"axes": {"vehicles": 0}}, "axes.vehicles.0: give at least 1 (given 0)"),
        ({"axes": {"vehicles": [1, 1]}}, "axes.vehicles: a value occurs twice: remove one"),
        ({"axes": {"link": "6g"}}, "no link '6g': there are none, 4g, 5g"),
        ({"axes": {"link": {"name": "x", "dely_ms": 1}}}, "axes.link.0.dely_ms: unknown key: did you mean delay_ms"),
        ({"axes": {"link": ["4g", {"name": "4g"}]}}, "axes.link: two different links have the same name: rename one"),
        ({"axes": {"model": "road-smal"}}, "axes.model: no model 'road-smal': did you mean road-small"),
        ({"include": [{"model": "nothing-near"}]}, "include.0.model: no model 'nothing-near': choose one of"),
        ({"exclude": [{"codec": "raw"}]}, "exclude.0 matches no combination: correct it or remove it"),
        ({"exclude": [{"codec": "jpeg"}]}, "exclude removes every combination: correct it"),
        ({"exclude": [{}]}, "exclude.0 names no axis: give at least one, or remove it"),
        ({"scenarios": {"server": {"rate": 1}}}, "scenarios.server.rate: unknown key: did you mean rate_hz"),
        ({"scenarios": {"cold_start": {"rate_hz": 1}}}, "scenarios.cold_start.rate_hz: unknown key"),
        ({"axes": {"resize_at": "vehicle"}}, "axes.resize_at.0: no node 'vehicle': there are edge, cloud"),
        (
            {"accuracy": True, "axes": {"scenario": "mixed_sizes"}},
            "accuracy: the images of scenario mixed_sizes have no",
        ),
        ({"bag": "b", "axes": {"scenario": "same_image"}}, "bag: scenario same_image plays images of its own"),
        (
            {"axes": {"gate": "ssim"}},
            "no gate 'ssim': use none, mse, pixels, or a method with its threshold, such as mse-30",
        ),
        ({"axes": {"cascade": "sure"}}, "no cascade 'sure': use none, tuned, or C_LOW-C_HIGH, such as 0.1-0.9"),
        ({"axes": {"cascade": "0.9-0.1"}}, "c_low 0.9 and c_high 0.1: give 0 <= c_low < c_high <= 1"),
        ({"axes": {"cascade": "tuned"}}, "cascade tuned without a local_model: exclude this combination"),
        ({"axes": {"present": "predict"}}, "no presenter 'predict': there are none, hold, warp, warp-fine, fuse"),
        ({"axes": {"present": ["hold", "fuse"]}}, "present fuse without a local_model: exclude this combination"),
        ({"axes": {"local_model": "road-smal"}}, "axes.local_model: no model 'road-smal': did you mean road-small"),
        ({"axes": {"gate": "mse", "tuning": "no.yaml"}}, "axes.tuning: there is no tuning file no.yaml"),
        ({"axes": {"scenario": "same_image", "fixed_inference_ms": 50}}, "scenario same_image plays images of its own"),
        (
            {"axes": {"fixed_inference_ms": 0}},
            "axes.fixed_inference_ms.0: '0' is not a time: give milliseconds above 0",
        ),
        ({"axes": {"fixed_inference_ms": "100/fast"}}, "'100/fast' is not a time: give milliseconds above 0"),
        (
            {"axes": {"workers": 3, "fixed_inference_ms": "100/500"}},
            "fixed_inference_ms 100/500 has 2 times for 3 workers: give one time, or one for each worker",
        ),
        ({"axes": {"dispatch": "random"}}, "axes.dispatch.0: no dispatch 'random': there are load, group"),
        (
            {"axes": {"dispatch": "load", "transport": ["mqtt", "grpc"]}},
            "dispatch load with transport grpc: only vehicles with transport mqtt dispatch frames",
        ),
        (
            {"repetitions": 3, "drive_seeds": [1, 2]},
            "repetitions 3 with 2 drive_seeds: give a multiple of their number",
        ),
        ({"bag": "b", "static_camera": True}, "bag: static_camera belong to the synthetic drive"),
        ({"bag": "no-bag"}, "bag: there is no bag no-bag"),
        ({"bag": "b", "axes": {"resolution": "64x64"}}, "bag: its frames have a resolution of their own: remove 64x64"),
        ({"axes": {"vehicles": list(range(1, 201)), "workers": list(range(1, 33)), "batch": [1, 2]}}, "12800 cells"),
    ],
)
def test_an_invalid_study_is_rejected_with_file_key_and_valid_values(
    tmp_path: Path, document: dict[str, object], expected: str
) -> None:
    """A study may run for hours, so every mistake must be found before the first run."""
    path = plan_file(tmp_path, **document)
    with pytest.raises(ConfigError) as caught:
        read_plan(path, tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def test_the_seed_determines_the_order(tmp_path: Path) -> None:
    """A study can be repeated in the same order."""
    planned = cells(plan_of(tmp_path, axes={"format": ["frozen_graph", "saved_model"], "vehicles": [1, 2, 3, 4]}))
    assert ordered_groups(planned, 3, 7) == ordered_groups(planned, 3, 7)
    assert ordered_groups(planned, 3, 7) != ordered_groups(planned, 3, 8)
    assert run_seed(7, "a", 1) == run_seed(7, "a", 1) != run_seed(7, "a", 2)


def test_a_repetition_is_a_block_with_new_workers_for_each_setup(tmp_path: Path) -> None:
    """Blocks remove drift from the comparison; workers shared by all repetitions would be a single sample."""
    planned = cells(plan_of(tmp_path, axes={"format": ["frozen_graph", "saved_model"], "codec": ["jpeg", "raw"]}))
    ordered = ordered_groups(planned, 3, 1)
    assert [runs[0].repetition for _, runs in ordered] == [1, 1, 2, 2, 3, 3]
    runs = [run for _, members in ordered for run in members]
    assert [run.order for run in runs] == [*range(1, 13)]
    for repetition in (1, 2, 3):
        block = [run.cell for run in runs if run.repetition == repetition]
        assert sorted(cell.name for cell in block) == sorted(cell.name for cell in planned)
    assert len({tuple(run.cell.name for run in runs[at : at + 4]) for at in (0, 4, 8)}) > 1


def test_each_cold_start_cell_has_its_own_workers(tmp_path: Path) -> None:
    """Workers that already served another cell would be warm."""
    planned = cells(plan_of(tmp_path, axes={"scenario": ["cold_start", "same_image"], "vehicles": [1, 2]}))
    assert sorted(len(runs) for _, runs in ordered_groups(planned, 1, 1)) == [1, 1, 2]


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_included_study_is_valid(file: Path, tmp_path: Path) -> None:
    """Users start from these files."""
    plan = read_plan(file, MODELS)
    assert plan.name == file.stem
    assert all(values for values in axis_values(cells(plan)).values())
    _assert_saved_equal(plan, file, tmp_path)


def test_the_plan_of_the_guide_is_valid(tmp_path: Path) -> None:
    """Readers copy it."""
    block = GUIDE.read_text(encoding="utf-8").split("## The file\n\n")[1].split("\n\n")[0]
    file = tmp_path / "guide.yaml"
    file.write_text(textwrap.dedent(block), encoding="utf-8")
    _assert_saved_equal(read_plan(file, MODELS), file, tmp_path)


@pytest.mark.parametrize(
    "document",
    [
        {"bag": "BAG"},
        {"bag": "BAG", "accuracy": True, "axes": {"scenario": "camera", "codec": ["jpeg", "raw"]}},
        {"static_camera": True, "drive_seeds": [11, 12], "repetitions": 4},
        {"axes": {"engine": [None, "openvino"], "precision": [None, "fp16"], "frames": [None, 5], "resize_at": [None, "cloud"]}},
        {"axes": {"link": ["none", "4g", {"name": "1e3", "delay_ms": 0.1, "seed": 3}], "workers": 2}},
        {"axes": {"workers": 2, "fixed_inference_ms": [None, 100, "100/0.5"], "dispatch": [None, "group"]}},
        {"axes": {"gate": ["none", "mse-30"], "local_model": "road-tiny", "cascade": ["none", "0.1-0.9"], "present": "fuse"}},
        {"axes": {"transport": ["mqtt", "grpc"], "link": "5g"}},
        {"axes": {"scenario": "capacity", "vehicles": [1, 4]}},
        {"axes": {"codec": ["jpeg", "raw"]}, "exclude": [{"codec": "raw", "frames": [None]}], "include": [{"link": "4g"}]},
        {"scenarios": {"server": {"rate_hz": 7, "frames": 9}}, "reuse": {"frames": 3}, "report": {"price_per_hour": 0.1}},
        *({"name": name, "description": "a: b # c\n\u00e9 'x'"} for name in ("1e3", "null", "yes", "007", "2026-11-28", "0o17")),
    ],
    ids=str,
)  # fmt: skip
def test_a_saved_plan_is_the_plan_that_was_saved(document: dict[str, object], tmp_path: Path) -> None:
    """A study is resumed, and run again, from the plan in its folder, which has every key with its default."""
    bag = tmp_path / "drive.bag"
    bag.write_bytes(b"")
    file = plan_file(tmp_path, **{key: str(bag) if value == "BAG" else value for key, value in document.items()})
    _assert_saved_equal(read_plan(file, MODELS), file, tmp_path)


def _assert_saved_equal(plan: StudyPlan, file: Path, folder: Path) -> None:
    """Saves a plan twice, as a study and its repetition do, and resumes both."""
    for number in (1, 2):
        study = StudyFolder(folder / f"study-{number}")
        study.begin(plan, initial_manifest(plan, file, 7, 1))
        assert study.resumed_seed(plan, None) == 7
        file = study.root / "study.yaml"
        read = read_plan(file, MODELS)
        assert (read, cells(read)) == (plan, cells(plan))
        plan = read
